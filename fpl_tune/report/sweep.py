"""The answer of a sweep: which values of the axis are as good as the best, and from where on results fall."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import counted, figure, percent, plus_minus, quantity, symbol
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import Reference, against, judged, turned
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.selection import sign


def along(facts: Facts) -> list[list[Cell]]:
    """Cells that ran whole, those of one value of the swept axis together, from the smallest value on."""
    axis, found = str(facts.swept), dict[float, list[Cell]]()
    for cell in facts.whole:
        found.setdefault(float(cell.varied[axis]), []).append(cell)
    most = max(map(len, found.values()), default=0)
    return [found[value] for value in sorted(found) if len(found[value]) == most]


def sentence(facts: Facts) -> str:
    """Names the plateau and where it ends; over several settings by the mean over them."""
    groups, axis = along(facts), str(facts.swept)
    name, unit = symbol(axis), " %" if percent(facts.metric) else ""
    value = {group[0].id: shown(group[0].varied[axis]) for group in groups}
    frame = analysis.mean_over(facts.values, [[cell.id for cell in group] for group in groups])
    means: dict[str, float] = frame.groupby("cell", sort=False)["value"].mean().to_dict()  # in the axis' order
    best = next((group[0].id for group in groups if any(cell.id in facts.chosen for cell in group)), None)
    if best is None or best not in means:
        return "Nothing is chosen, since no two finished cells compare on validation."
    if len(means) < 2:
        return f"{name} = {value[best]} alone has results: {figure(means[best], facts.metric, 1)}{unit}."
    if len(groups[0]) == 1:
        frame = facts.values.loc[facts.values["cell"].isin(means)]
    found = analysis.sweep(
        frame, list(means), best, rope=facts.spec.report.rope / 100, shares=percent(facts.metric),
        higher=(higher := sign(facts.metric) >= 0), looks=facts.looks, ran=facts.ran,
    )  # fmt: skip
    what = "accuracy" if facts.metric.endswith("/acc_mean") else quantity(facts.metric, unit=False)
    over = f"Over {counted(len(groups[0]), 'setting')}, " if len(groups[0]) > 1 else ""

    def texts(cells: Sequence[str]) -> str:
        each = [figure(means[cell], facts.metric, 1) for cell in cells]
        return ", ".join(each) if len(each) <= 5 else f"{each[0]} to {each[-1]}"

    def spread(cells: Sequence[str]) -> str:
        ends = [figure(end(means[cell] for cell in cells), facts.metric, 1) for end in (min, max)]
        return f"{' to '.join(dict.fromkeys(ends))}{unit}"

    def span(cells: Sequence[str]) -> str:
        return f"{name} from {value[cells[0]]} to {value[cells[-1]]}"

    least = f"within ± {facts.spec.report.rope:g} {'point' if facts.spec.report.rope == 1 else 'points'}"
    if not found.decides:
        one = f"{name} = {value[best]} is best on {facts.chosen_on}, with {figure(means[best], facts.metric, 1)}{unit}"
        return f"{over}{one}; one seed tells no values apart ({spread(list(means))})."
    if len(found.plateau) == len(means):
        if found.equal:
            return (f"{over}{name} makes no difference: all {len(means)} values from {value[found.plateau[0]]} to "
                    f"{value[found.plateau[-1]]} are equal {least} ({spread(found.plateau)}).")  # fmt: skip
        seeds = counted(frame["seed"].nunique(), "seed")
        return f"{over}{span(found.plateau)} cannot be told apart with {seeds} ({spread(found.plateau)})."
    if len(found.plateau) == 1:
        text = f"{name} = {value[best]} is best, with {figure(means[best], facts.metric, 1)}{unit}"
    else:
        text = f"{span(found.plateau)} {f'equal {least}' if found.equal else 'cannot be told apart'}"
        text += f" ({spread(found.plateau)})"
    falls, lower = ("falls", "lower") if higher else ("grows", "higher")
    parts = [f"{over}{text}"]
    if found.lower:
        parts.append(f"{what} is {lower} up to {name} = {value[found.lower[-1]]} ({texts(found.lower)}{unit})")
    if found.upper:
        parts.append(f"{what} {falls} from {name} = {value[found.upper[0]]} on ({texts(found.upper)}{unit})")
    if found.worse:
        parts.append(f"worse at {', '.join(value[cell] for cell in found.worse)} ({texts(found.worse)}{unit})")
    told = {*found.plateau, *found.lower, *found.upper, *found.worse}
    if rest := [value[cell] for cell in means if cell not in told]:
        parts.append(f"not decided at {', '.join(rest)}")
    text = "; ".join(parts)
    first, *_, last = means
    if found.plateau == (best,) and best in (first, last):
        side = "smallest" if best == first else "largest"
        text += f". The best value is the {side} that was tried"
    return f"{text}."


def references(facts: Facts, tests: pd.DataFrame) -> list[str]:
    """How far the chosen cell is from each reference, by the comparisons of the table where these are with it."""
    if facts.best is None or len(facts.chosen) > 1:
        return []
    found = {facts.reference.family(cell): cell.id for cell in facts.finished if cell.is_reference}
    points = " points" if percent(facts.metric) else ""
    parts = []
    for name, key in found.items():
        if facts.reference.holds(facts.best) and key in tests.index:
            row = turned(tests.loc[key].to_dict())
        else:
            row = against(facts, Reference(facts, name)).to_dict("index").get(facts.best.id)
        if row is not None:
            difference, interval, verdict = judged(facts, row)
            parts.append(f"{difference}{points} against {name} ({interval}: {verdict})")
    row = facts.table.loc[facts.best.id]
    reached = f"{facts.name(facts.best)}, the choice, reaches {plus_minus(row['mean'], row['std'], facts.metric)}"
    return [f"{reached}{' %' if points else ''}; {', '.join(parts)}."] if parts else []
