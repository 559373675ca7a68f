"""Export of a cell: its prompts, and the files to run it again; and the comparison of what runs again with it."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.files import write_text
from fpl_tune.core.formatting import counted
from fpl_tune.core.nested import flatten
from fpl_tune.core.plugins import CODE
from fpl_tune.study.cells import CLASS, Cell, confirming_id
from fpl_tune.study.store import Store, as_yaml

EXPECTED = "expected.csv"
"""Name of the results of an exported cell, beside its study file."""


def export(store: Store, cell: Cell, folder: Path) -> list[Path]:
    """Writes a cell's study file, run, prompts, expected results and own code, without seeds that have a damaged file.

    The code lies in the folder `code`. A study imports it only if its module is named; see `naming`.

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
    report = {"rule": store.study().report.rule}
    body = {"defaults": ["/study", "_self_"], "title": title, "seeds": seeds, "report": report, **run}
    write_text(folder / f"{store.name}-{cell.id}.yaml", as_yaml(body))
    write_text(folder / "run.yaml", as_yaml(run))
    for seed in store.seeds(cell):
        prompts = store.seed_folder(cell, seed) / "prompts.safetensors"
        if prompts.is_file():
            shutil.copyfile(prompts, folder / f"prompts-seed{seed}.safetensors")
    write_text(folder / EXPECTED, store.table().frame().query("cell == @cell.id").to_csv(index=False))
    _copy_code(store, cell, folder / CODE)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _copy_code(store: Store, cell: Cell, folder: Path) -> None:
    """Copies the files of a user's own method and data set; warns if they are not what the results were made with."""
    from fpl_tune.study.fingerprints import code_of, method_source

    try:
        files, source = code_of(cell.run), method_source(cell.run)
    except ConfigError as problem:
        warnings.warn(f"The export holds no code of its method: {problem}", Notice, stacklevel=3)
        return
    for place, path in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / place)
    made = {run.fingerprints.get("method", source) for run in store.row(cell).results.values()}
    if files and made != {source}:
        warnings.warn("The method's code has changed since these results: run the study again, then export it.", Notice,
                      stacklevel=3)  # fmt: skip


def naming(cell: Cell) -> list[str]:
    """The overrides that name the modules of an exported cell, by which its user trusts the code beside it."""
    fields = flatten(config.as_dict(cell.run))
    return [f"{n}={v}" for n, v in fields.items() if isinstance(v, str) and CLASS.fullmatch(v)]


def compared(store: Store, expected: Path) -> str:
    """Whether what has run equals the results of an export, and to how many digits, as a sentence.

    Args:
        store: the study that repeats the exported cell.
        expected: its results there, `expected.csv`.
    """
    import pandas as pd

    try:
        there = pd.read_csv(expected).to_dict("records")
        wanted = {(row["seed"], row["rule"]): row for row in there if row["status"] == "done"}
        ids = {str(row["cell"]) for row in there}
    except (OSError, ValueError, KeyError) as problem:
        return f"{expected} cannot be compared ({type(problem).__name__}: {problem})."
    here = {(row["seed"], row["rule"]): row for row in store.table().by_seed(every_rule=True)
            if row["status"] == "done" and {row["cell"], confirming_id(row["cell"])} & ids}  # fmt: skip
    common = [key for key in wanted if key in here]
    if not common:
        return f"No seed of {expected} has run here."
    gaps = [_gap(name, key, here[key][name], wanted[key][name]) for key in common for name in _figures(wanted[key])
            if name in here[key]]  # fmt: skip
    gap, text = max(gaps)
    seeds = f"{len(common)} of {counted(len(wanted), 'seed')}"
    if gap == 0:
        return f"Equal to {expected} in all digits, {seeds}."
    digits = math.ceil(-math.log10(gap)) - 1 if gap < 0.1 else 0
    to = f"Equal to {expected} to {counted(digits, 'digit')} after the point" if digits else f"Differs from {expected}"
    return f"{to}, {seeds}. The largest difference: {text}."


def _figures(row: dict[str, Any]) -> list[str]:
    """The metrics of a row of results that a run repeats: all but times."""
    return [name for name, value in row.items()
            if "/" in str(name) and not str(name).startswith("time/") and isinstance(value, int | float)]  # fmt: skip


def _gap(name: str, key: tuple[int, str], here: float, there: float) -> tuple[float, str]:
    """The difference of a metric, of large numbers relative to their size, and what differs."""
    both_missing = math.isnan(here) and math.isnan(there)
    gap = 0.0 if both_missing else abs(here - there) / max(1.0, abs(there))
    text = f"{name} is {here:.8g} instead of {there:.8g} (seed {key[0]})"
    return (math.inf if math.isnan(gap) else gap), text
