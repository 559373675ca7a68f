"""The answer of a sweep: which values of the axis are as good as the best, and from where on results fall."""

from __future__ import annotations

from collections.abc import Sequence

from fpl_tune.core.formatting import (
    counted,
    figure,
    plus_minus,
    signed,
    symbol,
    unit_after,
    unit_of_gap,
    words,
)
from fpl_tune.findings.choice import sign
from fpl_tune.findings.comparisons import Comparisons, compare, turned
from fpl_tune.findings.findings import Findings
from fpl_tune.report.panels import ruling
from fpl_tune.study.cells import shown


def sentence(findings: Findings) -> str:
    """Names the plateau and where it ends; over several settings by the mean over them."""
    sweep, axis = findings.sweep, str(findings.swept)
    name, unit, means = symbol(axis), unit_after(findings.metric), sweep.means
    value = {group[0].id: shown(group[0].varied[axis]) for group in sweep.cells_by_value}
    best, verdicts, higher = sweep.best, sweep.result, sign(findings.metric) >= 0
    if best is None:
        return "No value is chosen, since none has results in every setting."
    settings = len(sweep.cells_by_value[0])
    if verdicts is None:
        where = f" in all {settings} settings" if settings > 1 else ""
        return f"{name} = {value[best]} alone has results{where}: {figure(means[best], findings.metric, 1)}{unit}."
    what = "accuracy" if findings.metric.endswith("/acc_mean") else words(findings.metric)
    over = f"Over {counted(settings, 'setting')}, " if settings > 1 else ""

    def texts(cells: Sequence[str]) -> str:
        each = [figure(means[cell], findings.metric, 1) for cell in cells]
        return ", ".join(each) if len(each) <= 5 else f"{each[0]} to {each[-1]}"

    def spread(cells: Sequence[str]) -> str:
        ends = [figure(end(means[cell] for cell in cells), findings.metric, 1) for end in (min, max)]
        return f"{' to '.join(dict.fromkeys(ends))}{unit}"

    def span(cells: Sequence[str]) -> str:
        return f"{name} from {value[cells[0]]} to {value[cells[-1]]}"

    least = f"within ± {findings.spec.report.rope:g} {'point' if findings.spec.report.rope == 1 else 'points'}"
    if not verdicts.decides:
        reached = f"{figure(means[best], findings.metric, 1)}{unit}"
        one = f"{name} = {value[best]} is best on {findings.chosen_on}, with {reached}"
        return f"{over}{one}; one seed cannot separate the values ({spread(list(means))})."
    if len(verdicts.plateau) == len(means):
        if verdicts.equal:
            how = "give identical results" if verdicts.identical else f"are equal {least}"
            return (f"{over}{name} makes no difference: all {len(means)} values from {value[verdicts.plateau[0]]} to "
                    f"{value[verdicts.plateau[-1]]} {how} ({spread(verdicts.plateau)}).")  # fmt: skip
        seeds = counted(sweep.seeds, "seed")
        if sweep.seeds == 2:
            return f"{over}{seeds} are too few to separate the values of {name} ({spread(verdicts.plateau)})."
        return f"{over}{span(verdicts.plateau)} do not differ significantly with {seeds} ({spread(verdicts.plateau)})."
    if len(verdicts.plateau) == 1:
        text = f"{name} = {value[best]} is best, with {figure(means[best], findings.metric, 1)}{unit}"
    else:
        text = f"{span(verdicts.plateau)} {f'equal {least}' if verdicts.equal else 'do not differ significantly'}"
        text += f" ({spread(verdicts.plateau)})"
    falls, lower = ("falls", "lower") if higher else ("grows", "higher")
    parts = [f"{over}{text}"]

    def fall(cells: Sequence[str], where: str) -> str:
        if len(cells) == 1:
            return f"{what} {falls} to {texts(cells)}{unit} at {name} = {value[cells[0]]}"
        return f"{what} {where} ({texts(cells)}{unit})"

    if verdicts.lower:
        parts.append(fall(verdicts.lower, f"is {lower} up to {name} = {value[verdicts.lower[-1]]}"))
    if verdicts.upper:
        parts.append(fall(verdicts.upper, f"{falls} from {name} = {value[verdicts.upper[0]]} on"))
    if verdicts.worse:
        parts.append(f"worse at {', '.join(value[cell] for cell in verdicts.worse)} ({texts(verdicts.worse)}{unit})")
    mentioned = {*verdicts.plateau, *verdicts.lower, *verdicts.upper, *verdicts.worse}
    if rest := [value[cell] for cell in means if cell not in mentioned]:
        parts.append(f"not decided at {', '.join(rest)}")
    text = "; ".join(parts)
    first, *_, last = means
    if verdicts.plateau == (best,) and best in (first, last):
        side = "smallest" if best == first else "largest"
        text += f". The best value is the {side} that was tried"
    return f"{text}."


def references(findings: Findings, comparisons: Comparisons) -> list[str]:
    """Differences of the chosen cell from each reference, taken from the table if it is compared with that cell."""
    if findings.best is None or len(findings.chosen) > 1:
        return []
    references_by_name = {findings.family(cell): cell.id for cell in findings.finished if cell.is_reference}
    points = unit_of_gap(findings.metric)
    parts = []
    for name, key in references_by_name.items():
        if comparisons.reference.holds(findings.best) and key in comparisons.frame.index:
            row = turned(comparisons.frame.loc[key].to_dict())
        else:
            row = compare(findings, name).frame.to_dict("index").get(findings.best.id)
        if row is not None:
            gap = f"{signed(row['difference'], findings.metric)}{points} against {name}"
            parts.append(f"{gap} ({ruling(findings.metric, row)})")
    row = findings.frame.loc[findings.best.id]
    value = plus_minus(row["mean"], row["std"], findings.metric)
    reached = f"{findings.names.of(findings.best)}, the choice, reaches {value}"
    return [f"{reached}{' %' if points else ''}; {', '.join(parts)}."] if parts else []
