"""What holds after every history, and what is known not to hold yet."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
import surfaces
from processes import picture_of_files
from standin import trouble_at, trouble_of

from fpl_tune import config
from fpl_tune.study.cells import confirming_id

if TYPE_CHECKING:
    from machine import Machine

LATER: dict[str, str] = {}
"""Keys of faults that are known and left out -> the fault in one line."""


def check(machine: Machine, end: Ending) -> None:
    """Checks a study that is at its end."""
    mine = end.table
    for line in end.disagreements:  # pages, tables, MLflow and Python say what a plain computation says
        key, _, text = line.partition(" ")
        machine.report(key.rstrip(":"), text)
    if end.changed:
        machine.report(*end.changed)
    if not machine.study.get("search", {}).get("sampler"):
        check_fresh(machine, end)
    check_complete(machine, mine)
    check_asked(machine, mine)
    check_searches(machine, mine)
    check_kept(machine, mine)
    check_once(machine, mine)


def check_fresh(machine: Machine, end: Ending) -> None:
    """A grid equals a fresh run of the final file, digit by digit and on every surface."""
    report, mine = machine.report, end.table
    root, aside = machine.work / "fresh", machine.aside / "fresh"
    aside.mkdir()
    ended = machine.child(partial(machine.to_the_end, root), aside)
    machine.expect(ended, "a fresh run", ("done",))
    if ended.kind != "done":
        return
    fresh = Ending.read(aside)
    if fresh.table["places"] != mine["places"]:
        both = itertools.zip_longest(mine["places"], fresh.table["places"], fillvalue="nothing")
        report("fresh-cells", next(_differing(*pair) for pair in both if pair[0] != pair[1]))
        return
    for key, cell in fresh.table["cells"].items():
        other = mine["cells"][key]
        for seed, found in cell["seeds"].items():
            if other["seeds"].get(seed) != found:
                report("fresh-seed", f"{cell['label']}, seed {seed}: {_differing(other['seeds'].get(seed), found)}")
        if machine.study.get("seeds") == "until_decided" and other["seeds"].keys() != cell["seeds"].keys():
            return  # seeds that a cell got because of others that have left are counted, but a fresh run has none
    texts = {surface: text for surface, text in end.texts.items() if surface != "mlflow"}
    if machine.history.real:  # a stand-in takes the same time in each run
        return
    if found := surfaces.differing(texts, fresh.texts, colours=False):
        report("fresh-surface", found)


def check_complete(machine: Machine, mine: Mapping[str, Any]) -> None:
    """What has all its seeds and rounds is done, and what is done has them."""
    for key, cell in mine["cells"].items():
        ends = [cell["seeds"].get(str(seed), {}) for seed in cell["wanted"]]
        whole = all(end.get("status") == "done" and end["rounds"] == cell["rounds"] for end in ends)
        if whole and cell["state"] != "done":
            machine.report("state", f"{cell['label']} has all its seeds and rounds, but is {cell['state']}")
        if cell["state"] == "done" and machine.study.get("seeds") != "until_decided" and not whole:
            machine.report("missing", f"{cell['label']} is done, but its seeds are {ends}")
        if cell["state"] in ("queued", "paused"):
            machine.report("end", f"{cell['label']} is {cell['state']} at the end")
        if cell["state"] == "failed" and cell["trouble"] not in ("fails", "is refused"):
            machine.report("failed", f"{cell['label']} has failed for good")
        if (cell["role"] == "reference" or cell["reference"]) and cell["state"] == "pruned":
            machine.report("reference-pruned", f"the reference {cell['label']} is pruned")
        for seed, end in cell["seeds"].items():
            if (
                end["status"] == "diverged"
                and f"{key} {seed}" in machine.retried
                and machine.diverged()[f"{key} {seed}"] <= machine.retried[f"{key} {seed}"]
            ):
                machine.report(
                    "retry-lost", f"{cell['label']}, seed {seed} diverged before --retry, and never ran again"
                )


def check_asked(machine: Machine, mine: Mapping[str, Any]) -> None:
    """Cells are what today's study names, in the order of the values of its first axis."""
    axes, cells = machine.study.get("axes") or {}, [*mine["cells"].values()]
    for cell in cells:
        if cell["role"] in ("reference", "ablation"):
            continue
        for axis in axes:
            if cell["varied"].get(axis, "nothing") not in axes[axis]:
                machine.report("asked", f"{cell['label']} has no value of {axis} that the study names")
    known = [{n: v for n, v in one.items() if n != "label"}.items() for one in machine.study.get("references", [])]
    for cell in cells:
        if cell["role"] == "reference" and not any(one <= cell["varied"].items() for one in known):
            machine.report("asked", f"{cell['label']} is no reference of the study")
    bases = [cell["base"] for cell in cells if cell["role"] == "trial"]
    for cell in cells:
        if cell["role"] == "ablation" and cell["base"] not in bases:
            machine.report("asked", f"a step of an ablation, {cell['label']}, is of no search of the study")
    if axes:
        first, values = next(iter(axes.items()))
        named = [cell["varied"].get(first) for cell in cells if cell["role"] == "cell"]
        places = [values.index(value) for value in named if value in values]
        if places != sorted(places):
            machine.report("order", f"values of {first} are at {places}")


def check_searches(machine: Machine, mine: Mapping[str, Any]) -> None:
    """Of each search, a trial is done, published points were tried, and the best one at a rung went on."""
    trials = [cell for cell in mine["cells"].values() if cell["role"] == "trial"]
    for search in dict.fromkeys(cell["search"] for cell in trials):
        own = [cell for cell in sorted(trials, key=lambda cell: cell["number"]) if cell["search"] == search]
        states = {cell["state"] for cell in own}
        if "pruned" in states and "done" not in states:
            machine.report("nobody", f"trials of {search} were pruned, but none is done")
        check_published(machine, own)
        check_number(machine, own, mine["exhausted"])
        if len(machine.seen) == 1 and not (machine.other_rule or machine.other_seeds or machine.damaged):
            check_halving(machine, mine, own)
    check_confirmed(machine, mine)
    check_refused(machine, mine)


def check_confirmed(machine: Machine, mine: Mapping[str, Any]) -> None:
    """The choice of each search and its best published point are confirmed, on seeds that none of its trials had."""
    points = [cell for cell in mine["cells"].values() if cell["role"] in ("tuned", "published")]
    for role in ("tuned", "published"):
        found = {key for key, cell in mine["cells"].items() if cell["role"] == role}
        if found != (wanted := {confirming_id(key) for key in mine["confirmed"][role]}):
            machine.report("confirmed", f"cells {found} are {role}, not {wanted}")
    trials = [cell for cell in mine["cells"].values() if cell["role"] == "trial"]
    used = {*mine["seeds"], *(seed for cell in trials for seed in cell["suggestion"]["seeds"])}
    if again := used & {seed for cell in points for seed in cell["wanted"]}:
        machine.report("fresh-seeds", f"seeds {again} confirm a choice, but belong to the search")


def edited(machine: Machine) -> bool:
    """Whether anything was edited or damaged on which a search depends."""
    search = machine.other_rule or machine.other_space or machine.other_cells or machine.other_seeds
    return search or machine.damaged or len(machine.seen) > 1


def check_published(machine: Machine, trials: Sequence[Mapping[str, Any]]) -> None:
    """A search has tried each published point inside of its space."""
    axes = machine.study["axes"]
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
        own = {name: value for name, value in point if name in searched and name not in axes}
        inside = all(oracle.holds(ranges[name], value) for name, value in own.items())
        refused = trouble_at(dict(point).get("method.a", 0.0)) == "is refused"
        if own and inside and not refused and not any(own.items() <= cell["varied"].items() for cell in trials):
            machine.report("published", f"{own} is inside of the space, but was never tried")


def check_number(machine: Machine, trials: Sequence[Mapping[str, Any]], exhausted: Sequence[str]) -> None:
    """A search that was never edited has the trials that it states, or fewer if it has no new point."""
    stated = machine.study["search"].get("trials")
    if not stated or edited(machine):
        return
    if len(trials) > stated or (len(trials) < stated and not exhausted):
        machine.report("trials", f"there are {len(trials)} trials of {stated}")


def check_refused(machine: Machine, mine: Mapping[str, Any]) -> None:
    """A trial that its method refuses is refused once."""
    log = machine.aside / "refused"
    if edited(machine) or machine.lost or not log.exists():
        return
    times = Counter(line for line in log.read_text().splitlines() if line not in mine["cells"])
    if again := [key for key, number in times.items() if number > 1]:
        machine.report("refused-again", f"{again} were refused more than once")


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
    """A trial that beats all others at a rung goes on. The first that was suggested, which is never hedged, does not if
    all others beat it."""
    first = str(mine["seeds"][0])
    reached = {cell["number"]: cell["seeds"][first]["history"] for cell in trials if first in cell["seeds"]}
    suggested = next((cell for cell in trials if not cell["first"]), None)
    early = None
    if suggested is not None and not suggested["reference"] and not machine.space.get("published"):
        early = suggested["number"]
    reduction = machine.study.get("prune", {}).get("reduction", 3)
    for earlier, rung in enumerate(rungs_of(machine.study)):
        values = {n: _point(machine.study, history[rung - 1]) for n, history in reached.items() if len(history) >= rung}
        hedged = sum(cell["suggestion"]["hedged"] for cell in trials if cell["number"] in values)
        share = reduction**earlier
        room = ((len(values) - hedged) * share + hedged) // (share * reduction)  # hedged ones count less
        alone = all(len(history) <= rung for history in reached.values())
        for cell in trials:
            own, number = values.get(cell["number"]), cell["number"]
            others = [value for n, value in values.items() if n != number]
            if own is None or not others or len(reached[number]) < rung:
                continue
            stays = cell["state"] == "pruned" and len(reached[number]) == rung
            if stays and all(oracle.beats(own, other) for other in others) and (room or alone):
                machine.report("halving", f"{cell['label']} is pruned after {rung} rounds, where it beats all others")
            if number == early and len(reached[number]) > rung and all(oracle.beats(other, own) for other in others):
                machine.report("halving", f"{cell['label']} went on after {rung} rounds, where all others beat it")


def _point(study: Mapping[str, Any], record: Mapping[str, Any]) -> list[float]:
    """The objectives of a search after a round, of which higher ones are better: validation accuracy, and bytes."""
    sent = record["comm/up_bytes"] + record["comm/down_bytes"]
    return [record["val/acc_mean"], -sent][: len(study["search"].get("objectives", ["val/acc_mean"]))]


def rungs_of(study: Mapping[str, Any]) -> list[int]:
    """Rounds after which a search of validation accuracy, alone or with bytes, stops trials: by the documented defaults
    and by what it states."""
    prune, rounds = study.get("prune", {}), study["protocol"].get("rounds", 10)
    if (
        "rule" in prune
        or study["search"].get("objectives", ["val/acc_mean"])[0] != "val/acc_mean"
        or study["search"].get("across")
        or study["search"]["sampler"] in ("nsgaii", "nsgaiii", "cma_es")
    ):
        return []
    reduction = prune.get("reduction", 3)
    found = [prune.get("first_rung") or math.ceil(rounds / reduction)]
    while found[-1] * reduction < rounds:
        found.append(found[-1] * reduction)
    return [rung for rung in found if rung < rounds]


_OF_CLOCKS = ("finished", "fingerprints", "time/seconds", "time/test_seconds", "time/train_seconds")


@dataclass
class Ending:
    """How a study stands at its end."""

    table: dict[str, Any]
    texts: dict[str, str]
    """What users read, by surface."""
    disagreements: list[str] = field(default_factory=list)
    """With the oracle."""
    changed: tuple[str, str] | None = None
    """Key and text if a further start, or the removal of what the study does not ask for, changes what is read."""

    @property
    def everything(self) -> dict[str, str]:
        """What users read, and the cells and results behind it."""
        return {**self.texts, "cells": json.dumps([self.table[name] for name in ("places", "cells")])}

    @classmethod
    def read(cls, aside: Path) -> Ending:
        """Reads what `write` has written in another process."""
        return cls(**json.loads((aside / "ending").read_text()))

    def write(self, aside: Path) -> None:
        """Writes it into a folder."""
        (aside / "ending").write_text(json.dumps(asdict(self)))


def table_of(folder: Path, shown: surfaces.Surfaces) -> dict[str, Any]:
    """The cells of a study with the results of their seeds, and what the choice of a search asks for.

    Args:
        folder: of the study.
        shown: what the product says of it, for the states.
    """
    facts, cells = oracle.load(folder), dict[str, Any]()
    rows = json.loads(shown.calls["show", "--format", "json"].out or "[]")
    states = {row["cell"]: row["status"] for row in rows}
    searched = {name for cell in facts.cells if cell.suggestion for name in cell.suggestion["params"]}
    for cell in facts.cells:
        run = config.to_run(cell.run)
        seeds = {
            str(seed): {n: v for n, v in result.items() if n not in _OF_CLOCKS}
            | {"history": [{n: v for n, v in r.items() if n not in _OF_CLOCKS} for r in cell.histories[seed]]}
            for seed, result in cell.results.items()
        }
        cells[cell.id] = {
            **{name: getattr(cell, name) for name in ("label", "role", "reference", "search", "first", "varied")},
            "number": cell.number if cell.suggestion is None else cell.suggestion["number"],
            "suggestion": cell.suggestion,
            "state": states.get(cell.id, "nothing"),
            "base": {name: value for name, value in oracle.leaves(cell.run) if name not in searched},
            "rounds": run.rounds,
            "trouble": trouble_of(run),
            "wanted": cell.wanted,
            "seeds": seeds,
        }
    rule, confirmed = facts.study["report"]["rule"], dict[str, list[str]]()
    searches = facts.searches if facts.study["effective"]["confirm"] else []
    for role in ("tuned", "published"):
        candidates = [[cell for cell in own if role == "tuned" or cell.first] for own in searches]
        confirmed[role] = [key for own in candidates for key in oracle.choose(facts, rule, own)[0]]
    confirmed["published"] = [key for key in confirmed["published"] if key not in confirmed["tuned"]]
    return {
        "places": oracle.places(folder),
        "exhausted": (oracle.read_json(folder / "cells.json") or {}).get("exhausted", []),
        "cells": cells,
        "hidden": _hidden(folder, facts),
        "seeds": oracle.seeds_of({"role": "trial"}, facts.study),
        "confirmed": confirmed,
    }


def _hidden(folder: Path, facts: oracle.Facts) -> list[str]:
    """Points with results that the table lacks, though only what is searched tells them from a trial in it."""
    known = {cell.id for cell in facts.cells} | {confirming_id(path.name) for path in folder.glob("cells/*")}
    trials = [cell for cell in facts.cells if cell.role == "trial" and cell.suggestion is not None]
    runs = [(dict(oracle.leaves(cell.run)), cell) for cell in {cell.search: cell for cell in trials}.values()]
    found = list[str]()
    for path in sorted(folder.glob("cells/*/cell.json")) if trials else ():
        node = oracle.read_json(path)
        if node is None or node["id"] in known or not node["suggestion"]:
            continue
        if not any(path.parent.glob("seed=*/result.json")):
            continue
        run, params = dict(oracle.leaves(node["run"])), node["suggestion"]["params"]
        for other, trial in runs:
            searched = {*params, *(trial.suggestion or {})["params"]}
            if all(run.get(name) == other.get(name) for name in (run.keys() | other.keys()) - searched):
                found.append(", ".join(f"{name}={value}" for name, value in params.items()))
    return found


def copy_asked_for(root: Path, name: str, target: Path) -> None:
    """Copies an output folder; of the cells of a study only those in cells.json, with the seeds that they ask for."""
    folder = root / name
    study, places = oracle.load(folder).study, {place["id"]: place for place in oracle.places(folder)}

    def ignored(at: str, names: list[str]) -> set[str]:
        path = Path(at)
        if path == root:
            return {each for each in names if (path / each).is_dir() and each != name}
        if path == folder:
            return {"results.csv", "rules.csv"}  # which are made anew
        if path == folder / "cells":
            return {*names} - places.keys()
        if path.parent == folder / "cells":
            seeds = {f"seed={seed}" for seed in oracle.seeds_of(places[path.name], study)}
            return {each for each in names if each.startswith("seed=")} - seeds
        return set()

    shutil.copytree(root, target, ignore=ignored)


def _differing(one: Any, other: Any) -> str:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return f"{str(one)[:80]} instead of {str(other)[:80]}"
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name} is {str(one.get(name))[:80]}, not {str(other.get(name))[:80]}" for name in names)
