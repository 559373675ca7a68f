"""What the papers print, and which of it means a cell: names of methods, data sets and domains as papers write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune import methods
from fpl_tune.report import words
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

_DRAWN = {"photo": "real"}
"""Styles of the drawn world -> the domains of DomainNet that they mirror under another name."""

BEST = "best on validation"
"""What `cells` calls the study's own cell of the highest validation accuracy."""

_DATA = ("data", "partition.held_out")
"""Fields that say where a cell ran, and not what."""

_ALL = ("", "average")
"""Targets that are all domains together."""


@cache
def targets() -> pd.DataFrame:
    """All printed figures: paper, table, protocol, dataset, method, metric, mean, std, note; what is printed in minutes
    is in seconds.

    `base`, `target` and `source` are the parts of `dataset`: the data, the domain tested on (empty or `average`: all),
    and the domain of the client whose model it is (empty: all), without case, spaces and signs.
    """
    with files("fpl_tune.report").joinpath("paper_targets.csv").open(encoding="utf-8") as opened:
        found = pd.read_csv(opened, dtype={"paper": str, "table": str, "note": str})
    found.loc[found["method"].str.endswith("(minutes)"), ["mean", "std"]] *= 60
    places = [_place(str(name)) for name in found["dataset"]]
    return found.assign(**{part: [place[i] for place in places] for i, part in enumerate(("base", "target", "source"))})


def _place(dataset: str) -> tuple[str, str, str]:
    base, _, rest = dataset.replace(" target=", "/").partition("/")
    target, _, source = rest.removesuffix(" (unseen)").partition(" source=")
    return plain(base), plain(target), plain(source)


def figures_of(asked: Mapping[str, Any], metric: str) -> pd.DataFrame:
    """The printed figures that a study's `report.paper` names, for a metric of ours."""
    printed = asked.get("metric")
    if isinstance(printed, Mapping):
        return named(asked, printed.get(metric, "none"))
    return named(asked, printed if words.percent(metric) else "none")


def named(asked: Mapping[str, Any], metric: str | None) -> pd.DataFrame:
    """The printed figures of the paper, table and protocol that are asked for, under the paper's name of a metric."""
    printed = targets()
    for column, value in {**{c: asked.get(c) for c in ("paper", "table", "protocol")}, "metric": metric}.items():
        if value:
            printed = printed.loc[[plain(str(v)) == plain(str(value)) for v in printed[column]]]
    return printed


def within(asked: Mapping[str, Any], text: str) -> tuple[str, str | None]:
    """A cell's label without the start that says its protocol, and that protocol; None where there is one for all."""
    for start, protocol in asked.get("protocols", {}).items():
        if text.startswith(f"{start}, "):
            return text.removeprefix(f"{start}, "), str(protocol)
    return text, None


def plain(name: str) -> str:
    """A name without case, spaces and signs, so that `OxfordPets` is `oxford_pets`."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def of_cell(printed: pd.DataFrame, cell: Cell, asked: Mapping[str, Any], own: str | None = None) -> pd.DataFrame:
    """The figures that are printed of a cell's method under its protocol, on whatever data.

    own: what `cells` calls it; None: its label, if it is there at all.
    """
    names = asked.get("cells", {})
    own = own or next((name for name in (cell.label, without_data(cell)) if name in names), None)
    rest, protocol = within(asked, without_data(cell))
    candidates = {*printed_names(cell), plain(rest)} if own is None else {plain(str(names[own]))}
    if protocol is not None:
        printed = printed.loc[[plain(str(v)) == plain(protocol) for v in printed["protocol"]]]
    elif asked.get("protocols"):
        return printed.iloc[:0]
    return called(printed, candidates)


def called(printed: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The figures of methods of these plain names; what could not be read is left out."""
    found = printed.loc[[plain(str(name)) in names for name in printed["method"]]]
    return found.loc[found["mean"].notna()]


def printed_names(cell: Cell) -> set[str]:
    """Printed names that mean the cell: its label, and its method's where it differs from others by method alone."""
    names = {plain(cell.label), plain(without_data(cell))}
    if set(cell.varied) <= {"method", "data", "label"}:
        for name in {plain(str(cell.varied.get("method", ""))), plain(methods.name_of(cell.run.method))} - {""}:
            names |= {name, *ALIASES.get(name, ())}
    return names


def without_data(cell: Cell, *more: str) -> str:
    """The cell's label as it is where one data set, or one domain to hold out, is all there is; without `more` too."""
    return label({n: v for n, v in cell.varied.items() if n not in (*_DATA, *more)})


def choices(cells: Sequence[Cell], asked: Mapping[str, Any]) -> list[list[Cell]]:
    """The cells of each data set and protocol: those among which a best one is chosen."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        place = [cell.varied.get(name) for name in _DATA]
        found.setdefault(repr((place, within(asked, without_data(cell))[1])), []).append(cell)
    return list(found.values())


def over_sets(found: pd.DataFrame, cells: Sequence[Cell]) -> tuple[pd.DataFrame, list[Cell]]:
    """What is printed of a method's average over data sets, and its cells on those that are printed one by one.

    Both are empty unless there is a cell, and no more than one, for each of these data sets.
    """
    whole = found.loc[(found["source"] == "") & found["target"].isin(_ALL)]
    average = whole["base"].str.contains("average")
    ran = [[cell for cell in cells if base in _bases(cell.run)] for base in whole.loc[~average, "base"].unique()]
    if all(len(same) == 1 for same in ran) and ran and average.any():
        return whole.loc[average], [cell for (cell,) in ran]
    return found.iloc[:0], []


def on_data(printed: pd.DataFrame, run: RunSpec) -> tuple[pd.DataFrame, bool]:
    """What is printed of a run's main test set, and True: of its data, all domains or the held out one.

    Where the clients' own domains are tested on and the paper prints no figure of all, it is those of each domain that
    has clients. For other data: of domains of the same name, else of all data sets, and False.
    """
    whole = printed.loc[printed["source"] == ""]
    own = run.partition.evaluation == "domains"  # so that nothing held out is in the main test set
    held = [] if own else run.partition.held_out
    there = whole.loc[whole["target"].isin([plain(name) for name in held or _ALL])]
    if len(same := there.loc[there["base"].isin(_bases(run))]):
        return same, True
    if len(alike := whole.loc[whole["target"].isin(_domains(held))]):
        return alike, False
    single = whole.loc[~whole["base"].str.contains("average")]
    sets = single.loc[single["target"].isin(_ALL)]
    if own and sets.empty:
        single = single.loc[~single["target"].isin(_domains(run.partition.held_out))]
        if len(same := single.loc[single["base"].isin(_bases(run))]):
            kept = {plain(name) for name in run.data.domains or same["target"]}
            return same.loc[same["target"].isin(kept)], True
    return next((rows for rows in (sets, single) if len(rows)), whole), False


def of_domain(printed: pd.DataFrame, run: RunSpec, domain: str, *, client: bool) -> tuple[pd.DataFrame, bool]:
    """What is printed of one domain of a run's data, and whether it is of the same data; empty where there is none.

    client: the models are those of the domain's own clients, tested on the domain that is held out if there is one.
    """
    held = run.partition.held_out if client else []
    column, rest = ("source", printed) if held else ("target", printed.loc[printed["source"] == ""])
    for base in (True, False):
        names = {plain(domain)} if base else _domains([domain])
        found = rest.loc[rest[column].isin(names) & (rest["base"].isin(_bases(run)) if base else True)]
        if held:
            found = found.loc[found["target"].isin([plain(name) for name in held] if base else _domains(held))]
        if len(found):
            return found, base
    return printed.iloc[:0], False


def _bases(run: RunSpec) -> set[str]:
    return {plain(run.data.name), plain(run.data.name + run.data.classes)}


def _domains(domains: list[str]) -> set[str]:
    return {name for domain in domains for name in (plain(domain), _DRAWN.get(plain(domain), plain(domain)))}
