"""The artifacts of a study's runs in MLflow: configuration, prompts, accuracies of clients, report, the best model."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from fpl_tune import config
from fpl_tune.study.cells import Cell
from fpl_tune.study.folder import plain
from fpl_tune.study.selection import choose
from fpl_tune.study.store import Store
from fpl_tune.study.transfer import portable
from fpl_tune.trial import Record


def cell_files(store: Store, cell: Cell, seeds: Sequence[int]) -> dict[str, bytes | Path]:
    """Path below the run's artifacts -> content: configuration, prompts, accuracies of clients."""
    files: dict[str, bytes | Path] = {
        "config/run.yaml": yaml.safe_dump(plain(config.as_dict(cell.run)), sort_keys=False).encode()
    }
    histories = {s: store.history(cell, s) for s in seeds}
    files["clients.csv"] = _clients_csv(histories)
    for seed in seeds:
        prompts = store.place(cell, seed) / "prompts.safetensors"
        if prompts.is_file():
            files[f"prompts/seed={seed}.safetensors"] = prompts
    return files


def study_files(store: Store) -> dict[str, bytes | Path]:
    """The report, its tables, the best cell's prompts as a model, and the study without the server's address."""
    names = ("report.html", "table.md", "table.tex", "table.csv", "results.csv")
    paths = [store.folder / name for name in names]
    files: dict[str, bytes | Path] = {str(p.relative_to(store.folder)): p for p in paths if p.is_file()}
    return {**files, **_model(store), "study.yaml": portable(store).encode()}


_MLMODEL = """\
flavors:
  python_function:
    loader_module: fpl_tune.serve
    data: prompts
    python_version: {python}
    env: {{virtualenv: python_env.yaml}}
"""


def _model(store: Store) -> dict[str, bytes | Path]:
    """The best cell's prompts as a model of MLflow, which `mlflow.pyfunc.load_model` serves; empty without prompts."""
    choice = choose(store.frame(), store.cells(), store.spec(), store.spec().report.rule)
    if choice is None or len(choice.cells) > 1:
        return {}
    places = {seed: store.place(choice.cell, seed) / "prompts.safetensors" for seed in store.seeds(choice.cell)}
    files: dict[str, bytes | Path] = {
        f"model/prompts/prompts-seed{seed}.safetensors": path for seed, path in places.items() if path.is_file()
    }
    if not files:
        return {}
    python, own = platform.python_version(), importlib.metadata.version("fpl-tune")
    run = yaml.safe_dump(plain(config.as_dict(choice.cell.run)), sort_keys=False)
    return files | {
        "model/MLmodel": _MLMODEL.format(python=python).encode(),
        "model/python_env.yaml": f"python: {python}\ndependencies: [fpl-tune=={own}]\n".encode(),
        "model/prompts/run.yaml": run.encode(),
    }


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
