"""Export and import of a study as one folder, for instance from a cluster to a laptop."""

from __future__ import annotations

import shutil
from pathlib import Path

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import atomic_write
from fpl_tune.study.schema import SCHEMA
from fpl_tune.study.store import Store, as_yaml

_LEFT_OUT = shutil.ignore_patterns("study.lock", "*.part", "ckpt*", "slot*")


def portable(store: Store) -> str:
    """The resolved study without the tracking server's address, which can hold a password."""
    node = {"schema": SCHEMA, **store.node()}
    node["tracking"] = {name: value for name, value in node.get("tracking", {}).items() if name != "uri"}
    return as_yaml(node)


def export_study(store: Store, out: Path) -> Path:
    """Copies a study to a new folder, without locks, checkpoints and the tracking server's address.

    MLflow's records are not copied; `track.sync` writes them anew where the study is imported.

    Args:
        store: the study's store.
        out: the folder, which does not exist yet.

    Raises:
        ConfigError: `out` exists.
    """
    return _copy(store.folder, out, portable(store))


def import_study(folder: Path, root: Path) -> Store:
    """Copies an exported study into the output folder `root`.

    Raises:
        ConfigError: the folder does not hold a study, holds links or devices, or is damaged; or `root` has a study of
            that name already.
    """
    folder = folder.resolve()
    if not (folder / "study.yaml").is_file():
        raise ConfigError(f"An exported study is a folder with a study.yaml, but {folder} has none.")
    for path in sorted(folder.rglob("*")):  # copying a link would copy its target
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ConfigError(f"An exported study holds files and folders, but {path} is a link or a device.")
    carried = Store(folder.parent, folder.name)
    name = config.check_name(carried.spec().name)
    for problem in carried.check():
        raise problem
    _copy(folder, root / name)
    return Store.open(root, name)


def _copy(source: Path, target: Path, study: str | None = None) -> Path:
    """Copies a study's folder; `study` replaces the content of its study.yaml."""
    if target.exists():
        raise ConfigError(f"Nothing is overwritten, but {target} exists. Remove it, or name another place.")
    with atomic_write(target) as temporary:
        shutil.copytree(source, temporary, ignore=_LEFT_OUT)
        if study is not None:
            (temporary / "study.yaml").write_text(study, encoding="utf-8")
    return target
