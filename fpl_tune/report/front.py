"""The answer of searches with several objectives: who is ahead at which cost, and the fronts as tables and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fpl_tune.analysis.fronts import leads
from fpl_tune.core.formatting import (
    counted,
    figure,
    joined,
    plus_minus,
    quantity,
    scaled,
    some,
    unit_after,
    upper,
    with_unit,
    words,
)
from fpl_tune.core.metrics import comparable
from fpl_tune.findings.choice import sign
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.fronts import Front, fronts, interval, reaching
from fpl_tune.report import charts
from fpl_tune.report.charts import Spec
from fpl_tune.report.panels import PageTable, Panel, TableRow, Td
from fpl_tune.study.cells import Cell, field_text

_SETTINGS = 4  # that a sentence names
_WIDE = 20.0  # ratio of costs from which their axis is logarithmic


def sentence(findings: Findings) -> str:
    """Who is ahead at which cost, by the first further objective, and how many points are on the front."""
    if not any(front.points for front in fronts(findings)):
        return "No trial has completed yet."
    assert findings.choice is not None
    confirm = findings.table.design.confirm
    on = f"{'So far, o' if confirm else 'O'}n the seeds that chose the points (optimistic)"
    if findings.confirmed:
        on = f"On {counted(len(confirm), 'fresh seed')}"
    count = findings.choice.by.replace(joined(findings.objectives), joined([*map(words, findings.objectives)]))
    text = f"{on}, {_leads(findings, findings.objectives[1])}. {upper(count)}"
    if fell := [findings.names.of(cell) for front in fronts(findings) for cell in front.fell]:
        text += f"; {some(fell, 3)} fell off the front of {'its' if len(fell) == 1 else 'their'} search on fresh seeds"
    return f"{text}."


def texts(findings: Findings) -> list[str]:
    """Who is ahead at which cost, by each objective after the second."""
    return [f"By {words(cost)}: {_leads(findings, cost)}." for cost in findings.objectives[2:] if fronts(findings)]


def _leads(findings: Findings, cost: str) -> str:
    by_setting: dict[str, list[Front]] = {}
    for front in fronts(findings):
        if front.points:
            by_setting.setdefault(front.setting, []).append(front)
    parts = [
        f"{f'in {setting}, ' if setting else ''}{_ahead(findings, own, cost)}"
        for setting, own in [*by_setting.items()][:_SETTINGS]
    ]
    more = len(by_setting) - len(parts)
    first, *others = [*parts, *([f"{counted(more, 'more setting')} in the table"] if more else [])]
    return ". ".join([first, *map(upper, others)])


def _ahead(findings: Findings, own: Sequence[Front], cost: str) -> str:
    """`pfedmoap reaches promptfl's best validation accuracy (84.20 ± 0.30 %) at 0.80 of its communication; below 1.1 MB
    promptfl is ahead`, for the fronts of one setting."""
    first, better = findings.objectives[0], sign(findings.objectives[0])
    top, *others = sorted(own, key=lambda front: -comparable(better * findings.objective(front.points[0])))
    if not others:
        return _alone(findings, top, cost)
    goal = others[0].points[0]
    prices = [reaching(findings, front.points, findings.objective(goal), cost) for front in (top, others[0])]
    text = f"{top.method} reaches {others[0].method}'s best {words(first)} ({_reached(findings, goal)}) "
    text += _against(prices[0], prices[1], cost)
    cheaper = -sign(cost)
    turns = leads(
        {
            front.method: [
                (cheaper * findings.spread(cell, cost)[0], comparable(better * findings.objective(cell)))
                for cell in front.points
            ]
            for front in own
        }
    )
    at, names = [_amount(cheaper * price, cost) for price, _ in turns], [name for _, name in turns]
    below, above = ("below", "from") if cheaper > 0 else ("above", "up to")
    if len(turns) == 1:
        return f"{text}, and is ahead everywhere {above} {at[0]}{' on' * (cheaper > 0)}"
    if len(turns) == 2:
        return f"{text}; {below} {at[1]} {names[0]} is ahead"
    between = [f"{name} from {at[i]} to {at[i + 1]}" for i, name in enumerate(names[1:-1], 1)]
    return f"{text}; ahead are {joined([f'{names[0]} {below} {at[1]}', *between, f'{names[-1]} beyond'])}"


def _alone(findings: Findings, front: Front, cost: str) -> str:
    """The ends of a single front, and what the published point's value costs on it."""
    first = words(findings.objectives[0])
    best, cheapest = front.points[0], min(front.points, key=lambda c: -sign(cost) * findings.spread(c, cost)[0])
    ends = [f"{_reached(findings, c)} at {_amount(findings.spread(c, cost)[0], cost)}" for c in (cheapest, best)]
    text = f"{front.method} reaches {first} "
    text += f"of {ends[1]}" if cheapest is best else f"from {ends[0]} to {ends[1]}"
    start = front.search.published
    if start is None or start.id in {cell.id for cell in front.points} or not findings.compared(start):
        return text
    named = f"the {findings.first_point(start)} setting"
    price = reaching(findings, front.points, findings.objective(start), cost)
    if math.isnan(price):
        return f"{text}; no point reaches {named} ({_reached(findings, start)})"
    at = _against(price, findings.spread(start, cost)[0], cost)
    return f"{text}; it reaches the {first} of {named} ({_reached(findings, start)}) {at}"


def _reached(findings: Findings, cell: Cell) -> str:
    """`84.20 ± 0.30 %`: the first objective of a cell."""
    mean, std = findings.spread(cell, findings.objectives[0])
    return with_unit(mean, findings.objectives[0], std)


def _against(price: float, other: float, cost: str) -> str:
    """`at 0.80 of its communication (0.9 MB)`; where a ratio means nothing, both amounts."""
    if sign(cost) > 0 or min(price, other) <= 0:
        return f"at {_amount(price, cost)} instead of {_amount(other, cost)}"
    if math.isclose(price, other, rel_tol=0.005):
        return f"at the same {words(cost)} ({_amount(price, cost)})"
    return f"at {price / other:.2g} {'of' if price < other else 'times'} its {words(cost)} ({_amount(price, cost)})"


def _amount(value: float, metric: str) -> str:
    """A value in three digits, with its unit."""
    return f"{float(f'{scaled(value, metric):.3g}'):,.10g}{unit_after(metric)}"


# -- tables --------------------------------------------------------------------------------------------------


def panel(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """What does each method reach at which cost?"""
    if not fronts(findings):
        return None
    text = (
        "The points that are compared: mean ± standard deviation, in parentheses the 95 % interval over seeds; costs "
    )
    text += "do not vary by chance. On the front are those that no other point of their setting equals or beats in all "
    text += "objectives."
    if findings.confirmed:
        text += " A point fell off that is on the front of its search's trials, but not on that of the fresh seeds."
    return Panel("Fronts", [text], tables=[points(findings)])


def volume(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How much does each front dominate?"""
    return Panel("Hypervolume", [note(findings)], tables=[volumes(findings)]) if fronts(findings) else None


def volumes(findings: Findings) -> PageTable:
    """The hypervolume of each front: a row for each method, a column for each setting."""
    rows = dict[str, dict[str, Front]]()
    for front in fronts(findings):
        rows.setdefault(front.method, {})[front.setting] = front
    settings = dict.fromkeys(front.setting for front in fronts(findings))
    most = {s: max((row[s].share for row in rows.values() if s in row), default=math.nan) for s in settings}
    body = [
        TableRow([Td(method), *(_volume(row.get(s), bold=row.get(s) is not None and len(rows) > 1 and
                                        row[s].share == most[s]) for s in settings)])
        for method, row in rows.items()
    ]  # fmt: skip
    return PageTable(["method", *(setting or "hypervolume" for setting in settings)], body)


def _volume(front: Front | None, *, bold: bool) -> Td:
    if front is None or math.isnan(front.share):
        return Td("–")
    bounds = "" if math.isnan(front.low) else f" ({front.low:.3f} to {front.high:.3f})"
    return Td(f"{front.share:.3f}{bounds}", front.share, bold)


def note(findings: Findings) -> str:
    """What the hypervolume is, with its reference point in each setting."""
    worst = dict[str, str]()
    for front in fronts(findings):
        values = zip(findings.objectives, front.worst, strict=True)
        at = joined([f"{words(name)} {_amount(value, name)}" for name, value in values])
        worst[front.setting] = f"{front.setting}: {at}" if front.setting else at
    text = "Hypervolume: the share that a front dominates of the box between the worst values among all completed "
    text += f"trials (the reference point; {'; '.join(worst.values())}) and the best ones, in the same setting"
    if any(not math.isnan(front.low) for front in fronts(findings)):
        text += "; in parentheses the 95 % bootstrap interval over seeds"
    return f"{text}. Bold: the largest of a setting."


def points(findings: Findings) -> PageTable:
    """The compared points of all fronts: their objectives, with intervals, the test metric, and the searched values."""
    every, metrics = fronts(findings), list(dict.fromkeys([*findings.objectives, findings.metric]))
    several = len({front.setting for front in every}) > 1
    rows = []
    for front in every:
        cells = [*front.points, *front.fell]
        fields = [
            n
            for n in findings.names.titles
            if n not in findings.grid_axes and len({field_text(c, n) for c in cells}) > 1
        ]
        for cell in cells:
            fell = cell.id in {other.id for other in front.fell}
            tds = [Td(front.method), *([Td(front.setting)] if several else []), Td(str(cell.trial_number))]
            for name in metrics:
                mean, low, high = interval(findings, cell, name)
                bounds = "" if math.isnan(low) else f" ({figure(low, name)} to {figure(high, name)})"
                tds.append(Td(f"{plus_minus(*findings.spread(cell, name), name)}{bounds}", mean))
            state = "fell off" if fell else "yes" if cell.id in findings.marked else "no"
            values = ", ".join(f"{findings.names.title(name)} {field_text(cell, name)}" for name in fields)
            rows.append(TableRow([*tds, Td(state), Td(values or "–")]))
    header = ["method", *(["setting"] if several else []), "trial", *(quantity(name, over="") for name in metrics)]
    return PageTable([*header, "on the front", "values that differ"], rows)


def frame(findings: Findings) -> pd.DataFrame:
    """The fronts for other programs: a row for each compared point, with the hypervolume of its front."""
    rows = list[dict[str, Any]]()
    for front in fronts(findings):
        volume = {"hypervolume": front.share, "hypervolume_low": front.low, "hypervolume_high": front.high}
        for cell in (*front.points, *front.fell):
            row: dict[str, Any] = {"method": front.method, "setting": front.setting, "cell": cell.id}
            row["trial"], row["on_the_front"] = cell.trial_number, cell.id in findings.marked
            row["fell_off"] = cell.id in {other.id for other in front.fell}
            for name in findings.objectives:
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), interval(findings, cell, name), strict=True))
            rows.append({**row, **volume})
    return pd.DataFrame(rows)


# -- charts --------------------------------------------------------------------------------------------------


def drawn(findings: Findings) -> dict[str, tuple[Spec, str]]:
    """A chart for each further objective; see `scatter`."""
    found = dict[str, tuple[Spec, str]]()
    for cost in findings.objectives[1:] if fronts(findings) else ():
        caption = (
            f"{upper(words(findings.objectives[0]))} over {words(cost)}. Lines: the front of each method; bars: 95 % "
        )
        caption += (
            f"intervals over {'fresh ' if findings.confirmed else ''}seeds; diamonds: published settings; rings: "
        )
        caption += "on the front of all methods; small points: trials; "
        caption += "dashed: limits; " if {cost, findings.objectives[0]} & findings.spec.search.limits.keys() else ""
        caption += f"{findings.basis}."
        found[charts.file_name("front", words(cost))] = scatter(findings, cost), caption
    return found


def scatter(findings: Findings, cost: str) -> Spec:
    """The first objective over a further one, a panel for each setting: trials as small points, fronts as steps, their
    points with intervals over seeds, and limits."""
    up, settings = findings.objectives[0], list(dict.fromkeys(front.setting for front in fronts(findings)))
    rows = [row for front in fronts(findings) for row in _rows(findings, front, cost)]
    across = [row["x"] for row in rows]
    wide = min(across, default=0) > 0 and max(across) > _WIDE * min(across)
    bounds = findings.spec.search.limits
    limits = {place: bounds[name] for place, name in (("x", cost), ("y", up)) if name in bounds}
    rows += [{"kind": f"limit of {place}", place: value, "panel": setting}
             for place, value in limits.items() for setting in settings]  # fmt: skip
    x, y = charts.measured(cost, "x", log=wide), _room(charts.measured(up, "y"), rows)
    ranks = dict[str, int]()
    for front in fronts(findings):
        age = min(findings.ages[cell.id] for cell in front.search.trials)
        ranks[front.method] = min(age, ranks.get(front.method, age))
    where = {"x": x, "y": y}
    ends = [{**y, "field": field, "title": title} for field, title in (("low", "from"), ("high", "to"))]
    tooltip = charts.tips(
        charts.names("label", "cell"), charts.names("id", "id"), x, y, *ends, charts.names("seeds", "seeds")
    )
    seen = {**where, "color": charts.colours(ranks), "opacity": charts.visible()}
    point = {**seen, "tooltip": tooltip}
    band = {**point, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    step = "step-after" if sign(cost) < 0 else "step-before"
    layers = [
        _of("trial", charts.layer("point", point, size=22, fillOpacity=0.5)),
        _of("line", charts.layer("line", {**seen, "opacity": {"value": 0.6}}, interpolate=step)),
        *(_of(kind, charts.layer("rule", band, strokeWidth=2)) for kind in ("point", "published")),
        _of("point", charts.layer("point", point, size=55)),
        _of("published", charts.layer("point", point, size=90, shape="diamond")),
        {"transform": [{"filter": "datum.best"}], **charts.layer("point", where, **charts.RING)},
        *(_of(f"limit of {place}", charts.layer("rule", {place: where[place]}, strokeDash=[6, 3])) for place in limits),
    ]
    layers[0]["params"] = [charts.SHOWN]
    return charts.panels(charts.chart(rows, *layers, height=340, **charts.KEPT), settings)


def _room(channel: Spec, rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Scales a channel to all means, and to intervals as far as these spread; longer ones are cut."""
    means = [row["y"] for row in rows if "y" in row]
    low, high = min(means, default=0.0), max(means, default=0.0)
    ends = [row[end] for row in rows if row["kind"] in ("point", "published") for end in ("low", "high")]
    seen = [*means, *(min(max(end, 1.5 * low - 0.5 * high), 1.5 * high - 0.5 * low) for end in ends)]
    return charts.focused(channel, seen, [], "", "")[0]


def _of(kind: str, layer: Spec) -> Spec:
    """A layer of the rows of one kind."""
    return {**layer, "transform": [{"filter": f"datum.kind == '{kind}'"}]}


def _rows(findings: Findings, front: Front, cost: str) -> list[dict[str, Any]]:
    """The marks of a front: its points and those that fell off, published points, the other trials, and its line."""
    up, same = findings.objectives[0], {"series": front.method, "panel": front.setting}
    points = {cell.id for cell in (*front.points, *front.fell, *front.search.starts) if findings.compared(cell)}
    rows = list[dict[str, Any]]()
    for cell in {each.id: each for each in (*front.search.points, *front.search.starts, *front.search.trials)}.values():
        x, (y, low, high) = findings.spread(cell, cost)[0], interval(findings, cell, up)
        if findings.compared(cell) and not any(map(math.isnan, (x, y))):
            kind = "trial" if cell.id not in points else "published" if cell.published else "point"
            own = charts.point(findings, cell, up, y, max(high - y, y - low), findings.seeds(cell))
            rows.append(
                {**same, **own, "kind": kind, "x": x, "y": y, "id": cell.id, "best": cell.id in findings.marked}
            )
    better, cheaper, lead = sign(up), -sign(cost), -math.inf
    line = sorted(
        (cheaper * findings.spread(cell, cost)[0], -better * findings.objective(cell)) for cell in front.points
    )
    for price, value in line:
        if -value > lead:
            lead = -value
            rows.append({**same, "kind": "line", "x": cheaper * price, "y": better * lead})
    return rows
