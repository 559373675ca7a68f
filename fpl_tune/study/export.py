"""Export of a cell: its prompts, and the files to run it again."""

from __future__ import annotations

import shutil
from pathlib import Path

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import write_text
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store, as_yaml


def export(store: Store, cell: Cell, folder: Path) -> list[Path]:
    """Writes a cell's study file, run, prompts and expected results, without seeds that have a damaged file.

    Args:
        store: the study's store.
        cell: the cell.
        folder: a new or empty folder.

    Returns:
        The files; `fpl-tune study <folder>/<study>-<cell>.yaml` repeats the cell.

    Raises:
        ConfigError: the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"An export goes into a new or empty folder, but {folder} is not. Name another one.")
    store.check()
    folder.mkdir(parents=True, exist_ok=True)
    run, title = config.as_dict(cell.run), f"{store.name}: {cell.label}"
    seeds = store.seeds(cell) if store.study().declared_looks() else [*store.design().seeds_of(cell)]
    body = {"defaults": ["/study", "_self_"], "title": title, "seeds": seeds, **run}
    write_text(folder / f"{store.name}-{cell.id}.yaml", as_yaml(body))
    write_text(folder / "run.yaml", as_yaml(run))
    for seed in store.seeds(cell):
        prompts = store.seed_folder(cell, seed) / "prompts.safetensors"
        if prompts.is_file():
            shutil.copyfile(prompts, folder / f"prompts-seed{seed}.safetensors")
    write_text(folder / "expected.csv", store.table().frame().query("cell == @cell.id").to_csv(index=False))
    return sorted(folder.iterdir())
