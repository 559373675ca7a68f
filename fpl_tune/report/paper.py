"""The papers' printed figures beside ours.

A study names what it answers to in `report.paper`:
    paper, table, protocol, metric: which rows of paper_targets.csv (each one given must match)
    figure: a figure instead of a table; its values are not printed, so that there is nothing to set beside ours
    cells: {label of a cell, its data set left out: printed name of the method}, where names do not say it themselves
    expected: what the paper shows, in words
    defects: known reasons for which the printed figures cannot be matched
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import label

if TYPE_CHECKING:
    from fpl_tune.config import RunSpec
    from fpl_tune.study.cells import Cell

ALIASES = {
    "zeroshot": ("zsclip", "zeroshotclip", "clipzeroshot", "clip"),
    "coop": ("coop", "localcoop", "local", "localtraining"),
    "fedprox": ("promptprox", "promptfedprox", "fedprox"),
    "fedper": ("promptper", "promptfedper", "fedper"),
    "fedamp": ("promptamp", "promptfedamp", "fedamp"),
    "finetune": ("promptflft", "promptflfinetune"),
    "feddpt": ("feddptours", "feddpt"),
}
"""Our name of a method -> how papers print it; a name that is printed as it is needs no entry."""


@dataclass(frozen=True)
class Printed:
    """One of our cells beside what the paper prints, in percent."""

    label: str
    ours: float
    spread: float
    method: str
    dataset: str
    mean: float
    std: float
    comparable: bool
    """The paper's figure is of the data set that the cell ran on, with the paper's backbone class."""

    @property
    def gap(self) -> float:
        """Ours minus printed, percentage points; nan on other data."""
        return self.ours - self.mean if self.comparable else math.nan


@dataclass(frozen=True)
class PaperBlock:
    """All that a report says about a paper."""

    source: str
    expected: str
    defects: list[str]
    rows: list[Printed]
    order: float
    """Kendall's rank correlation between our figures and the printed ones; nan below three rows."""


@cache
def targets() -> pd.DataFrame:
    """All printed figures: paper, table, protocol, dataset, method, metric, mean, std, note."""
    with files("fpl_tune.report").joinpath("paper_targets.csv").open(encoding="utf-8") as opened:
        return pd.read_csv(opened, dtype={"paper": str, "table": str, "note": str})


def beside(facts: Facts) -> PaperBlock | None:
    """What the study's paper prints beside our figures; None for a study that answers to no paper."""
    asked: dict[str, Any] = dict(facts.spec.report.paper)
    if not asked:
        return None
    printed = targets()
    for column in ("paper", "table", "protocol", "metric"):
        if asked.get(column) is not None:
            wanted = plain(str(asked[column]))
            printed = printed.loc[[plain(str(v)) == wanted for v in printed[column]]]
    if asked.get("table") is None:
        printed = printed.iloc[:0]
    named = asked.get("cells", {})
    rows = [row for cell in facts.cells if (row := _row(facts, cell, printed, named)) is not None]
    tau = pd.Series([r.ours for r in rows]).corr(pd.Series([r.mean for r in rows]), method="kendall")
    words = {"paper": "{}", "table": "Table {}", "figure": "Fig. {}", "protocol": "{}"}
    return PaperBlock(
        source=", ".join(text.format(asked[key]) for key, text in words.items() if asked.get(key) is not None),
        expected=str(asked.get("expected", "")),
        defects=[str(defect) for defect in asked.get("defects", [])],
        rows=rows,
        order=float(tau) if len(rows) > 2 else math.nan,
    )


def plain(name: str) -> str:
    """A name without case, spaces and signs, so that `OxfordPets` is `oxford_pets`."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _row(facts: Facts, cell: Cell, printed: pd.DataFrame, named: dict[str, str]) -> Printed | None:
    ours = facts.table.loc[cell.id]
    if math.isnan(ours["mean"]):
        return None
    own = next((name for name in (cell.label, _without_data(cell)) if name in named), None)
    candidates = _printed_names(cell) if own is None else {plain(str(named[own]))}
    found = printed.loc[[plain(str(name)) in candidates for name in printed["method"]]]
    found = found.loc[found["mean"].notna()]
    if found.empty:
        return None
    same = found.loc[[_same_data(str(name), cell.run) for name in found["dataset"]]]
    shown = same if len(same) else found.loc[[not _is_average(str(name)) for name in found["dataset"]]]
    shown = shown if len(shown) else found
    dataset = str(shown["dataset"].iloc[0]) if len(shown) == 1 else f"mean over {len(shown)} data sets"
    return Printed(
        label=cell.label, ours=100 * float(ours["mean"]), spread=100 * float(ours["std"]),
        method=str(shown["method"].iloc[0]), dataset=dataset, mean=float(shown["mean"].mean()),
        std=float(shown["std"].iloc[0]) if len(shown) == 1 else math.nan,
        comparable=len(same) > 0 and cell.run.clip.name != "compact",
    )  # fmt: skip


def _printed_names(cell: Cell) -> set[str]:
    """Printed names that mean the cell: its label, and its method's where it differs from others by method alone."""
    names = {plain(cell.label), plain(_without_data(cell))}
    if set(cell.varied) <= {"method", "data", "label"}:
        for name in {plain(str(cell.varied.get("method", ""))), plain(str(cell.run.method.get("name", "")))} - {""}:
            names |= {name, *ALIASES.get(name, ())}
    return names


def _without_data(cell: Cell) -> str:
    """The cell's label as it is where one data set, or one domain to hold out, is all there is."""
    return label({name: v for name, v in cell.varied.items() if name not in ("data", "partition.held_out")})


def _is_average(printed: str) -> bool:
    return "average" in printed.lower()


def _same_data(printed: str, run: RunSpec) -> bool:
    """Whether a figure is of the run's data set, and of the domain that is held out or of all."""
    base, _, domain = printed.replace(" target=", "/").partition("/")
    domains = run.partition.held_out or ["", "average"]
    return plain(base) in {plain(name) for name in (run.data.name, run.data.name + run.data.classes)} and (
        plain(domain) in {plain(name) for name in domains}
    )
