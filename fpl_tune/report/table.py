"""The second section: all cells in a table, which is also written as Markdown and CSV, and by `latex` as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    some,
)
from fpl_tune.findings.choice import sign
from fpl_tune.findings.comparisons import TREND, Comparisons, compare, turned
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.names import without_data
from fpl_tune.report.panels import FIXED, PageTable, Panel, TableRow, Td, judged, plain_table
from fpl_tune.study.cells import Cell, field_text
from fpl_tune.study.results import VAL


def cells(findings: Findings, comparisons: Comparisons) -> Panel:
    """Which cell is best, and is it better than the reference?"""
    panel = Panel(texts=[note(findings, comparisons)], tables=[table(findings, comparisons)])
    if left := comparisons.not_compared:
        panel.texts.append(f"Not compared: {counted(left, 'cell')} on other seeds, data or partitions.")
    return panel


def table(findings: Findings, comparisons: Comparisons, shown: Sequence[Cell] | None = None) -> PageTable:
    """A row per cell: name and accuracy first, since a narrow screen shows these alone.

    Columns from the status on are left out where all cells have the same text, or where it is the cell's name.

    Args:
        findings: the study.
        comparisons: its comparisons with the reference.
        shown: the cells; None: all of them.
    """
    tested, cells = comparisons.frame.to_dict("index"), findings.listed if shown is None else shown
    lines = [_columns(findings, cell, comparisons.reference.title, tested.get(cell.id, {})) for cell in cells]
    beside = [quantity(other, over="") for other in findings.further_metrics]
    fixed = [*findings.names.titles.values(), "status", "MB", "time", *beside]
    columns = [
        name
        for name in lines[0]
        if name not in fixed
        or (
            len({line[name].text for line in lines}) > 1
            and any(line[name].text not in (line["cell"].text, "–") for line in lines)
        )
    ]
    rows = []
    for cell, line in zip(cells, lines, strict=True):
        kind = "best" if cell.id in findings.bold else "reference" if comparisons.reference.holds(cell) else ""
        rows.append(TableRow([line[name] for name in columns], kind, findings.numbers[cell.id]))
    return PageTable(columns, rows, main=True)


def _columns(findings: Findings, cell: Cell, reference: str, test: Mapping[Any, Any]) -> dict[str, Td]:
    """Fields of a cell by column; `test` is its comparison with the reference of that title."""
    row: dict[str, Any] = findings.frame.loc[cell.id].to_dict()
    wanted = len(findings.table.design.first_seeds_of(cell))
    name = findings.names.of(cell)
    if cell.id in findings.published:
        name = f"{name} ({findings.first_point(cell)})"
    name += cell.reference_note
    shown_as = f"{quantity(findings.metric, over='')}{' ± std' * findings.sampled}"
    compared = [f"Δ vs {reference}", f"{findings.confidence} interval", "verdict"]
    fields = {name: Td(field_text(cell, axis)) for axis, name in findings.names.titles.items()}
    letters = {"group": Td(findings.letters.get(cell.id, "–"))} if findings.letters else {}
    return {
        "cell": Td(name, cell.number),
        **(fields if findings.searched else {}),
        "validation accuracy (%)": Td(figure(row["val"], VAL)),
        shown_as: Td(plus_minus(row["mean"], row["std"], findings.metric)),
        **letters,
        **dict(zip(compared, map(Td, judged(findings.metric, test) if test else "–––"), strict=True)),
        "seeds": Td(str(row["n"]) if row["n"] >= wanted else f"{row['n']} of {wanted}"),
        **{quantity(other, over=""): Td(figure(row[other], other)) for other in findings.further_metrics},
        **fields,
        "status": Td(findings.row(cell).state.value + ", outside limits" * (cell.id in findings.outside)),
        "MB": Td(megabytes(row["bytes"])),
        "time": Td(duration(row["seconds"]), "" if math.isnan(row["seconds"]) else round(row["seconds"], 1)),
    }


def texts_of(findings: Findings, offered: Mapping[str, Comparisons]) -> dict[str, dict[int, list[str]]]:
    """By reference, the texts of the compared columns by the number of the cell on the page."""
    return {
        name: {
            findings.numbers[str(key)]: judged(findings.metric, row)
            for key, row in comparisons.frame.to_dict("index").items()
        }
        for name, comparisons in offered.items()
    }


def bold(findings: Findings) -> str:
    """Which cells are bold, those of `Findings.bold`."""
    if findings.choice is not None and findings.choice.front:
        return f"{findings.choice.by} (bold): no cell is best."
    by = "validation accuracy" if findings.objectives == [VAL] else findings.objectives[0]
    return f"The best cell (bold) is chosen by {by}."


def note(findings: Findings, comparisons: Comparisons) -> str:
    """Explains the values of the table."""
    notes = f" {findings.notes}" if findings.notes else ""
    if not findings.sampled:
        return f"Means over seeds; {findings.basis}. {FIXED}{notes}"
    together = "hold for the study's cells together, and for its references together"
    if any(comparisons.reference.holds(cell) for cell in findings.references):
        together = "hold for all rows together"
    text = f"± is the standard deviation over seeds; {findings.basis}. {bold(findings)} Δ is paired over seeds; its "
    text += f"{findings.confidence} intervals {together}, and decide the verdict."
    if (comparisons.frame["verdict"] == TREND).any():
        text += f" {TREND}: the interval contains 0, but results fall significantly up to this end of the axis."
    if findings.letters:
        of = " of a setting" if len({setting for setting, *_ in findings.places}) > 1 else ""
        text += f" Cells{of} that share a letter do not differ significantly (all pairs are compared)."
    if percent(findings.metric):
        rope = f"± {findings.spec.report.rope:g} points (report.rope)"
        text += f" A cell is equal if its interval lies within {rope}, and better or worse if it lies on one side of 0."
    return f"{text}{notes}"


def markdown(tables: Sequence[PageTable], note: str) -> str:
    """Pipe tables, the best cell or the best of each column in bold, and the note."""
    lines = []
    for each in tables:
        rows = [
            [f"**{td.text}**" if td.bold or row.kind == "best" else td.text for td in row.cells] for row in each.rows
        ]
        escaped = ([text.replace("|", "\\|") for text in row] for row in (each.header, *rows))
        header, *body = (f"| {' | '.join(row)} |" for row in escaped)
        lines += [header, f"| {' | '.join(['---'] * len(each.header))} |", *body, ""]
    return "\n".join([*lines, note, ""])


def settings(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How do the cells rank over data sets, domains, partitions and other settings?"""
    rows = [
        (setting, name, seed, value)
        for setting, name, cell in findings.places
        if findings.compared(cell)
        for seed, value in findings.by_seed(cell, findings.metric).items()
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["dataset", "cell", "seed", "value"]))
    several = frame["dataset"].nunique() > 1 and frame["cell"].nunique() > 1
    if not several or not percent(findings.metric) or frame.duplicated(["dataset", "cell", "seed"]).any():
        return None
    ranking = analysis.mean_ranks(frame, higher=sign(findings.metric) >= 0)
    number = counted(ranking.datasets, "setting")
    text = f"Mean ranks over {number} ({', '.join(map(short, findings.settings))})"
    critical = ranking.critical_difference
    if not math.isnan(critical):
        text += f"; ranks that differ by less than {critical:.2f} (Nemenyi, 5 %) do not differ significantly"
    else:
        text += f"; a critical difference needs {analysis.LEAST_DATASETS} settings"
    if ranking.left_out:
        text += f". Not in every setting, left out: {some(ranking.left_out)}"
    means: dict[str, float] = frame.pivot_table(index="dataset", columns="cell", values="value").mean().to_dict()
    first = float(ranking.ranks.iloc[0]) if len(ranking.ranks) else math.nan
    body = [
        [str(name), f"{rank:.2f}", figure(means[str(name)], findings.metric),
         "–" if math.isnan(critical) else "no significant difference" if rank - first < critical else "worse"]
        for name, rank in ranking.ranks.items()
    ]  # fmt: skip
    header = ["cell", "mean rank", "mean over settings (%)", "against the first"]
    return Panel("Over settings", [f"{text}."], tables=[plain_table(header, body)])


def each(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How does the chosen cell compare with each of the others?"""
    if (
        findings.kind != "table"
        or not findings.sampled
        or findings.best is None
        or not 2 < len(findings.finished) <= 60
    ):
        return None
    name = findings.shared or findings.best.label
    if len(findings.chosen) > 1 and not findings.shared:  # settings are compared by a name that they share
        return None
    if name == comparisons.reference.name or (compared := compare(findings, name).frame).empty:
        return None
    rows: dict[str, list[dict[str, Any]]] = {}
    axes = findings.settings
    for key, row in compared.to_dict("index").items():
        rows.setdefault(without_data(findings.by_id[str(key)], axes), []).append(turned(row))
    body = []
    for other, met in rows.items():
        mean = sum(row["difference"] for row in met) / len(met)
        verdicts = pd.Series([row["verdict"] for row in met]).value_counts()
        counts = ", ".join(f"{word} in {n}" for word, n in verdicts.items())
        over = [signed(mean, findings.metric), "", counts]
        body.append([other, *(judged(findings.metric, met[0]) if len(met) == 1 else over)])
    text = (
        f"{name} less each of the others, paired over seeds; {findings.confidence} intervals hold for all of the "
        "study's cells together."
    )
    header = ["against", "difference", f"{findings.confidence} interval", "verdict"]
    return Panel(f"{name} against each", [text], tables=[plain_table(header, body)])
