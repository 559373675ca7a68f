"""The answer of a sweep: which values of the axis are as good as the best, and from where on results fall."""

from __future__ import annotations

from collections.abc import Sequence

from fpl_tune.core.formatting import (
    counted,
    figure,
    symbol,
    unit_after,
    with_unit,
    words,
)
from fpl_tune.findings.choice import sign
from fpl_tune.findings.comparisons import Comparisons, compare, turned
from fpl_tune.findings.findings import Findings
from fpl_tune.report import sentences
from fpl_tune.study.cells import shown


def sentence(findings: Findings) -> str:
    """Names the plateau and where it ends; over several settings by the mean over them."""
    sweep, axis, metric = findings.sweep, str(findings.swept), findings.metric
    name, unit, means = symbol(findings.names.title(axis)), unit_after(metric), sweep.means
    value = {group[0].id: shown(group[0].varied[axis]) for group in sweep.cells_by_value}
    best, verdicts = sweep.best, sweep.result
    if best is None:
        return "No value is chosen, since none has results in every setting."
    settings = len(sweep.cells_by_value[0])
    chosen, reached = f"{name} = {value[best]}", with_unit(means[best], metric, digits=1)
    if verdicts is None:
        return f"{chosen} alone has results{f' in all {settings} settings' if settings > 1 else ''}: {reached}."

    def texts(cells: Sequence[str]) -> str:
        each = [figure(means[cell], metric, 1) for cell in cells]
        return f"{', '.join(each) if len(each) <= 5 else f'{each[0]} to {each[-1]}'}{unit}"

    def spread(cells: Sequence[str]) -> str:
        ends = [figure(end(means[cell] for cell in cells), metric, 1) for end in (min, max)]
        return f"{' to '.join(dict.fromkeys(ends))}{unit}"

    if not verdicts.decides:
        text = sentences.best(findings, chosen, means[best], settings=settings, digits=1)
        return f"{text}; one seed cannot separate the values ({spread(list(means))})."
    over = f"Over {settings} settings, " if settings > 1 else ""
    plateau = f"from {value[verdicts.plateau[0]]} to {value[verdicts.plateau[-1]]}"
    equal = f"equal {sentences.within(findings)}"
    if len(verdicts.plateau) == len(means):
        seeds = counted(sweep.seeds, "seed")
        if verdicts.equal:
            how = "give identical results" if verdicts.identical else f"are {equal}"
            text = f"{name} makes no difference: all {len(means)} values {plateau} {how}"
        elif sweep.seeds == 2:
            text = f"{seeds} are too few to separate the values of {name}"
        else:
            text = f"{name} {plateau} do not differ significantly with {seeds}"
        return f"{over}{text} ({spread(verdicts.plateau)})."
    if len(verdicts.plateau) == 1:
        parts = [f"{over}{chosen} is best, with {reached}"]
    else:
        alike = equal if verdicts.equal else "do not differ significantly"
        parts = [f"{over}{name} {plateau} {alike} ({spread(verdicts.plateau)})"]
    what = "accuracy" if metric.endswith("/acc_mean") else words(metric)
    falls, lower = ("falls", "lower") if sign(metric) >= 0 else ("grows", "higher")

    def fall(cells: Sequence[str], where: str) -> str:
        if len(cells) == 1:
            return f"{what} {falls} to {texts(cells)} at {name} = {value[cells[0]]}"
        return f"{what} {where} ({texts(cells)})"

    if verdicts.lower:
        parts.append(fall(verdicts.lower, f"is {lower} up to {name} = {value[verdicts.lower[-1]]}"))
    if verdicts.upper:
        parts.append(fall(verdicts.upper, f"{falls} from {name} = {value[verdicts.upper[0]]} on"))
    if verdicts.worse:
        parts.append(f"worse at {', '.join(value[cell] for cell in verdicts.worse)} ({texts(verdicts.worse)})")
    mentioned = {*verdicts.plateau, *verdicts.lower, *verdicts.upper, *verdicts.worse}
    if rest := [value[cell] for cell in means if cell not in mentioned]:
        parts.append(f"not decided at {', '.join(rest)}")
    first, *_, last = means
    side = "smallest" if best == first else "largest"
    edge = f" The best value is the {side} that was tried." if best in (first, last) else ""
    return f"{'; '.join(parts)}.{edge}"


def references(findings: Findings, comparisons: Comparisons) -> list[str]:
    """Differences of the chosen cell from each reference, taken from the table if it is compared with that cell."""
    if findings.best is None or len(findings.chosen) > 1:
        return []
    references_by_name = {findings.family(cell): cell.id for cell in findings.finished if cell.is_reference}
    tests = {}
    for name, key in references_by_name.items():
        if comparisons.reference.holds(findings.best) and key in comparisons.frame.index:
            tests[name] = turned(comparisons.frame.loc[key].to_dict())
        elif (row := compare(findings, name).frame.to_dict("index").get(findings.best.id)) is not None:
            tests[name] = row
    return [f"{sentences.best_cell(findings, findings.best, tests)}."] if tests else []
