"""The third section: learning curves, all fields at once, what matters, the ablation path, what accuracy costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis, methods
from fpl_tune.analysis.explain import constant
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import axis_name, counted, figure, numeric, plus_minus, quantity, short, upper
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, Table, plain_table
from fpl_tune.report.charts import Spec, layer, measured, names
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import compared, judged, study_file
from fpl_tune.search.ablation import Step, ablation_paths
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import VAL
from fpl_tune.study.selection import setting_of

SHOWN = 8
"""Cells drawn at once; of more, those with the highest validation accuracy."""
MODEL_FROM = 30
"""Trials from which on Optuna's models of the whole space are fitted."""
_FIELDS = 10
"""Fields along which all cells are drawn."""


def learning(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How fast is it learned?"""
    cells = facts.notable(SHOWN)
    part = Part("Learning curves", [f"Mean and standard deviation over seeds.{_left_out(facts, cells)}"])
    for name in dict.fromkeys([VAL, facts.metric, *facts.whole]):
        curves = [(facts.name(cell), cell, curve) for cell in cells if len(curve := facts.curve(cell, name)) > 1]
        if curves:
            file = {VAL: "learning_validation", facts.metric: "learning"}.get(name, f"learning_{_file(name)}")
            only = f" of {curves[0][0]}, the only one that was evaluated more than once" if len(curves) == 1 else ""
            part.charts[file] = by_round(facts, curves, name), f"{upper(quantity(name, unit=False))}{only}."
    several = sorted(set(facts.extra) - set(facts.whole))
    ranked = [*([facts.best] if facts.best else []), *cells]
    for group, found in itertools.groupby(several, key=lambda name: name.partition("/")[0]):
        parts = list(found)
        cell = next((c for c in ranked if len(facts.curve(c, parts[0])) > 1), None)
        if cell is not None:
            curves = [(name.split("/")[-2], cell, facts.curve(cell, name)) for name in parts]
            drawn = by_round(facts, curves, f"{group}/{parts[0].rpartition('/')[2]}")
            part.charts[f"learning_{group}_parts"] = drawn, f"{facts.name(cell)}, {group} by part."
    return part if part.charts else None


def _left_out(facts: Facts, cells: Sequence[Cell]) -> str:
    """Names the finished cells that are not drawn."""
    kept = {cell.id for cell in cells}
    left = [facts.name(cell) for cell in facts.finished if cell.id not in kept]
    if not left:
        return ""
    more = f" and {len(left) - 6} more" if len(left) > 6 else ""
    return f" Left out, since validation puts {'them' if len(left) > 1 else 'it'} lower: {'; '.join(left[:6])}{more}."


def _file(metric: str) -> str:
    return metric.replace("/", "_")


def by_round(facts: Facts, curves: Sequence[tuple[str, Cell, pd.DataFrame]], metric: str) -> Spec:
    """A metric by round, mean over seeds with their standard deviation: a series for each name, cell, curve."""
    rows: list[dict[str, Any]] = []
    for name, cell, curve in curves:
        seeds, spread = ", ".join(map(str, curve.columns)), curve.std(axis=1, ddof=1).fillna(0.0)
        rows += [
            {"round": at, "mean": mean, "low": mean - spread[at], "high": mean + spread[at], "series": name,
             "label": name, "number": facts.keys[cell.id], "seeds": seeds, "best": False}
            for at, mean in curve.mean(axis=1).items()
        ]  # fmt: skip
    alone = len({cell.id for _, cell, _ in curves}) == 1
    ranks = {name: i if alone else facts.ages[cell.id] for i, (name, cell, _) in enumerate(curves)}
    return charts.lines(
        rows, charts.number("round", "communication round", "d"), measured(metric), charts.colours(ranks)
    )


def explore(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Which combinations of values are good?"""
    if len(facts.own) < 4 or len(facts.axes) < 2:
        return None
    text = "Draw a rectangle over an axis: the table and all charts of cells keep the lines that pass through it."
    caption = "One line per cell, coloured by validation accuracy."
    return Part("All fields at once", [text], {"parallel": (parallel(facts), caption)})


def fields(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How does validation accuracy depend on each field that varies?"""
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    if len(facts.own) < 4 or not (len(axes) > 2 or facts.searched):
        return None
    part = Part("Along each field", [f"One point per cell; the ring marks the best; {facts.basis}."])
    for axis in axes[:_FIELDS]:
        x, y = charts.place(facts, axis, facts.column(axis)), measured(VAL, "validation")
        drawn = charts.dots(x, y, charts.cell_tips(facts, axis), keep="datum.role != 'reference'")
        part.charts[f"slice_{short(axis)}"] = drawn, f"By {axis}."
    return part


def parallel(facts: Facts) -> Spec:
    """Parallel coordinates: every cell as a line over the fields that vary, validation accuracy and the metric.

    The data hold a row per cell with its places on all axes, from 0 to 1, which the chart unfolds. A rectangle drawn
    with the pointer is the parameter `brush`, by which the page filters.
    """
    columns = {short(axis): (facts.table[axis], facts.logarithmic(axis)) for axis in facts.axes}
    columns |= {quantity(VAL, unit=False): (facts.table["val"], False)}
    columns |= {quantity(facts.metric, unit=False): (facts.table["mean"], False)}
    cells = [cell for cell in facts.own if not math.isnan(facts.table.loc[cell.id, "val"])]
    places: dict[str, list[float | None]] = {cell.id: [] for cell in cells}
    labels = list[dict[str, Any]]()
    for axis, (column, log) in columns.items():
        own = column.loc[[cell.id for cell in cells]]
        known = [v for v in dict.fromkeys(own) if v is not None and v == v]
        if numeric(known):
            ends = np.array([min(known), max(known)], float)
            low, high = np.log(ends) if log else ends
            at = {v: ((np.log(v) if log else v) - low) / ((high - low) or 1.0) for v in known}
            labelled = dict.fromkeys((min(known), max(known)))
        else:
            at = {v: i / max(len(known) - 1, 1) for i, v in enumerate(known)}
            labelled = dict.fromkeys(known[int(i)] for i in np.linspace(0, len(known) - 1, min(len(known), 12)))
        share = axis.endswith("accuracy")
        text = {v: f"{100 * v:.1f} %" if share else f"{v:.3g}" if isinstance(v, float) else shown(v) for v in labelled}
        labels += [{"axis": axis, "place": at[v], "text": text[v]} for v in labelled]
        for cell in cells:
            places[cell.id].append(round(float(at[own[cell.id]]), 4) if own[cell.id] in at else None)
    rows = [{"number": facts.keys[cell.id], "place": places[cell.id]} for cell in cells]
    colour = measured(VAL, "validation")
    x: Spec = {"field": "axis", "type": "nominal", "sort": list(columns), "title": None,
               "axis": {"labelAngle": 0, "orient": "top", "grid": True, "domain": False, "labelLimit": 130},
               "scale": {"type": "point", "padding": 0.4}}  # fmt: skip
    y: Spec = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.04, 1.04]}}
    shade = {**colour, "legend": {"type": "gradient", "format": colour["axis"]["format"], "title": colour["title"],
                                  "gradientLength": 160}}  # fmt: skip
    seen = {"x": x, "y": y, "color": shade, "opacity": charts.visible(0.8, legend=False)}
    said = charts.tips(names("label", "cell"), names("axis", "axis"), colour)
    unfold = [
        {"calculate": f"{list(columns)}", "as": "axis"}, {"flatten": ["place", "axis"]},
        {"filter": "isValid(datum.place)"},
        {"lookup": "number", "from": {"data": charts.CELLS, "key": "number", "fields": ["label", "validation"]}},
    ]  # fmt: skip
    points = layer("point", {**seen, "tooltip": said}, size=26)
    points["params"] = [{"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}]
    order = {"calculate": f"indexof({list(columns)}, datum.axis)", "as": "order"}
    line = layer("line", {**seen, "detail": {"field": "number"}, "order": {"field": "order"}}, strokeWidth=1.4)
    text = layer("text", {"x": x, "y": y, "text": {"field": "text"}}, labels, align="left", dx=5, fontSize=11)
    return charts.chart(
        rows,
        {**line, "transform": [*unfold, order]},
        {**points, "transform": unfold},
        text,
        height=320,
        **charts.KEPT,
    )


def pairs(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How do two axes act together?"""
    taken = {axis: [v for v in dict.fromkeys(map(shown, facts.table[axis].dropna()))] for axis in facts.axes}
    fitting = [axis for axis in facts.axes if 1 < len(taken[axis]) <= 40]
    fitting.sort(key=lambda axis: not numeric(facts.table[axis]))
    found = next((pair for pair in itertools.combinations(fitting, 2) if _together(facts, *pair)), None)
    if found is None:
        return None
    rows, columns = sorted(found, key=lambda axis: len(taken[axis]))
    split = next((axis for axis in facts.axes if axis not in found and 1 < len(taken[axis]) <= 4), None)
    over = len(facts.axes) - 2 - (split is not None)
    caption = f"Mean over seeds{' and over the other axes' if over else ''}; {facts.basis}."
    part = Part(f"Validation accuracy by {short(rows)} and {short(columns)}")
    for i, value in enumerate(taken[split] if split else [""]):
        cells = [c for c in facts.own if split is None or facts.reference.place(c).get(split) == value]
        if len(facts.table.loc[[c.id for c in cells], ["mean", rows, columns]].dropna()):
            name = "heat_map" if i == 0 else f"heat_map_{i + 1}"
            said = f"{short(split)}={value}. {caption}" if split else caption
            part.charts[name] = heat_map(facts, rows, columns, cells), said
    return part


def _together(facts: Facts, a: str, b: str) -> bool:
    """Whether cells fill most of the grid of two axes: a search draws values of its own, or no such pair at all."""
    both = facts.table.loc[[cell.id for cell in facts.own], [a, b, "mean"]].dropna()
    one, other, filled = both[a].nunique(), both[b].nunique(), len(both.drop_duplicates([a, b]))
    return min(one, other) > 1 and 2 * max(one, other) <= len(both) and 2 * filled > one * other


def heat_map(facts: Facts, rows: str, columns: str, cells: Sequence[Cell]) -> Spec:
    """Validation accuracy of some cells over two axes; where others vary too, the mean over them."""
    every = facts.table.loc[[cell.id for cell in facts.own], "val"]
    table = facts.table.loc[[cell.id for cell in cells]].dropna(subset=["val"])
    keys = {axis: [shown(v) for v in _ordered(table[axis])] for axis in (rows, columns)}
    if len(keys[columns]) > max(len(keys[rows]), 12):
        rows, columns = columns, rows
    grouped = table.assign(r=table[rows].map(shown), c=table[columns].map(shown)).groupby(["r", "c"], sort=False)
    means = grouped[["val", "mean"]].mean().reset_index().rename(columns={"val": "validation"})
    up = list(reversed(keys[rows])) if numeric(_ordered(table[rows])) else keys[rows]
    x, y = names("c", axis_name(columns), keys[columns]), names("r", axis_name(rows), up)
    value, (low, high) = measured(VAL, "validation"), (every.min(), every.max())
    place = {"x": {**x, "axis": {"labelAngle": -45 if means["c"].nunique() > charts.BESIDE else 0}}, "y": y}
    colour = {**value, "scale": {"domain": [low, high]}, "legend": {"format": value["axis"]["format"]}}
    layers = [layer("rect", {**place, "color": colour, "tooltip": charts.tips(x, y, value)})]
    if len(means) <= 400:
        middle = f"datum['validation'] < {(low + high) / 2}"
        ink = {"condition": {"test": middle, "value": "white"}, "value": "black"}
        text = {"field": "validation", "format": ".1~%"}
        layers.append(layer("text", {**place, "text": text, "color": ink}, fontSize=11))
    return charts.chart(means.to_dict("records"), *layers, height={"step": 26})


def _ordered(values: Iterable[Any]) -> list[Any]:
    unique = [v for v in dict.fromkeys(values) if v is not None and v == v]
    return sorted(unique) if numeric(unique) else unique


def matters(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Which hyper-parameters matter, alone and together?"""
    found = importance(facts)
    if len(found) < 2:
        return None
    known, unknown = found.dropna(subset=["share"]), found[found["share"].isna()]
    if known.empty and found["method"].nunique() > 1:
        return None  # a comparison of methods, not of fields
    part = Part("What matters")
    if len(known):
        spreads = dict(zip(known["method"], known["spread"], strict=True))
        varies = ", ".join(f"{figure(spread, VAL)} ({name})" for name, spread in spreads.items())
        part.texts.append(
            "Share of the variance of the validation accuracy over cells that a field explains alone, in the cells in "
            "which it exists: exact in complete grids, else estimated (ω²). The standard deviation over cells, in "
            f"points: {varies}."
        )
        top = known.head(20)
        bars = [{"name": f"{m}: {short(f)}", "value": 100 * share}
                for m, f, share in zip(top["method"], top["field"], top["share"], strict=True)]  # fmt: skip
        of = counted(top["cells"].max(), "cell")
        of = of if top["cells"].min() == top["cells"].max() else f"{top['cells'].min()} to {of}"
        caption = f"Each field over the {of} in which it exists; validation accuracy, {facts.basis}."
        part.charts["importance"] = charts.bars(bars, "share of variance explained (%)"), caption
    said = {note: [short(str(f)) for f in rows["field"]] for note, rows in unknown.groupby("note", sort=False)}
    part.texts += [f"Nothing is said of {', '.join(dict.fromkeys(of))}: {note}." for note, of in said.items()]
    if "fanova" in found and len(modelled := found.dropna(subset=["fanova"])):
        rows = [[f"{r['method']}: {short(r['field'])}", f"{100 * r['fanova']:.1f}", f"{100 * r['ped_anova']:.1f}"]
                for r in modelled.to_dict("records")]  # fmt: skip
        part.tables.append(plain_table(["field", "fANOVA (%)", "PED-ANOVA (%)"], rows))
    return part


def cells_of(facts: Facts) -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Per method, a row per finished cell (columns `value` and the fields that vary) and these fields."""
    found: dict[str, tuple[pd.DataFrame, list[str]]] = {}
    own = [cell for cell in facts.own if not np.isnan(facts.table.loc[cell.id, "val"])]
    for method in dict.fromkeys(map(_method, own)):
        cells = [cell for cell in own if _method(cell) == method]
        varied = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "method"))
        rows = [
            {"cell": c.id, "value": facts.table.loc[c.id, "val"], **{f: facts.scalar(c, f) for f in varied}}
            for c in cells
        ]
        found[method] = pd.DataFrame(rows), varied
    return found


def importance(facts: Facts) -> pd.DataFrame:
    """Explains the validation accuracy by single fields; see `analysis.one_way`.

    Returns:
        Its rows with a column `method`. Where at least `MODEL_FROM` trials have all fields, also Optuna's `fanova` and
        `ped_anova`.
    """
    parts = []
    for method, (cells, varied) in cells_of(facts).items():
        one = analysis.one_way(cells, varied, noise=_noise(facts, cells)).assign(method=method)
        drawn = facts.searched and len(cells) >= MODEL_FROM and not cells[varied].isna().to_numpy().any()
        if drawn and not constant(cells["value"].tolist()):
            from fpl_tune.search.importance import optuna_importance  # imports scikit-learn

            searched = {param.name: param.distribution for part in facts.parts for param in part.space.params}
            one = one.merge(optuna_importance(cells, varied, searched), on="field", how="left")
        parts.append(one)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _noise(facts: Facts, cells: pd.DataFrame) -> float:
    """Mean squared standard error of the cells' validation accuracies; 0 where one seed ran."""
    frame = facts.long()
    errors = analysis.scores(frame.loc[frame["cell"].isin(cells["cell"])])["error"]
    return float((errors**2).mean()) if errors.notna().any() else 0.0


def _method(cell: Cell) -> str:
    """The method as the study names it: `fedprox`, though that is a wrapper around another one."""
    named = cell.varied.get("method")
    return shown(named) if named is not None else _written(methods.as_dict(cell.run.method))


def _written(node: Mapping[str, Any]) -> str:
    inner = node.get("inner")
    return f"{node['name']}({_written(inner)})" if isinstance(inner, Mapping) else str(node["name"])


def ablation(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Which of the changes from the published point to the best cell make the difference?"""
    if not facts.ablated:
        return None
    part = Part("From the published point to the best cell")
    try:
        paths = ablation_paths(facts.spec, facts.store)
    except ConfigError as problem:
        part.texts.append(str(problem))
        return part
    part.texts.append(
        "One field changes in each row, in the order of the share of variance that it explains alone on validation; "
        "every row is a run of its own. Differences are to the row above, paired by seed, with 95 % "
        f"intervals that are corrected for the number of rows; {facts.basis}."
    )
    part.tables = [_path(facts, path) for path in paths]
    if missing := sum(not facts.store.seeds(step.cell) for path in paths for step in path):
        part.texts.append(f"{counted(missing, 'step')} without results.")
        part.code.append(f"fpl-tune study {study_file(facts)} ablate=best")
    return part


def _path(facts: Facts, path: list[Step]) -> Table:
    """A row per step, and the whole path in the last one."""
    cells = [step.cell for step in path]
    rows = [(cell.id, seed, value) for cell in {cell.id: cell for cell in cells}.values()
            for seed, value in facts.by_seed(cell, facts.metric).items()]  # fmt: skip
    frame = pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))
    present = set(frame["cell"])
    steps = {cell.id: before.id for before, cell in itertools.pairwise(cells) if {before.id, cell.id} <= present}
    tests = compared(facts, steps, frame).to_dict("index")
    body = []
    for i, step in enumerate(path):
        then, now = cells[i - 1].varied if i else {}, step.cell.varied
        change = ", ".join(f"{short(name)}: {_value(then, name)} → {_value(now, name)}" for name in step.fields)
        reached = [figure(facts.spread(step.cell, VAL)[0], VAL),
                   plus_minus(*facts.spread(step.cell, facts.metric), facts.metric)]  # fmt: skip
        gap = judged(facts, tests[step.cell.id]) if step.cell.id in tests else ["", "", ""]
        body.append([str(i), change or "published point", *reached, *gap])
    if {cells[0].id, cells[-1].id} <= present and len(path) > 2:
        (whole,) = compared(facts, {cells[-1].id: cells[0].id}, frame).to_dict("records")
        body.append(["", "all of them", "", "", *judged(facts, whole)])
    header = ["step", "change", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              "difference", "95 % interval", "verdict"]  # fmt: skip
    return plain_table(header, body)


def _value(varied: dict[str, object], name: str) -> str:
    return shown(varied[name]) if name in varied else "unset"


def costs(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What does accuracy cost in bytes?"""
    table = facts.table.dropna(subset=["val", "mean", "bytes"])
    if table["bytes"].nunique() < 2:
        return None
    settings = [setting_of(facts.by_id[str(key)], facts.gridded) for key in table.index]
    groups = [part for _, part in table.groupby(settings, sort=False)]
    fronts = [[str(part.index[i]) for i in charts.pareto_front(part["bytes"].tolist(), part["val"].tolist())]
              for part in groups]  # fmt: skip
    of = " of cells with the same data, partition and protocol" if len(groups) > 1 else ""
    caption = (
        f"Bytes up and down of all clients over the whole run. A line is a Pareto set{of}: none that is cheaper has a "
        f"higher validation accuracy. {facts.basis}."
    )
    return Part("Accuracy against bytes", charts={"pareto": (pareto(facts, fronts), caption)})


def pareto(facts: Facts, fronts: Sequence[Sequence[str]]) -> Spec:
    """Validation accuracy against bytes, with the fronts of the cells that nothing cheaper reaches."""
    sent = facts.table["bytes"].dropna() / 1e6
    least = sent[sent > 0].min()
    x = charts.number("MB", "sent and received in the whole run, MB per seed", ".4~g")
    if sent.max() > 50 * least:
        x["scale"] = {"type": "symlog", "constant": least}  # some send nothing
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(sent.max())) + 1)
        x["axis"]["values"] = [0.0, *(10.0**power for power in powers)]
    steps = [{"setting": i, "MB": sent[key], "validation": facts.table.loc[key, "val"]}
             for i, front in enumerate(fronts) for key in front]  # fmt: skip
    y = measured(VAL, "validation")
    line = layer("line", {"x": x, "y": y, "detail": {"field": "setting"}}, steps, interpolate="step-after",
                 color="currentColor", strokeWidth=1)  # fmt: skip
    return charts.dots(x, y, charts.cell_tips(facts), [line], height=340)
