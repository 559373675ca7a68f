"""Composition of a study: its cells and searches, built and checked once, without overrides that have no effect."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fpl_tune import config
from fpl_tune.config import GROUPS, Given, Override, PruneSpec, RunSpec, SearchSpec, Study
from fpl_tune.core.errors import ConfigError, Notice, unknown
from fpl_tune.core.metrics import check_reported
from fpl_tune.core.nested import flatten
from fpl_tune.core.spec import UNTIL_DECIDED
from fpl_tune.findings import looks
from fpl_tune.findings.crossed import row_title, settings_of
from fpl_tune.search import halving
from fpl_tune.search.search import Search
from fpl_tune.search.sizes import check_of_sizes
from fpl_tune.study.cells import Cell, axes_of, fields_of, label
from fpl_tune.study.design import Design
from fpl_tune.study.grid import Points, expand
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import Row
from fpl_tune.study.table import StudyTable


@dataclass(frozen=True)
class ComposedStudy:
    """A study with its cells and searches, which are built once for all who plan, run or show it."""

    spec: Study
    points: Points
    """The points of its axes, and its references."""
    search: Search | None
    """Its searches; None if it has no sampler."""

    @classmethod
    def of(cls, spec: Study) -> ComposedStudy:
        """Builds and checks the cells and searches of a study.

        Raises:
            ConfigError: an axis, a reference, the search, halving or looks are invalid.
        """
        check_reported(spec.report.metric)
        looks.check(spec)
        points = Points.of(spec)
        study = cls(spec, points, _planned(spec, points))
        halving.check(spec, study.search.runs if study.search else [c.run for c in study.cells if c.candidate])
        return study

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of its axes, then its references."""
        return expand(self.spec, self.points)

    @property
    def fixed(self) -> list[Cell]:
        """The cells that its file names: all of them or, in a study that searches, the references."""
        return self.cells if self.search is None else self.search.references

    @property
    def runs(self) -> list[RunSpec]:
        """The runs of these cells, and those that are searched."""
        return [*(cell.run for cell in self.fixed), *(self.search.runs if self.search is not None else ())]


def compose(name: str, overrides: Sequence[Given] = ()) -> ComposedStudy:
    """Composes a study as `config.compose_study` does, and rejects overrides without effect.

    Args:
        name: a study's name, or the path of its YAML file.
        overrides: `key=value`, in Hydra's syntax, or mappings of dotted names to Python values.

    Raises:
        ConfigError: an invalid study, or an override without effect because of an axis, a stage or a missing sampler.
    """
    given = config.parse(overrides)
    spec = config.compose_study(name, given)
    for block, usual in (("search", SearchSpec()), ("prune", PruneSpec())):
        fields = [field for field, value in vars(usual).items() if getattr(getattr(spec, block), field) != value]
        if fields and spec.search.sampler is None:
            raise ConfigError(
                f"{block}.{fields[0]} has no effect without a sampler. Set search.sampler=auto, or remove the {block} "
                "block."
            )
    if spec.report.claims and spec.search.sampler is not None:
        raise ConfigError(
            f"Claims compare cells of axes, but {spec.name} searches. Remove report.claims, or search.sampler."
        )
    study = ComposedStudy.of(spec)
    _warn_of_equal_cells(study)
    named = {override.field.split(".")[0] for override in given}
    narrowed = not named.isdisjoint({"axes", "references", "let", "scale", *GROUPS})
    if spec.report.claims and not narrowed:  # a narrowed study leaves some claims without cells
        from fpl_tune.findings import claims  # imports pandas

        claims.check(spec, study.cells)
    if "report" in named or not narrowed:
        _check_report(study)
    _check_effects(name, given, study)
    return study


def _planned(spec: Study, points: Points) -> Search | None:
    """The searches of a study, which reject points that do not fit their task, or whose costs are outside of limits."""
    if spec.search.sampler is None:
        return None
    from fpl_tune.search import limits

    checks = check_of_sizes(), limits.rejection(spec.search.limits)
    search = Search.plan(spec, lambda run: [check(run) for check in checks], points=points)
    assert search is not None
    limits.check_space(search.parts)
    return search


def _check_report(study: ComposedStudy) -> None:
    """Raises `ConfigError` if the report names a metric, an axis or a reference that the study does not have."""
    spec, cells, search = study.spec, study.cells, study.search
    report, axes = spec.report, axes_of(spec.axes)
    runs = search.runs if search is not None else [cell.run for cell in cells]
    if report.metric.startswith("test/global/") and not any(run.protocol.global_model for run in runs):
        raise ConfigError(f"report.metric: {report.metric} needs a test of the server's model. Set "
                          "protocol.global_model=true.")  # fmt: skip
    parts = search.parts if search is not None else []
    fields = [*axes, *(param.name for part in parts for param in part.space.params)]
    if report.x is not None and report.x not in fields:
        raise ConfigError(f"report.x: {unknown('axis', report.x, fields)}")
    if report.reference is None:
        return
    from fpl_tune.findings.findings import Findings  # imports pandas

    design, rest = Design.of(spec, halved=False), [axis for axis in axes if axis not in settings_of(axes)]
    rows = {cell.id: Row(cell, design) for cell in cells}
    findings, names = Findings(spec, StudyTable(StudyFile.of(spec), design, rows)), list[str]()
    for part in parts:  # the rows of the table of tuned methods, and the published trials
        names.append(row_title(part.varied, rest, str(part.node["method"]["name"])))
        names += [label({**part.varied, **point}) for point in part.points]
    names += map(findings.family, findings.references)
    names += [name for cell in findings.own for name in findings.names.named(cell)]
    names += [] if parts else [cell.label for cell in cells]
    if report.reference not in names:
        raise ConfigError(
            f"report.reference: {unknown('reference', report.reference, filter(None, dict.fromkeys(names)))}"
        )


def _check_effects(name: str, given: Sequence[Override], study: ComposedStudy) -> None:
    """Rejects overrides that change nothing, since axes, the search or stages set their fields, and warns of those that
    only change references or first trials.

    Args:
        name: the study's name.
        given: the overrides.
        study: the study with them.
    """
    spec, search = study.spec, study.search
    replaced: list[tuple[Override, str, str]] = []  # in all cells of the axes; with the warning and what wins
    for override in given:
        dotted, text, value = override.field, override.text, override.text.partition("=")[2]
        if dotted == "scale" and spec.scale == "paper" and not spec.paper_scale:
            raise ConfigError(f"{text} has no effect: {spec.name} has no paper_scale.")
        if dotted == "looks" and not spec.declared_looks():
            raise ConfigError(f"{text} has no effect without seeds={UNTIL_DECIDED}.")
        if dotted.split(".")[0] not in GROUPS:
            continue
        axis = next((axis for axis, values in axes_of(spec.axes).items() if _sets(axis, values, dotted)), None)
        field, stages = dotted.removeprefix("protocol."), spec.node["stages"]
        if axis is not None:
            instead = value if axis == dotted else "..."
            ways = f"Override the axis, 'axes.{axis}=[{instead}]', or remove it, '~axes.{axis}'."
            replaced.append((override, "sets references only", f"the study sweeps {axis}. {ways}"))
        elif search is not None and any(param.name == dotted for part in search.parts for param in part.space.params):
            ways = f"Fix it with 'search.space.{dotted}={{choices:[{value}]}}'."
            replaced.append((override, f"does not fix {dotted}", f"the study searches it. {ways}"))
        elif field in ("rounds", "epochs") and stages and all(stage.get(field) for stage in stages):
            others = spec.references or "method" in axes_of(spec.axes)  # these may have other stages
            if not others:
                raise ConfigError(f"{text} has no effect: every stage of the method sets {field}. Override stages.")
    if not replaced:
        return
    fields = {override.field for override, *_ in replaced}
    changed = _changed(name, [override for override in given if override.field not in fields], study)
    indirect = any(not _is_inside(each, *fields) for each in changed)  # such as a field that is ${optim.lr}
    for override, warning, wins in replaced:
        if not indirect and not any(_is_inside(each, override.field) for each in changed):
            raise ConfigError(f"{override.text} has no effect: {wins}")
        warnings.warn(f"{override.text} {warning}: {wins}", Notice, stacklevel=3)


def _is_inside(name: str, *fields: str) -> bool:
    return any(f"{name}.".startswith(f"{field}.") for field in fields)


def _changed(name: str, others: Sequence[Override], study: ComposedStudy) -> set[str]:
    """The fields in which what a study runs differs from the study with other overrides; an empty name stands for runs
    that the other study does not have."""
    try:
        one, two = _work(study), _work(ComposedStudy.of(config.compose_study(name, others)))
    except ConfigError:  # it is invalid
        return {""}
    if len(one) != len(two):
        return {""}
    return {each for a, b in zip(one, two, strict=True) for each in a.keys() | b.keys() if a.get(each) != b.get(each)}


def _work(study: ComposedStudy) -> list[dict[str, Any]]:
    """The fields that overrides of a run can change: those of all cells, or of the references and first trials of a
    search, and its rounds."""
    search = study.search
    if search is None:
        return [_used(cell.run) for cell in study.cells]
    rounds = [] if study.spec.search.trials else [part.run.rounds for part in search.parts]  # which a budget depends on
    points = (dict(point) for part in search.parts for point in part.points)
    return [*(_used(cell.run) for cell in search.references), *points, {"protocol.rounds": rounds}]


def _used(run: RunSpec) -> dict[str, Any]:
    """The fields of a run by dotted name, without the optimiser of one that trains nothing."""
    return flatten({name: value for name, value in config.as_dict(run).items() if run.learns or name != "optim"})


def _sets(axis: str, values: Sequence[Any], dotted: str) -> bool:
    """True if an axis sets a field in all its cells; a chosen option sets all fields of its group but the folder of
    data."""
    set_by_value = (fields_of({axis: value}) for value in values)
    return all(
        dotted in names or (dotted != "data.root" and any(dotted.startswith(f"{name}.") for name in names))
        for names in set_by_value
    )


def _warn_of_equal_cells(study: ComposedStudy) -> None:
    """Warns of values or labelled variants with the same configuration, of which only the first runs, and of such
    references.

    Raises:
        ConfigError: two searches are the same one, so that one of them would never get a trial.
    """
    for own in study.points:
        labels: dict[str, str] = {}
        for varied, run in own:
            named, cell = label(varied), config.identity(run)
            if cell in labels and study.search is not None and own is study.points.grid:
                raise ConfigError(
                    f"Two searches have one configuration, {labels[cell]!r} and {named!r}. Remove one from the axes."
                )
            if cell in labels:
                warnings.warn(f"{named!r} has the same configuration as {labels[cell]!r}, and only the latter runs.",
                              Notice, stacklevel=3)  # fmt: skip
            labels.setdefault(cell, named)
