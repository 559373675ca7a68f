"""Draws histories: a study, and what happens to it. Hypothesis draws, so that a history that fails shrinks."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from machine import Event, History

PLAIN = [0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7]
TROUBLED = [0.77, 0.81, 0.83, 0.85, 0.89, 0.93, 0.97]
"""Values of `a` at which a cell fails once, fails, is out of memory once, diverges late, in one seed, at once."""
SAMPLERS = ["random", "tpe", "gp", "qmc", "nsgaii", "nsgaiii", "auto", {"name": "tpe", "n_startup_trials": 2}]
METRICS = ["test/acc_mean", "test/loss", "test/ece", "test/acc_std", "mine/score", "comm/up_bytes"]
RULES = ["final", "best_val", "best_test", "mean_last5"]
FILES = ["study.yaml", "cells.json", "cell.json", "result.json", "metrics.jsonl", "*.safetensors", "*.json", "*"]


def head() -> dict[str, Any]:
    """What every study of a history has."""
    return {
        "defaults": ["/study", {"override /method": "mine:Mine"}, "_self_"],
        "data": {
            "name": "photos:photos",
            "train_per_class": 6,
            "test_per_class": 1,
            "shots": 2,
            "domains": ["clipart"],
        },
        "partition": {"n_clients": 2},
        "protocol": {"rounds": 4, "epochs": 1},
        "execution": {"executor": "inline", "device": "cpu", "checkpoint_every": 1},
        "tracking": {"enabled": False},
    }


def _head(draw: Any) -> dict[str, Any]:
    """The same with numbers of rounds, of rounds between checkpoints, and of seeds."""
    study = {**head(), "seeds": draw(_seeds())}
    study["protocol"]["rounds"] = draw(st.sampled_from([4, 1, 3, 6]))
    study["execution"]["checkpoint_every"] = draw(st.sampled_from([1, 2, 5]))
    return study


def _seeds() -> Any:
    return st.sampled_from([2, 1, 3, 4, [1, 3], [5, 2, 7]])


def _values(least: int = 1) -> Any:
    """Values of the axis `method.a`."""
    plain = st.lists(st.sampled_from(PLAIN), min_size=least, max_size=4, unique=True)
    return st.one_of(plain, st.lists(st.sampled_from(PLAIN + TROUBLED), min_size=least, max_size=5, unique=True))


def _references() -> Any:
    one = st.sampled_from([{"method": "mine:Other"}, {"method": "zeroshot"}, {"method.a": 0.3}, {"method.a": 0.15}])
    named = st.sampled_from([{"method": "mine:Other", "label": "the other"}, {"method.a": 0.4, "label": "four tenths"}])
    return st.lists(st.one_of(one, named), max_size=2, unique_by=str)


def _report() -> Any:
    return st.fixed_dictionaries(
        {},
        optional={
            "metric": st.sampled_from(METRICS),
            "rule": st.sampled_from(RULES),
            "rope": st.sampled_from([0, 3]),
            "reference": st.sampled_from(["mine:Other", "a=0.3", "the other"]),
        },
    )


def _claimed(draw: Any) -> dict[str, Any]:
    """Values of the axis `method.a`, and a report with a claim about the first two of them."""
    values, report = draw(_values(2)), draw(_report())
    claim = {"says": "The first is better.", "cells": {"a": values[0]}, "versus": {"a": values[1]}}
    return {"axes/method.a": values, "report": {**report, "claims": {"first": claim}}}


def _second_axis() -> Any:
    """A further axis of a grid: a form of the curve, a whole number, a setting, or bundles with labels."""
    bundles = [{"label": "low", "method.c": 1, "optim.lr": 0.1}, {"label": "high", "method.c": 5, "optim.lr": 0.2}]
    return st.sampled_from(
        [
            {},
            {"method.b": ["plain", "crossing"]},
            {"method.b": ["tie", "perfect"]},
            {"method.c": [1, 2]},
            {"data.shots": [2, 3]},
            {"arm": bundles},
        ]
    )


def _grid(draw: Any) -> dict[str, Any]:
    study = _head(draw)
    study["axes"] = {"method.a": draw(_values()), **draw(_second_axis())}
    study["references"], study["report"] = draw(_references()), draw(_report())
    if draw(st.integers(0, 4)) == 0:
        study["data"]["val"] = 0
    if draw(st.integers(0, 3)) == 0:
        study["seeds"], study["looks"] = "until_decided", draw(st.sampled_from([[2, 3, 5], [2, 4]]))
    return study


def _range() -> Any:
    """A range of `method.a`, or choices, among which are published values."""
    ends = st.sampled_from([(0.1, 0.7), (0.0, 0.75), (0.2, 0.5), (0.1, 0.99), (0.86, 0.99), (0.79, 0.85)])
    step = st.sampled_from([None, None, None, 0.2])
    ranges = st.builds(lambda e, s: {"low": e[0], "high": e[1]} | ({} if s is None else {"step": s}), ends, step)
    return st.one_of(ranges, ranges, st.sampled_from([{"choices": [0.3, 0.45, 0.55]}, {"choices": [0.2, 0.75, 0.3]}]))


def _search(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A search, and its file of the search space."""
    study = _head(draw)
    study["search"] = search = {"sampler": draw(st.sampled_from(SAMPLERS)), **draw(_size())}
    space = {"space": {"method.a": draw(_range()), "method.c": {"low": 1, "high": 4}}, "published": []}
    if draw(st.booleans()):
        space["space"]["method.b"] = {"choices": ["plain", "crossing"]}
    space["published"] = draw(_published())
    search["only"] = draw(st.sampled_from([["method.a"], ["method.a", "method.c"], ["method.c"]]))
    search["confirm"] = draw(_confirm())
    if draw(st.integers(0, 3)) == 0:
        search["objectives"] = draw(_objectives())
    search["limits"] = draw(_limits())
    study["axes"] = draw(_axes_of_searches())
    study["references"], study["report"] = draw(_references()), draw(_report())
    if "data.shots" in study["axes"] and "objectives" not in search and draw(st.booleans()):
        search["across"] = "settings"
    elif prune := draw(_prune()):
        study["prune"] = prune
    return study, space


def _objectives() -> Any:
    """One objective, or accuracy against bytes, which `method.c` sets."""
    return st.sampled_from(
        [["val/acc_mean", "comm/total_bytes"], ["val/loss"], ["mine/score"], ["val/acc_mean", "mine/score"]]
    )


def _axes_of_searches() -> Any:
    """Axes in whose cells `method.a` is searched."""
    return st.sampled_from(
        [{}, {}, {"data.shots": [2, 3]}, {"data.shots": [2]}, {"method.n_ctx": [2, 4]},
         {"data.shots": [2, 3], "method.n_ctx": [4]}]
    )  # fmt: skip


def _confirm() -> Any:
    """Seeds that confirm a search; some of the lists have a seed that it uses."""
    return st.sampled_from(["auto", "auto", None, 1, 2, 3, [11, 12], [4, 9], [1, 20]])


def _limits() -> Any:
    """Limits of a search, which some trials keep, or none; one is known before a trial runs."""
    some = [{"val/acc_mean": 0.5}, {"val/loss": 0.6}, {"mine/score": 0.4, "val/acc_mean": 0.3}, {"val/acc_mean": 0.99}]
    return st.one_of(st.just({}), st.just({}), st.sampled_from([*some, {"comm/total_bytes": 1e5}]))


def _published() -> Any:
    return st.lists(st.sampled_from([{"method.a": a} for a in (0.3, 0.55, 0.75, 0.9)]), max_size=2, unique_by=str)


def _size() -> Any:
    trials, budget = st.sampled_from([4, 2, 8]), st.sampled_from([2, 1, 4])
    return st.one_of(trials.map(lambda n: {"trials": n}), budget.map(lambda n: {"budget": n}))


def _prune() -> Any:
    return st.sampled_from(
        [{}, {}, {"rule": None}, {"reduction": 2}, {"reduction": 2, "first_rung": 1}, {"reduction": 2, "hedge": None}]
    )


def _joint(draw: Any) -> dict[str, Any]:
    """A joint search of shipped methods, or their tuned rates."""
    study = _head(draw)
    study["defaults"][1] = {"override /method": draw(st.sampled_from(["promptfl", "mine:Mine"]))}
    study["axes"] = {"method": draw(st.sampled_from([["promptfl", "fedprox"], ["promptfl", "fedpgp", "fedprox"]]))}
    if draw(st.booleans()):
        study["defaults"].insert(1, {"override /optim": "tuned"})
    else:
        study["search"] = {"sampler": draw(st.sampled_from(SAMPLERS)), "only": ["optim.lr"], **draw(_size())}
    return study


def _run(draw: Any) -> Event:
    """A run, which mostly goes to its end."""
    options: dict[str, Any] = {"workers": draw(st.sampled_from([1, 2, 4])), "order": draw(st.integers(0, 7))}
    match draw(
        st.sampled_from(["", "", "stop", "stop", "kill", "kill", "signal", "full", "retry", "read", "deaths", "inline"])
    ):
        case "kill":
            options["kill"] = draw(st.integers(1, 150))
        case "full":
            options["full"] = [draw(st.integers(1, 120)), draw(st.sampled_from([10_000, 1, 5]))]
        case "retry":
            options["retry"] = True
            options["stop"] = draw(st.sampled_from([None, 1, 2]))
        case "deaths":
            options["deaths"] = 0.1
        case "inline":
            options["inline"] = True
        case "":
            pass
        case other:
            options[other] = draw(st.integers(1, 12))
    return ["run", options]


COMMON = ["seeds", "seeds", "references", "source", "damage", "rounds", "report", "rare"]
RARE = ["parent", "data", "every", "read", "move", "copy", "rename", "other", "retries"]
EDITS = {
    "grid": ["axis", "axis", "looks", "second", "second", "claims", "to_search", *COMMON],
    "search": [
        "prune",
        "prune",
        "ablate",
        "space",
        "size",
        "sampler",
        "objective",
        "limits",
        "seed",
        "confirm",
        "confirm",
        "higher",
        "only",
        "file",
        "published",
        "axes",
        "across",
        "to_grid",
        *COMMON,
    ],
    "tuned": ["methods", *COMMON],
    "joint": ["size", "methods", "axes", "ablate", "confirm", "prune", "sampler", *COMMON],
}
"""Kinds of edits of each kind of study."""


def _edit(draw: Any, name: str) -> Event:
    """A change of the user's files, or of what is on disk."""
    kind = draw(st.sampled_from(RARE)) if name == "rare" else name
    match kind:
        case "source" | "parent" | "data":
            return [kind, draw(st.integers(1, 3))]
        case "higher":
            return [kind, draw(st.booleans())]
        case "seeds":
            return ["set", {"seeds": draw(_seeds())}]
        case "rounds":
            return ["set", {"protocol/rounds": draw(st.sampled_from([3, 4, 6]))}]
        case "every":
            return ["set", {"execution/checkpoint_every": draw(st.sampled_from([1, 2, 5]))}]
        case "retries":
            return ["set", {"execution/retries": draw(st.sampled_from([0, 1, 2]))}]
        case "report":
            return ["set", {"report": draw(_report())}]
        case "references":
            return ["set", {"references": draw(_references())}]
        case "axis":
            return ["set", {"axes/method.a": draw(_values())}]
        case "claims":
            return ["set", _claimed(draw)]
        case "axes":
            return ["set", {"axes": draw(_axes_of_searches())}]
        case "across":
            return ["set", {"search/across": draw(st.sampled_from(["settings", None]))}]
        case "published":
            return [kind, draw(_published())]
        case "to_search":
            search = {"sampler": draw(st.sampled_from(SAMPLERS)), "only": ["method.a"], "confirm": draw(_confirm())}
            search |= {"space": {"method.a": draw(_range())}, **draw(_size())}
            return ["set", {"search": search, "axes": draw(_axes_of_searches()), "seeds": draw(_seeds()), "report": {}}]
        case "to_grid":
            axes = {"method.a": draw(_values()), **draw(_second_axis())}
            return ["set", {"search": {}, "prune": {}, "ablate": None, "axes": axes}]
        case "second":
            axes = {"method.a": draw(_values()), **draw(_second_axis())}
            return ["set", {"axes": axes}]
        case "looks":
            return ["set", {"seeds": "until_decided", "looks": draw(st.sampled_from([[2, 3, 5], [2, 4]]))}]
        case "space":
            return ["set", {"search/space": {"method.a": draw(_range())}}]
        case "file":
            space = {"method.a": draw(_range()), "method.c": {"low": 1, "high": draw(st.sampled_from([4, 6]))}}
            return ["space", {"space": space, "published": draw(_published())}]
        case "only":
            return ["set", {"search/only": draw(st.sampled_from([["method.a"], ["method.a", "method.c"]]))}]
        case "size":
            return [
                "set",
                {"search/trials": None, "search/budget": None, **{f"search/{k}": v for k, v in draw(_size()).items()}},
            ]
        case "sampler":
            return ["set", {"search/sampler": draw(st.sampled_from(SAMPLERS))}]
        case "seed":
            return ["set", {"search/seed": draw(st.integers(0, 2))}]
        case "confirm":
            return ["set", {"search/confirm": draw(_confirm())}]
        case "ablate":
            return ["set", {"ablate": draw(st.sampled_from([None, "best"]))}]
        case "prune":
            return ["set", {"prune": draw(_prune())}]
        case "objective":
            return ["set", {"search/objectives": draw(st.one_of(_objectives(), st.just(["val/acc_mean"])))}]
        case "limits":
            return ["set", {"search/limits": draw(_limits())}]
        case "methods":
            return [
                "set",
                {
                    "axes/method": draw(
                        st.sampled_from(
                            [["promptfl"], ["fedprox", "promptfl"], ["promptfl", "fedpgp"], ["promptfl", "pfedmoap"]]
                        )
                    )
                },
            ]
        case "damage":
            return [
                kind,
                draw(st.sampled_from(FILES)),
                draw(st.integers(0, 30)),
                draw(st.sampled_from(["cut", "remove", "other", "digit"])),
            ]
        case "rename":
            return [kind, draw(st.booleans())]
        case "read":
            return [kind, draw(st.sampled_from(["report", "status", "summary"]))]
        case "other":
            return [kind, {"order": draw(st.integers(0, 3))}]
        case _:
            return [kind]


@st.composite
def histories(draw: Any) -> History:
    """A history of at most ten events."""
    kind = draw(st.sampled_from(["grid", "search", "grid", "search", "joint"]))
    space: dict[str, Any] = {}
    if kind == "grid":
        study = _grid(draw)
    elif kind == "search":
        study, space = _search(draw)
    else:
        study = _joint(draw)
        kind = "joint" if "search" in study else "tuned"
    events: list[Event] = []
    # Few kinds of edits a history: they meet each other more often than if each came with every other.
    edits = st.sampled_from(draw(st.lists(st.sampled_from(EDITS[kind]), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 4))):
        if events:
            events += [_edit(draw, draw(edits)) for _ in range(draw(st.integers(0, 2)))]
        events.append(_run(draw))
    events += [_edit(draw, draw(edits)) for _ in range(draw(st.integers(0, 2)))]
    recorded = draw(st.integers(0, 9)) == 9
    study["tracking"] = {"enabled": recorded}
    return History(study, events, space, recorded)
