"""How trials begin: from what is stored of a cell, and what the study asks for now. Reads the store, writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.search.pruning import HALVING, objective_of, resolved, rungs, score
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import stale
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store
from fpl_tune.study.trial import TABLE, Event, Leg, State, Trial, ended, legs_of, of_results


def rule_of(spec: StudySpec) -> str:
    """The study's pruning as text, objective included: trials that were pruned by another one are reopened.

    The hedge is left out. It says of trials to come that they are not stopped early, and not that others should not
    have been.
    """
    prune = {name: value for name, value in asdict(resolved(spec)).items() if name != "hedge"}
    return json.dumps([prune, objective_of(spec)]) if prune["rule"] is not None else ""


def begun(
    store: Store, cell: Cell, spec: StudySpec, prints: Mapping[str, Any], *, retry: bool = False
) -> tuple[Trial, list[str]]:
    """The trial of a cell as a start of the study finds it, reopened where the study asks for more.

    Nothing is final for ever: other data, another method or another rule of pruning, further seeds, seeds that failed
    and, with `retry`, seeds that diverged reopen a trial.

    Args:
        store: the study's store.
        cell: the cell.
        spec: the study.
        prints: fingerprints of the cell's run today.
        retry: whether seeds that diverged run again.

    Returns:
        The trial, and the reasons for which stored results of the study's seeds are out of date.
    """
    seeds, results = spec.seed_list(), store.seed_results(cell)
    reasons = list(dict.fromkeys(why for seed in seeds if seed in results for why in stale(results[seed], prints)))
    fresh = {seed: result["status"] for seed, result in results.items() if not stale(result, prints)}
    found = store.stored_trial(cell)
    if spec.declared_looks():  # those of the first look, and what a later one has taken the cell on to
        known = {*spec.first_seeds(), *fresh, *(found.seeds_left if found is not None and not reasons else ())}
        seeds = [seed for seed in seeds if seed in known]
    whole = [seed for seed, status in fresh.items() if status == Status.DONE]
    final = {seed for seed, status in fresh.items() if status == Status.DONE or (status in FAILURES and not retry)}
    final -= {seed for seed, status in fresh.items() if status == Status.FAILED}
    todo = [seed for seed in seeds if seed not in final]

    if found is None:
        found = of_results({seed: result["status"] for seed, result in results.items()}, seeds, cell.run.rounds)
    if found.state is State.RUNNING:  # its process is gone
        found = found.after(Event.INTERRUPTED)
    rule = rule_of(spec)
    if rule != found.rule and not reasons:
        free = State.QUEUED if found.state is State.WAITING else found.state  # a rung of the rule before holds nobody
        found = replace(found, state=free, values=_values(store, cell, spec, fresh))
    counts = tuple(seed for seed in found.counts if seed in whole)
    same = found.rule == rule and not reasons
    if same and found.state is State.PRUNED and cell.candidate and todo:  # a step of an ablation runs whole
        return found, reasons
    if found.state is State.DIVERGED and cell.role == "trial" and todo and not retry and not reasons:
        return replace(found, rule=rule), reasons
    same = same and (cell.candidate or not any(leg.decides for leg in found.left))  # what became a reference runs whole
    if not found.over and same and set(todo) <= set(found.seeds_left) <= {*todo, *final}:
        return found, reasons
    if not todo:
        over = TABLE[State.RUNNING, ended([status for seed, status in fresh.items() if seed in seeds])]
        return replace(found, state=over, counts=tuple(whole), rule=rule), reasons
    there = () if reasons else found.left[:1]
    legs = _legs(cell, spec, todo, there[0].seeds if there else (), alone=not whole)
    changes = {"legs": legs, "leg": 0, "rule": rule, "counts": counts, "values": {} if reasons else found.values}
    return found.after(Event.REOPENED, **changes) if found.legs or found.over else Trial(**changes), reasons


def _legs(cell: Cell, spec: StudySpec, seeds: list[int], together: tuple[int, ...], *, alone: bool) -> tuple[Leg, ...]:
    """The legs of seeds that are to run.

    Args:
        cell, spec: of the trial.
        seeds: they.
        together: seeds that may have a checkpoint in common.
        alone: whether no seed ran whole before. Others are not halved any more.
    """
    halved = rungs(resolved(spec), cell.run) if cell.candidate and alone else ()
    if halved or not together or not set(together) < set(seeds):
        return legs_of(seeds, cell.run.rounds, halved, first_alone=cell.role == "trial")
    rest = [seed for seed in seeds if seed not in together]
    return (*legs_of(together, cell.run.rounds), *legs_of(rest, cell.run.rounds))


def _values(store: Store, cell: Cell, spec: StudySpec, fresh: Mapping[int, str]) -> dict[int, float]:
    """The objective at the rungs of the study's pruning, of a trial that ran under another one."""
    prune, values = resolved(spec), dict[int, float]()
    if prune.rule != HALVING or not cell.candidate:
        return values
    ran = [seed for seed in spec.seed_list() if fresh.get(seed) in (Status.DONE, Status.PARTIAL)]
    histories = [store.history(cell, seed) for seed in (ran[:1] if cell.role == "trial" else ran)]
    rounds = [list(records) for records in zip(*histories, strict=False)]
    ends = (*rungs(prune, cell.run), cell.run.rounds) if cell.role == "trial" else rungs(prune, cell.run)
    for rung in ends:
        value = score(rounds[:rung], objective_of(spec)) if rung <= len(rounds) else None
        if value is not None:
            values[rung] = value
    return values
