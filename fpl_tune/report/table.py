"""The second section: all cells in a table, which is also written as Markdown and CSV, and by `latex` as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import (
    counted,
    duration,
    figure,
    megabytes,
    percent,
    plus_minus,
    quantity,
    short,
    signed,
    value_text,
)
from fpl_tune.report.blocks import Part, Row, Table, Td, plain_table
from fpl_tune.report.facts import Facts, without_data
from fpl_tune.report.reference import Reference, against, judged, turned
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.results import VAL


def cells(facts: Facts, tests: pd.DataFrame) -> Part:
    """Which cell is best, and is it better than the reference?"""
    part = Part(texts=[note(facts)], tables=[table(facts, tests)])
    if apart := tests.attrs["apart"]:
        part.texts.append(f"Not compared: {counted(apart, 'cell')} on other seeds, data or partitions.")
    return part


def table(facts: Facts, tests: pd.DataFrame) -> Table:
    """A row per cell: name and accuracy first, since a narrow screen shows these alone.

    Columns from the status on are left out where all cells have the same text, or where it is the cell's name.

    Args:
        facts: the study.
        tests: what `reference.against` found.
    """
    tested = tests.to_dict("index")
    lines = [_columns(facts, cell, tested.get(cell.id, {})) for cell in facts.listed]
    fixed = [*facts.titles.values(), "status", "MB", "time", *(quantity(other, over="") for other in facts.beside)]
    kept = [
        name
        for name in lines[0]
        if name not in fixed
        or (
            len({line[name].text for line in lines}) > 1
            and any(line[name].text not in (line["cell"].text, "–") for line in lines)
        )
    ]
    rows = []
    for cell, line in zip(facts.listed, lines, strict=True):
        kind = "best" if cell.id in facts.marked else "reference" if facts.reference.holds(cell) else ""
        rows.append(Row([line[name] for name in kept], kind, facts.keys[cell.id]))
    return Table(kept, rows, main=True)


def _columns(facts: Facts, cell: Cell, test: Mapping[Any, Any]) -> dict[str, Td]:
    """Fields of a cell by column; `test` is its comparison with the reference."""
    row: dict[str, Any] = facts.table.loc[cell.id].to_dict()
    wanted = len(facts.spec.first_seeds())
    name = f"{facts.name(cell)} (published)" if cell.id in facts.published else facts.name(cell)
    compared = [f"Δ vs {facts.reference.title()}", f"{facts.sure} interval", "verdict"]
    fields = {name: Td(value_text(row[axis])) for axis, name in facts.titles.items()}
    letters = {"group": Td(facts.letters.get(cell.id, "–"))} if facts.letters else {}
    return {
        "cell": Td(name, cell.number),
        **(fields if facts.searched else {}),
        "validation accuracy (%)": Td(figure(row["val"], VAL)),
        f"{quantity(facts.metric, over='')} ± std": Td(plus_minus(row["mean"], row["std"], facts.metric)),
        **letters,
        **dict(zip(compared, map(Td, judged(facts, test) if test else "–––"), strict=True)),
        "seeds": Td(str(row["n"]) if row["n"] >= wanted else f"{row['n']} of {wanted}"),
        **{quantity(other, over=""): Td(figure(row[other], other)) for other in facts.beside},
        **fields,
        "status": Td(facts.called[cell.id]),
        "MB": Td(megabytes(row["bytes"])),
        "time": Td(duration(row["seconds"]), "" if math.isnan(row["seconds"]) else round(row["seconds"], 1)),
    }


def comparisons(facts: Facts, tests: pd.DataFrame) -> dict[str, dict[int, list[str]]]:
    """For every reference that the page offers, the texts of the compared columns by the number of the cell."""
    found = {}
    for name in facts.reference.choices():
        rows = tests if name == facts.reference.name else against(facts, Reference(facts, name))
        found[name] = {facts.keys[str(key)]: judged(facts, row) for key, row in rows.to_dict("index").items()}
    return found


def note(facts: Facts) -> str:
    """Explains the values of the table."""
    rope = f"± {facts.spec.report.rope:g} points (report.rope)"
    equal = f" A cell is equal if its interval lies within {rope}, and better or worse if it lies on one side of 0."
    bold = "The best cell (bold) is chosen by validation accuracy"
    if facts.choice is not None and facts.choice.front:
        bold = f"{facts.choice.by} (bold): no cell is best"
    elif facts.objectives != [VAL]:
        bold = f"The best cell (bold) is chosen by {facts.objectives[0]}"
    groups = " Cells that share a letter are not told apart, all pairs considered." if facts.letters else ""
    together = "hold for all rows together" if any(facts.reference.holds(cell) for cell in facts.references) else (
        "hold for the study's cells together, and for its references together"
    )  # fmt: skip
    return (
        f"± is the standard deviation over seeds; {facts.basis}. {bold}. Δ is paired over seeds; its {facts.sure} "
        f"intervals {together}, and decide the verdict.{groups}"
        f"{equal if percent(facts.metric) else ''}{f' {facts.rates}' if facts.rates else ''}"
    )


def markdown(facts: Facts, found: Table) -> str:
    """A pipe table, the best cell in bold."""
    rows = [[td.text.replace("|", "\\|") for td in row.cells] for row in found.rows]
    rows = [[f"**{text}**" for text in texts] if row.kind == "best" else texts
            for texts, row in zip(rows, found.rows, strict=True)]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in (found.header, ["---"] * len(found.header), *rows)]
    return "\n".join([*lines, "", note(facts), ""])


def winners(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """So tuned, how do the parts of the axes compare?"""
    found = facts.gains
    if len(found) < 2:
        return None
    objective = facts.objectives[0]
    rows, gaps, of = [], tests["difference"].to_dict(), quantity(facts.metric, over="")
    for gain in found:
        row = facts.table.loc[gain.best.id]
        gap = gaps.get(gain.best.id, math.nan)
        searched = label({name: value for name, value in gain.best.varied.items() if name not in facts.gridded})
        mean = plus_minus(row["mean"], row["std"], facts.metric)
        over = [signed(value, facts.metric) for value in (gap, gain.gain)]
        rows.append([gain.part, figure(facts.objective(gain.best), objective), mean, *over, searched])
    text = (
        f"The best trial of each part of the axes by {quantity(objective, unit=False)}; {facts.basis}. The published "
        "point is the best one by it of those that the search tried first."
    )
    header = ["", quantity(objective, over=""), f"{of} ± std", f"Δ vs {facts.reference.title()}",
              "Δ vs published", "found"]  # fmt: skip
    return Part("Best of each search", [text], tables=[plain_table(header, rows)])


def settings(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How do the cells rank over data sets, domains, partitions and other settings?"""
    axes = facts.settings
    rows = [
        (label({n: v for n, v in cell.varied.items() if n in axes}), without_data(cell, axes), seed, value)
        for cell in (facts.finished if axes else ())
        if cell.id not in facts.pruned
        for seed, value in facts.by_seed(cell, facts.metric).items()
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["dataset", "cell", "seed", "value"]))
    several = frame["dataset"].nunique() > 1 and frame["cell"].nunique() > 1
    if not several or not percent(facts.metric) or frame.duplicated(["dataset", "cell", "seed"]).any():
        return None
    found = analysis.mean_ranks(frame)
    number = counted(found.datasets, "setting")
    text = f"Mean ranks over {number} ({', '.join(map(short, axes))})"
    critical = found.critical_difference
    if not math.isnan(critical):
        text += f"; ranks that differ by less than {critical:.2f} (Nemenyi, 5 %) are not told apart"
    else:
        text += f"; a critical difference needs {analysis.LEAST_DATASETS} settings"
    if found.left_out:
        text += f". Not in every setting, left out: {', '.join(found.left_out)}"
    means: dict[str, float] = frame.pivot_table(index="dataset", columns="cell", values="value").mean().to_dict()
    first = float(found.ranks.iloc[0]) if len(found.ranks) else math.nan
    body = [
        [str(name), f"{rank:.2f}", figure(means[str(name)], facts.metric),
         "–" if math.isnan(critical) else "not told apart from it" if rank - first < critical else "worse"]
        for name, rank in found.ranks.items()
    ]  # fmt: skip
    header = ["cell", "mean rank", "mean over settings (%)", "against the first"]
    return Part("Over settings", [f"{text}."], tables=[plain_table(header, body)])


def each(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How does the chosen cell compare with each of the others?"""
    if facts.kind != "table" or facts.best is None or not 2 < len(facts.finished) <= 60:
        return None
    name = facts.reference.shared or facts.best.label
    if name == facts.reference.name or (found := against(facts, Reference(facts, name))).empty:
        return None
    rows: dict[str, list[dict[str, Any]]] = {}
    axes = facts.settings
    for key, row in found.to_dict("index").items():
        rows.setdefault(without_data(facts.by_id[str(key)], axes), []).append(turned(row))
    body = []
    for other, met in rows.items():
        mean = sum(row["difference"] for row in met) / len(met)
        verdicts = pd.Series([row["verdict"] for row in met]).value_counts()
        counts = ", ".join(f"{word} in {n}" for word, n in verdicts.items())
        body.append([other, *(judged(facts, met[0]) if len(met) == 1 else [signed(mean, facts.metric), "", counts])])
    text = (
        f"{name} less each of the others, paired over seeds; {facts.sure} intervals hold for all of the study's cells "
        "together."
    )
    header = ["against", "difference", f"{facts.sure} interval", "verdict"]
    return Part(f"{name} against each", [text], tables=[plain_table(header, body)])
