"""The artifacts of a study's runs in MLflow: configuration, prompts, accuracies of clients, report, the best model."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpl_tune import config
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.selection import choose
from fpl_tune.study.store import Store, as_yaml

Files = dict[str, bytes | Path]
"""Path below the run's artifacts -> content, or the file that holds it."""


def cell_files(store: Store, cell: Cell, seeds: Sequence[int]) -> Files:
    """Configuration, prompts, accuracies of clients."""
    clients = _clients_csv({seed: store.history(cell, seed) for seed in seeds})
    prompts = _prompts(store, cell, seeds, "prompts/seed={}.safetensors")
    return {"config/run.yaml": _run_yaml(cell), "clients.csv": clients, **prompts}


def study_files(store: Store) -> Files:
    """The report, its tables, the best cell's prompts as a model, and the study without the server's address."""
    names = ("report.html", "table.md", "table.tex", "table.csv", "results.csv")
    files: Files = {name: store.folder / name for name in names if (store.folder / name).is_file()}
    return {**files, **_model(store), "study.yaml": (store.folder / "study.yaml").read_bytes()}


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


def _clients_csv(histories: Mapping[int, Sequence[Record]]) -> bytes:
    """One row per seed, set and client: accuracy in the last evaluated round."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "round", "set", "client", "accuracy"])
    for seed, history in histories.items():
        evaluated = [r for r in history if any(k.startswith("clients/") for k in r)]
        for name, values in (evaluated[-1] if evaluated else {}).items():
            if name.startswith("clients/"):
                for client, value in enumerate(values):
                    writer.writerow([seed, evaluated[-1]["round"], name.removeprefix("clients/"), client, value])
    return text.getvalue().encode()
