"""Values of ours that a test needs in the records."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune.findings.findings import Findings
from fpl_tune.report import tuned
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import make_result, rules_of
from fpl_tune.study.schema import Effective
from fpl_tune.study.store import Store

from ..conftest import Asked, MakeStore, drawn_history, there

SEARCH = """seeds: 3
search:
  {sampler: random, trials: 14, confirm: 0, space: {protocol.epochs: [1, 2], protocol.participation: [0.5, 1.0]}}
"""


def typeset(folder: Path, *names: str) -> None:
    """Typesets tables of a folder by LaTeX, with booktabs and nothing else."""
    if (latex := shutil.which("pdflatex")) is None:
        pytest.skip("no pdflatex: Debian's texlive-latex-recommended has it")
    tables = "\n\n".join(rf"\input{{{name}}}" for name in names)
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{tables}\end{{document}}"
    (folder / "paper.tex").write_text(text)
    done = subprocess.run([latex, "-interaction=nonstopmode", "-halt-on-error", "paper"], cwd=folder,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (folder / "paper.pdf").stat().st_size > 0


def findings_of(store: Store, **asked: Any) -> Findings:
    """What is said of a study, without what is damaged."""
    store.check()
    return Findings(store.spec(), store.table(), **asked)


def named(trial: Cell) -> str:
    """A trial in a sentence: its values or, if there are more than three, its number."""
    assert trial.suggestion is not None
    fields = {name.rpartition(".")[2]: f"{value:.3g}" for name, value in trial.suggestion.params.items()}
    values = ", ".join(f"{ {'lam': 'λ', 'mu': 'μ'}.get(name, name) } = {value}" for name, value in fields.items())
    return f"{values} (trial {trial.trial_number})" if len(fields) <= 3 else f"trial {trial.trial_number}"


def chosen_values(findings: Findings) -> dict[str, dict[str, list[str]]]:
    """The table of chosen values: method -> field -> texts by setting."""
    method, chosen = "", dict[str, dict[str, list[str]]]()
    for row in tuned.values(findings).rows:
        first, name, *texts = (td.text for td in row.cells)
        method = first or method
        chosen.setdefault(method, {})[name] = texts
    return chosen


def store_of(findings: Findings) -> Store:
    """The store that findings are of."""
    folder = findings.table.folder
    return Store(folder.parent, folder.name)


def put(store: Store, cell: Cell, seed: int, **changes: Any) -> None:
    """Stores the result of a seed again with changed fields."""
    store.put(cell, seed, replace(there(store.result(cell, seed)), **changes))


def write(store: Store, cell: Cell, seed: int, history: list[Any]) -> None:
    """Stores another history of a seed."""
    put(store, cell, seed, records=lambda: history, rules=rules_of(history))


def amend(store: Store, **figures: Any) -> None:
    """Adds figures to the last record of every seed; a callable is given the cell."""
    for cell in store.cells():
        for seed in store.seeds(cell):
            history = store.history(cell, seed)
            history[-1] |= {name.replace("__", "/"): f(cell) if callable(f) else f for name, f in figures.items()}
            write(store, cell, seed, history)


def reach(store: Store, level: Callable[[Cell], float], noise: Callable[[Cell], float] = lambda cell: 0.001) -> None:
    """Gives every seed the accuracy of a known truth: a cell's level, and noise of a known standard deviation.

    Validation and test accuracies are alike, so that the best cell is the highest one.
    """
    for cell in store.cells():
        for seed in store.seeds(cell):
            drawn = np.random.default_rng([cell.number, seed]).normal(0, noise(cell))
            value = float(np.clip(level(cell) + drawn, 0, 1))
            history = store.history(cell, seed)
            for kind in ("val", "test"):
                clients = np.clip(value + 0.02 * np.array([-1.0, 1.0, -0.5, 0.5]), 0, 1)
                history[-1] |= {f"{kind}/acc_mean": value, f"clients/{kind}": clients.tolist()}
            write(store, cell, seed, history)


TRADED = """seeds: 3
axes: {method: [promptfl, coop]}
references: [{method: zeroshot}]
search: {sampler: random, trials: 5, objectives: [val/acc_mean, comm/total_bytes], only: [optim.lr]}
"""
Made = tuple[float, float]
"""Accuracy and bytes."""


@pytest.fixture
def traded(make_store: MakeStore) -> Callable[..., Findings]:
    """Makes a finished search for accuracy and bytes: `value` gives those of a cell and a seed, of trials and of what
    confirms their fronts on seeds 4 to 6. Trials are named by their number in the search and their method."""

    def make(
        value: Callable[[Cell, int], Made],
        body: str = TRADED,
        confirm: Sequence[int] = (4, 5, 6),
        flops: Callable[[Cell], float] = lambda cell: 1e9,
    ) -> Findings:
        store = make_store(body=body, name="traded", fill=lambda cell, seed: False)
        asked = Asked(store.spec())

        def fill(cell: Cell, seeds: Sequence[int]) -> None:
            for seed in seeds:
                accuracy, sent = value(cell, seed)
                history = drawn_history(seed, 0.5, rounds=4, clients=4)
                history[-1] |= {"val/acc_mean": accuracy, "test/acc_mean": accuracy}
                history[-1] |= {"comm/up_bytes": sent, "comm/down_bytes": 0.0, "cost/client_flops": flops(cell)}
                store.put(cell, seed, make_result("done", history, split_hash=f"split{seed}"))

        cells = [*asked.search.references, *asked.all()]
        effective = Effective(halving=False, spaces=asked.search.files, confirm=[*confirm])
        store.begin(store.spec(), cells, effective=effective)
        for cell in cells:
            fill(cell, confirm if confirm and cell.role == "reference" else (1, 2, 3))
        rows = [*store.table().rows.values()]
        parts = asked.search.parts if confirm else []
        confirming = [cell for part in parts for cell in part.confirmed([r for r in rows if part.holds(r.cell)])]
        store.begin(store.spec(), [*cells, *confirming], effective=effective)
        for cell in confirming:
            fill(cell, confirm)
        store.end(complete=True, exhausted=())
        return findings_of(store)

    return make


@pytest.fixture
def trials(make_store: MakeStore) -> Callable[..., Findings]:
    """Makes a finished search: the level of a trial by its number in the search, and whether it was published."""

    def make(
        level: Callable[[Cell, bool], float],
        body: str = SEARCH,
        early: Callable[[int], bool] = lambda number: False,
        overrides: Sequence[str] = (),
    ) -> Findings:
        store = make_store(overrides, body=body, name="search", fill=lambda cell, seed: False)
        asked = Asked(store.spec())
        cells = [*asked.search.references, *asked.all()]
        store.begin(store.spec(), cells, effective=Effective(halving=True, spaces=asked.search.files))
        store.end(complete=True, exhausted=())
        for number, cell in enumerate(cells):
            for seed in (1,) if early(number) else (1, 2, 3):
                history = drawn_history(seed, 0.5, rounds=2 if early(number) else 4, clients=4)
                result = make_result("partial" if early(number) else "done", history, split_hash=f"split{seed}")
                store.put(cell, seed, replace(result, finished=f"2024-05-01T10:00:{number:02d}+00:00"))
        reach(store, lambda cell: level(cell, cell.published))
        return findings_of(store)

    return make
