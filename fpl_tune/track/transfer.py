"""A study as one folder: from the cluster to the laptop."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fpl_tune.errors import ConfigError
from fpl_tune.study.store import Store

_LEFT_OUT = shutil.ignore_patterns("study.lock", "*.part", "ckpt*", "slot*")


def export_study(store: Store, out: Path) -> Path:
    """Copies a study to a new folder `out`, without locks and checkpoints. MLflow is rebuilt from it by `sync`.

    Raises:
        ConfigError: `out` exists.
    """
    return _copy(store.folder, out)


def import_study(folder: Path, root: Path) -> Store:
    """Takes an exported study into the output folder `root`.

    Raises:
        ConfigError: the folder holds no study, or there is one of that name already.
    """
    if not (folder / "study.yaml").is_file():
        raise ConfigError(f"An exported study is a folder with a study.yaml, but {folder} has none.")
    name = Store(folder.parent, folder.name).spec().name
    _copy(folder, root / name)
    return Store.open(root, name)


def _copy(source: Path, target: Path) -> Path:
    if target.exists():
        raise ConfigError(f"Nothing is overwritten, but {target} exists. Remove it, or name another place.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, ignore=_LEFT_OUT)
    temporary.replace(target)
    return target
