"""What holds after every history, and what is known not to hold yet."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import picture_of_files
from standin import trouble_of

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.nested import flatten
from fpl_tune.study.cells import axes_of, confirming_id
from fpl_tune.study.selection import choose_finished
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from machine import Machine

LATER: dict[str, str] = {}
"""Keys of faults that are known and left out -> the fault in one line."""


def check(machine: Machine) -> None:
    """Checks a study that is at its end."""
    mine = json.loads((machine.aside / "table").read_text())
    if not machine.study.get("search", {}).get("sampler"):
        check_fresh(machine, mine)
    check_complete(machine, mine)
    check_order(machine, mine)
    check_searches(machine, mine)
    check_kept(machine, mine)
    check_once(machine, mine)
    check_surfaces(machine)


def check_fresh(machine: Machine, mine: Mapping[str, Any]) -> None:
    """A grid equals a fresh run of the final file, cell by cell and digit by digit."""

    report = machine.report
    root, aside = machine.work / "fresh", machine.aside / "fresh"
    aside.mkdir()
    end = machine.child(partial(machine.to_the_end, root), aside)
    machine.expect(end, "a fresh run", ("done",))
    if end.kind != "done":
        return
    fresh = json.loads((aside / "table").read_text())
    for key, cell in fresh["cells"].items():
        other = mine["cells"].get(key)
        if other is None:
            report("fresh-missing", f"{cell['label']} is not in the table")
            continue
        for name, value in cell.items():
            if name == "seeds":
                for seed, found in value.items():
                    if other["seeds"].get(seed) != found:
                        report(
                            "fresh-seed",
                            f"{cell['label']}, seed {seed}: {_differing(other['seeds'].get(seed), found)}",
                        )
            elif name != "every" and other[name] != value:
                report(f"fresh-{name}", f"{cell['label']}: {name} is {other[name]!r}, not {value!r}")
    if fresh["order"] != [key for key in mine["order"] if key in fresh["cells"]]:
        report("fresh-order", "cells are in another order")
    if fresh["choice"] != mine["choice"] and not mine["earlier"]:
        report("fresh-choice", f"{mine['choice']} is chosen, not {fresh['choice']}")


def check_complete(machine: Machine, mine: Mapping[str, Any]) -> None:
    """What has all its seeds and rounds is done, and what is done has them."""
    for key, cell in mine["cells"].items():
        ends = [cell["seeds"].get(str(seed), {}) for seed in cell["wanted"]]
        whole = all(end.get("stored") == "done" and end["rounds"] == cell["rounds"] for end in ends)
        if whole and cell["state"] != "done":
            machine.report("state", f"{cell['label']} has all its seeds and rounds, but is {cell['state']}")
        if cell["state"] == "done" and not mine["decided"] and not whole:
            machine.report("missing", f"{cell['label']} is done, but its seeds are {ends}")
        if cell["state"] in ("queued", "paused"):
            machine.report("end", f"{cell['label']} is {cell['state']} at the end")
        if cell["state"] == "failed" and cell["trouble"] != "fails":
            machine.report("failed", f"{cell['label']} has failed for good")
        if (cell["role"] == "reference" or cell["reference"]) and cell["state"] == "pruned":
            machine.report("reference-pruned", f"the reference {cell['label']} is pruned")
        for seed, end in cell["seeds"].items():
            if (
                end["stored"] == "diverged"
                and f"{key} {seed}" in machine.retried
                and machine.diverged()[f"{key} {seed}"] <= machine.retried[f"{key} {seed}"]
            ):
                machine.report(
                    "retry-lost", f"{cell['label']}, seed {seed} diverged before --retry, and never ran again"
                )


def check_order(machine: Machine, mine: Mapping[str, Any]) -> None:
    """Cells are in the order in which the study lists the values of its first axis."""
    first, values = next(iter(machine.study["axes"].items()), ("", []))
    cells = [mine["cells"][key]["varied"] for key in mine["order"] if mine["cells"][key]["role"] == "cell"]
    places = [values.index(cell[first]) for cell in cells if cell.get(first) in values]
    if places != sorted(places):
        machine.report("order", f"values of {first} are at {places}")


def check_searches(machine: Machine, mine: Mapping[str, Any]) -> None:
    """Of each search, a trial is done, published points were tried, and the best one at a rung went on."""
    trials = [cell for cell in mine["cells"].values() if cell["role"] == "trial"]
    for part in {json.dumps(cell["part"]) for cell in trials}:
        own = [cell for cell in sorted(trials, key=lambda cell: cell["number"]) if json.dumps(cell["part"]) == part]
        states = {cell["state"] for cell in own}
        if "pruned" in states and "done" not in states:
            machine.report("nobody", f"trials of {part} were pruned, but none is done")
        check_published(machine, json.loads(part), own)
        check_confirmed(machine, mine, part, "done" in states)
        check_number(machine, own)
        if len(machine.seen) == 1 and not (machine.other_rule or machine.other_seeds or machine.damaged):
            check_halving(machine, mine, own)


def check_confirmed(machine: Machine, mine: Mapping[str, Any], part: str, done: bool) -> None:
    """The choice of each search is confirmed, on seeds that none of its trials has run."""
    points = [cell for cell in mine["cells"].values() if json.dumps(cell["part"]) == part]
    points = [cell for cell in points if cell["role"] in ("tuned", "published")]
    tuned = [cell for cell in points if cell["role"] == "tuned"]
    wanted = mine["confirm"] and done
    if len(tuned) > wanted or (len(tuned) < wanted and not edited(machine)):  # all trials may be outside of the space
        machine.report("confirmed", f"{len(tuned)} cells confirm the choice of {part}")
    if len(points) - len(tuned) > 1:
        machine.report("confirmed", f"{len(points) - len(tuned)} published points are confirmed in {part}")
    used = {int(s) for cell in mine["cells"].values() if cell["role"] == "trial" for s in cell["every"]}
    if again := used & {int(seed) for cell in points for seed in cell["wanted"]}:
        machine.report("fresh-seeds", f"seeds {again} confirm a choice, but trials have run them")


def edited(machine: Machine) -> bool:
    """Whether anything was edited or damaged on which a search depends."""
    search = machine.other_rule or machine.other_space or machine.other_cells or machine.other_seeds
    return search or machine.damaged or len(machine.seen) > 1


def check_published(machine: Machine, part: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """A search has tried each published point inside of its space."""
    ranges = {**machine.space.get("space", {}), **machine.study["search"].get("space", {})}
    searched = machine.study["search"].get("only") or ranges
    points = [point.items() for point in machine.space.get("published", [])]
    at_points = [cell for cell in trials if any(point <= cell["varied"].items() for point in points)]
    search = machine.study["search"]
    if len(at_points) >= min(len(trials), search.get("trials") or search.get("budget") or math.inf):
        return  # its budget paid for no further trial
    states = {cell["state"] for cell in at_points}
    if states == {"pruned"} and not edited(machine):
        machine.report("published-pruned", "all published points are pruned, so that no gain over them is known")
    for point in points:
        own = {name: value for name, value in point if name in searched and name not in part}
        inside = all(_holds(ranges[name], value) for name, value in own.items())
        if own and inside and not any(own.items() <= cell["varied"].items() for cell in trials):
            machine.report("published", f"{own} is inside of the space, but was never tried")


def _holds(bounds: Mapping[str, Any], value: float) -> bool:
    """Whether a value is within the bounds of a range, and a multiple of its step."""
    low, high, step = bounds["low"], bounds["high"], bounds.get("step")
    return low <= value <= high and (not step or math.isclose((value - low) / step, round((value - low) / step)))


def check_number(machine: Machine, trials: Sequence[Mapping[str, Any]]) -> None:
    """A search that was never edited has at most the trials that it states."""
    stated = machine.study["search"].get("trials")
    if stated and not edited(machine) and len(trials) > stated:
        machine.report("trials", f"there are {len(trials)} trials of {stated}")


def check_kept(machine: Machine, mine: Mapping[str, Any]) -> None:
    """Trials, references and the original of a copy are what they were."""
    if mine["hidden"] and len(machine.seen) == 1 and not machine.damaged:
        machine.report("trials-vanish", f"the table lacks {', '.join(mine['hidden'])[:200]}, which fit the study")
    names = {name for cell in mine["cells"].values() for name in (cell["label"], cell["reference"])}
    for reference in machine.study.get("references", []):
        label = reference.get("label")
        if label and not any(label in name for name in names):
            machine.report("reference-ignored", f"no cell is called {label}")
    if machine.original and picture_of_files(machine.original[0]) != machine.original[1]:
        machine.report("copy", "a run in a copy of the results changed the original")


def check_once(machine: Machine, mine: Mapping[str, Any]) -> None:
    """No round runs twice beyond a checkpoint interval for each kill."""
    log = machine.aside / "rounds"
    if machine.damaged or machine.back or not log.exists():
        return
    deaths = machine.aside / "deaths"
    lost = machine.lost + (len(deaths.read_text()) if deaths.exists() else 0)
    interval = int(machine.study.get("execution", {}).get("checkpoint_every", 5))
    counts = Counter(log.read_text().splitlines())
    again: Counter[str] = Counter()
    for line, n in counts.items():
        cell, seed, _, versions = line.split()
        again[f"{cell} {seed} {versions}"] += n - 1
    for key, n in again.items():
        cell, seed, _ = key.split()
        if (machine.root / machine.name / "cells" / confirming_id(cell) / f"seed={seed}").is_dir():
            continue  # the same configuration has confirmed a search, with a seed that the study asks for by now
        found = mine["cells"].get(cell)
        if n > lost * interval and found is not None and not found["trouble"]:
            text = f"{found['label']}, seed {seed}: {n} rounds ran again after {lost} kills"
            machine.report("twice", f"{text}, with a checkpoint every {interval} rounds")


def check_halving(machine: Machine, mine: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """The best trial at a rung goes on. The first that was suggested, which is never hedged, does not as the worst."""
    first = str(mine["wanted"][0])
    reached = {cell["number"]: cell["seeds"][first]["history"] for cell in trials if first in cell["seeds"]}
    suggested = next((cell for cell in trials if not cell["published"]), None)
    early = None
    if suggested is not None and not suggested["reference"] and not machine.space.get("published"):
        early = suggested["number"]
    for rung in rungs_of(machine.study):
        values = {n: history[rung - 1]["val/acc_mean"] for n, history in reached.items() if len(history) >= rung}
        for cell in trials:
            own, number = values.get(cell["number"]), cell["number"]
            others = [value for n, value in values.items() if n != number]
            if own is None or not others or len(reached[number]) < rung:
                continue
            if cell["state"] == "pruned" and len(reached[number]) == rung and own > max(others):
                machine.report("halving", f"{cell['label']} is pruned after {rung} rounds, where no other is better")
            if number == early and len(reached[number]) > rung and own < min(others):
                machine.report("halving", f"{cell['label']} went on after {rung} rounds, where no other is worse")


def rungs_of(study: Mapping[str, Any]) -> list[int]:
    """Rounds after which a search of validation accuracy stops trials: the documented defaults, and what it states."""
    prune, rounds = study.get("prune", {}), study["protocol"].get("rounds", 10)
    if (
        "rule" in prune
        or "objectives" in study["search"]
        or study["search"].get("across")
        or study["search"]["sampler"] in ("nsgaii", "nsgaiii", "cma_es")
    ):
        return []
    reduction = prune.get("reduction", 3)
    found = [prune.get("first_rung") or math.ceil(rounds / reduction)]
    while found[-1] * reduction < rounds:
        found.append(found[-1] * reduction)
    return [rung for rung in found if rung < rounds]


def check_surfaces(machine: Machine) -> None:
    """Pages, tables, MLflow and Python say what a plain computation says."""
    for line in json.loads((machine.aside / "surfaces").read_text()):
        key, _, text = line.partition(" ")
        key = key.rstrip(":")
        machine.report(key, text)


_OF_CLOCKS = ("finished", "fingerprints", "time/seconds", "time/test_seconds")


def table_of(root: Path, name: str) -> dict[str, Any]:
    """What a reader of a store finds: the cells of the study with the results of their seeds, and the choice."""
    store = Store.open(root, name)
    spec, design, cells = store.spec(), store.design(), dict[str, Any]()
    wanted = spec.first_seeds() if spec.declared_looks() else spec.seed_list()
    table = store.table()
    listed = [stored.cell for stored in table.cells.values() if not stored.earlier]
    for cell in listed:
        stored, run = table.cells[cell.id], config.to_run(cell.node)
        seeds: dict[str, Any] = {}
        own = [*design.seeds_of(cell)] if design.confirm else wanted
        for seed, result in store.seed_results(cell).items():
            if seed in own or spec.declared_looks():
                kept = {name: value for name, value in result.items() if name not in _OF_CLOCKS}
                status = stored.results[seed]["status"] if seed in stored.results else None
                history = [
                    {n: v for n, v in record.items() if n not in _OF_CLOCKS} for record in store.history(cell, seed)
                ]
                seeds[str(seed)] = {**kept, "stored": result["status"], "status": status, "history": history}
        cells[cell.id] = {
            "label": cell.label,
            "number": cell.number,
            "role": cell.role,
            "reference": cell.reference,
            "published": cell.published,
            "state": str(stored.state),
            "rounds": run.rounds,
            "trouble": trouble_of(run),
            "varied": cell.varied,
            "part": {name: cell.varied[name] for name in axes_of(spec.axes) if name in cell.varied},
            "seeds": seeds,
            "wanted": own,
            "every": [*store.all_results(cell)],
        }
    trials, hidden = [cell for cell in listed if cell.role == "trial"], list[str]()
    for cell in store.cells_outside_tables() if trials else ():
        if cell.role == "trial" and store.seeds(cell):
            own, other = flatten(cell.node), flatten(trials[0].node)
            differing = {name for name in own.keys() | other.keys() if own.get(name) != other.get(name)}
            if differing <= cell.varied.keys() | trials[0].varied.keys():
                hidden.append(cell.label)
    try:
        choice: Any = choose_finished(table).label
    except ConfigError as problem:
        choice = f"none: {str(problem)[:40]}"
    return {
        "cells": cells,
        "order": [cell.id for cell in listed],
        "hidden": hidden,
        "choice": choice,
        "wanted": wanted,
        "confirm": bool(design.confirm),
        "decided": bool(spec.declared_looks()),
        "earlier": any(stored.earlier for stored in table.cells.values()),
    }


def _differing(one: Any, other: Any) -> str:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return f"{str(one)[:80]} instead of {str(other)[:80]}"
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name} is {str(one.get(name))[:80]}, not {str(other.get(name))[:80]}" for name in names)
