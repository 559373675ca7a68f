"""The artifacts of a study's runs in MLflow: configuration, histories, prompts, report, the best model."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from pathlib import Path

from fpl_tune import config
from fpl_tune.study.cells import Cell
from fpl_tune.study.selection import choose
from fpl_tune.study.store import Store, as_yaml

Files = dict[str, bytes | Path]
"""Path below the run's artifacts -> content, or the file that holds it."""


def cell_files(store: Store, cell: Cell, seeds: Sequence[int]) -> Files:
    """Configuration, prompts, and every metric by round, those of clients included."""
    histories = {f"history/seed={seed}.jsonl": store.seed_folder(cell, seed) / "metrics.jsonl" for seed in seeds}
    prompts = _prompts(store, cell, seeds, "prompts/seed={}.safetensors")
    return {"config/run.yaml": _run_yaml(cell), **histories, **prompts}


def study_files(store: Store) -> Files:
    """The study, its report and tables, and the best cell's prompts as a model."""
    names = ("study.yaml", "report.html", "table.md", "table.tex", "results.csv")
    files: Files = {name: store.folder / name for name in names if (store.folder / name).is_file()}
    return {**files, **_model(store)}


_MLMODEL = """\
flavors:
  python_function:
    loader_module: fpl_tune.simulation.serve
    data: prompts
    python_version: {python}
    env: {{virtualenv: python_env.yaml}}
"""


def _model(store: Store) -> Files:
    """The best cell's prompts as a model of MLflow, which `mlflow.pyfunc.load_model` serves; empty without prompts."""
    choice = choose(store.frame(), store.cells(), store.spec(), store.spec().report.rule)
    if choice is None or len(choice.cells) > 1:
        return {}
    prompts = _prompts(store, choice.cell, store.seeds(choice.cell), "model/prompts/prompts-seed{}.safetensors")
    if not prompts:
        return {}
    python, own = platform.python_version(), importlib.metadata.version("fpl-tune")
    return {
        **prompts,
        "model/MLmodel": _MLMODEL.format(python=python).encode(),
        "model/python_env.yaml": f"python: {python}\ndependencies: [fpl-tune=={own}]\n".encode(),
        "model/prompts/run.yaml": _run_yaml(choice.cell),
    }


def _prompts(store: Store, cell: Cell, seeds: Sequence[int], name: str) -> Files:
    """The learned prompts of the seeds that have some; `name` has a place for the seed."""
    paths = {seed: store.seed_folder(cell, seed) / "prompts.safetensors" for seed in seeds}
    return {name.format(seed): path for seed, path in paths.items() if path.is_file()}


def _run_yaml(cell: Cell) -> bytes:
    return as_yaml(config.as_dict(cell.run)).encode()
