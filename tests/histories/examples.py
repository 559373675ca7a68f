"""Histories that once failed. Those that still do name the key by which, and lose it with the fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from drawing import head
from machine import Event, History


class Example(NamedTuple):
    """A history that once failed."""

    name: str
    history: History
    red: str = ""
    """The key of the problem that it still has; empty: it passes."""


RUN: Event = ["run", {}]
SPACE = {"space": {"method.a": {"low": 0.1, "high": 0.7}}, "published": []}
HALVED = {"seeds": 2, "prune": {"reduction": 2, "first_rung": 1}}


def grid(*events: Event, **study: Any) -> History:
    """A history of a grid."""
    return History({**head(), **study}, [*events])


def search(*events: Event, space: Any = SPACE, size: Any = None, **study: Any) -> History:
    """A history of a search of `a`."""
    searched = {"sampler": "random", "only": ["method.a"], **(size or {"trials": 6}), **study.pop("search", {})}
    return History({**head(), "axes": {}, "seeds": 2, **study, "search": searched}, [*events], space)


def both(name: str, history: History) -> list[Example]:
    """A history of a search whose choice is confirmed, and the same without that."""
    study = {**history.study, "search": {**history.study["search"], "confirm": None}}
    return [Example(name, history), Example(f"{name}, unconfirmed", replace(history, study=study))]


RECORDED = {"tracking": {"enabled": True}}
REFUSED = {"space": {"method.a": {"low": 0.82, "high": 0.839}}, "published": []}
SOME_REFUSED = {"space": {"method.a": {"low": 0.7, "high": 0.9}}, "published": [{"method.a": 0.83}]}
DIVERGING = {"space": {"method.a": {"low": 0.96, "high": 0.99}}, "published": []}
LOOKS = {"seeds": "until_decided", "looks": [2, 4], "references": [{"method.a": 0.15}]}
SIX = {"rounds": 6, "epochs": 1}
ONE = {"axes": {"method.a": [0.3]}, "seeds": 1, "protocol": SIX}
METHODS = {"axes": {"method": ["promptfl", "fedprox"]}, "search": {"only": ["optim.lr"]}}
SEEDED = {**METHODS, "search": {"only": ["optim.lr"], "seed": 1}}
PROMPTFL = {"defaults": ["/study", {"override /method": "promptfl"}, "_self_"]}
SETTINGS = {"data.shots": [2, 3]}
ACCEPTED: Event = ["run", {"accepted": True}]
NARROWED: Event = ["set", {"axes/data.shots": [2]}]
ABLATED: Event = ["set", {"ablate": "best"}]
FIRST_CLAIM = {"first": {"says": "The first is better.", "cells": {"a": 0.3}, "versus": {"a": 0.6}}}

EXAMPLES = [
    Example(
        "halving ends while trials are paused",
        search(["run", {"stop": 5}], ["set", {"prune": {"rule": None}}], **HALVED),
    ),
    Example(
        "another reduction while trials are paused",
        search(["run", {"stop": 5}], ["set", {"prune": {"reduction": 3}}], **HALVED),
    ),
    Example("the first trial of a halved search is the worst", search(RUN, search={"seed": 6}, **HALVED)),
    Example(
        "two trials at a rung that lets one in three pass", search(RUN, size={"trials": 2}, prune={"first_rung": 1})
    ),
    Example(
        "published points at a rung where others are better",
        search(
            RUN,
            space={**SPACE, "published": [{"method.a": 0.1}, {"method.a": 0.11}]},
            size={"trials": 6},
            prune={"reduction": 2, "first_rung": 1, "hedge": None},
        ),
    ),
    Example(
        "a published point between the steps of its range",
        search(
            RUN,
            space={"space": {"method.a": {"low": 0.1, "high": 0.7, "step": 0.2}}, "published": [{"method.a": 0.55}]},
            size={"trials": 3},
        ),
    ),
    Example(
        "a worker waits for a trial that may reach the rung",
        search(["run", {"workers": 2, "order": 1}], size={"trials": 2}, prune={"first_rung": 1}, search={"seed": 3}),
    ),
    Example(
        "a retry that is stopped",
        grid(
            RUN,
            ["set", {"seeds": 2}],
            ["run", {"retry": True, "stop": 1}],
            axes={"method.a": [0.3, 0.97]},
            seeds=1,
        ),
    ),
    Example(
        "a search that the study no longer asks for, with more seeds",
        search(RUN, ["set", {"axes/data.shots": [2], "seeds": 3}], axes={"data.shots": [2, 3]}, size={"trials": 3}),
    ),
    Example("a budget of trials that diverge at once", search(RUN, size={"budget": 2}, space=DIVERGING)),
    Example(
        "a search some of whose suggestions are refused, started again",
        search(RUN, RUN, size={"trials": 5}, space=SOME_REFUSED),
    ),
    Example("a search whose suggestions are all refused", search(RUN, RUN, size={"trials": 3}, space=REFUSED)),
    Example(
        "searches whose suggestions are refused in part, continued with a wider space",
        search(
            ["run", {"workers": 2, "stop": 4}],
            ["set", {"axes": {"data.shots": [2]}}],
            RUN,
            ["space", {**SOME_REFUSED, "space": {"method.a": {"low": 0.3, "high": 0.9}}}],
            RUN,
            size={"trials": 5},
            space=SOME_REFUSED,
            axes={"data.shots": [2, 3]},
            **HALVED,
        ),
    ),
    Example(
        "settings that share their trials, of which some are refused, and a source that is edited",
        search(
            RUN,
            ["source", 2],
            RUN,
            space=SOME_REFUSED,
            size={"trials": 4},
            search={"across": "settings"},
            axes={"data.shots": [2, 3]},
        ),
    ),
    Example("fewer seeds than at the rung of seeds", search(RUN, ["set", {"seeds": 1}], **{**HALVED, "seeds": 3})),
    Example("a seed that fails once, and is tried again", grid(RUN, axes={"method.a": [0.77, 0.3]}, seeds=1)),
    Example(
        "a seed that fails once, and is not tried again until the next start",
        grid(RUN, axes={"method.a": [0.77, 0.3]}, execution={**head()["execution"], "retries": 0}, seeds=1),
    ),
    Example("another source of a method whose cell is done", grid(RUN, ["source", 2], **ONE)),
    Example(
        "fewer seeds and another axis",
        grid(RUN, ["set", {"axes/method.a": [0.4], "seeds": 1}], axes={"method.a": [0.3, 0.4]}, seeds=3),
    ),
    Example("comparisons that need a second look", grid(RUN, axes={"method.a": [0.2, 0.25, 0.4]}, **LOOKS)),
    Example("a kill late in a cell", grid(["run", {"kill": 30, "order": 1}], **ONE)),
    Example(
        "another source of a method whose cell has a checkpoint",
        grid(["run", {"kill": 30, "order": 1}], ["source", 2], **ONE),
    ),
    Example(
        "a number that was changed in a history",
        grid(RUN, ["damage", "metrics.jsonl", 0, "digit"], axes={"method.a": [0.3, 0.5]}, seeds=1),
    ),
    Example("two cells that tie on validation", grid(RUN, axes={"method.b": ["tie"], "method.a": [0.3, 0.4]})),
    Example(
        "the best round on validation where all tie",
        grid(RUN, axes={"method.b": ["tie", "plain"]}, report={"rule": "best_val"}),
    ),
    Example(
        "the best round on test, which chooses no cell",
        grid(RUN, axes={"method.a": [0.4, 0.45]}, report={"rule": "best_test"}, seeds=1, protocol=SIX),
    ),
    Example(
        "another axis where seeds are added until comparisons are decided",
        grid(["run", {"signal": 1}], ["set", {"axes/method.a": [0.5]}], axes={"method.a": [0.2, 0.7, 0.3]}, **LOOKS),
    ),
    Example(
        "paused trials that become references",
        search(
            ["run", {"stop": 6}],
            ["set", {"references": [{"method.a": 0.7}, {"method.a": 0.65}]}],
            space={**SPACE, "published": [{"method.a": 0.3}, {"method.a": 0.7}, {"method.a": 0.65}]},
            **HALVED,
        ),
    ),
    Example(
        "a joint search that gets a method which cannot run",
        search(RUN, ["set", {"axes/method": ["promptfl", "pfedmoap"]}], RUN, **METHODS),
    ),
    Example(
        "--retry is stopped, and another rule set",
        search(
            RUN,
            ["run", {"retry": True, "stop": 1}],
            ["set", {"prune": {"reduction": 2}}],
            space={**DIVERGING, "published": [{"method.a": 0.97}]},
        ),
    ),
    Example(
        "a cell joins where seeds are added until comparisons are decided",
        grid(RUN, ["set", {"axes/method.a": [0.1, 0.4]}], axes={"method.a": [0.1, 0.2, 0.3]}, **LOOKS),
    ),
    Example(
        "a space that is widened over a published point",
        search(
            RUN,
            ["set", {"search/trials": 6, "search/space": {"method.a": {"low": 0.1, "high": 0.7}}}],
            search={"trials": 3, "space": {"method.a": {"low": 0.1, "high": 0.4}}},
            space={**SPACE, "published": [{"method.a": 0.55}]},
        ),
    ),
    Example(
        "another sampler",
        search(RUN, ["set", {"search/sampler": "tpe"}], size={"trials": 3}),
    ),
    Example(
        "a reference that equals a cell",
        grid(RUN, axes={"method.a": [0.3, 0.4]}, references=[{"method.a": 0.3, "label": "three tenths"}]),
    ),
    Example(
        "a loss in the report",
        grid(RUN, axes={"method.a": [0.1, 0.4, 0.7]}, report={"metric": "test/loss"}, seeds=4),
    ),
    Example(
        "the mean of the last five rounds of curves that cross",
        grid(RUN, axes={"method.b": ["plain", "crossing"]}, protocol={"rounds": 6}, report={"rule": "mean_last5"}),
    ),
    Example(
        "a copy with its MLflow",
        replace(
            grid(RUN, ["copy"], ["set", {"axes/method.a": [0.3, 0.5]}], axes={"method.a": [0.3, 0.4]}, **RECORDED),
            mlflow=True,
        ),
    ),
    Example(
        "a process dies before its first round, and the next attempt fails once",
        grid(
            ["run", {"deaths": 0.1}],
            data={**head()["data"], "val": 0},
            protocol={"epochs": 1},
            seeds=1,
            axes={"method.a": [0.77, 0.45, 0.7], "method.b": ["tie", "perfect"]},
            references=[{"method.a": 0.4, "label": "four tenths"}],
            report={"rule": "best_test", "reference": "the other", "metric": "mine/score", "rope": 3},
        ),
    ),
    Example(
        "a trial that waited with its first seed at its end is of an earlier run",
        replace(
            search(
                ["run", {"workers": 2, "order": 0}],
                ["set", {"axes/method": ["promptfl"]}],
                ["run", {"workers": 1, "order": 5, "retry": True, "stop": 2}],
                size={"trials": 8, "only": ["optim.lr"], "sampler": "tpe"},
                space={},
                protocol={"rounds": 3, "epochs": 1},
                seeds=[1, 3],
                axes={"method": ["promptfl", "fedprox"]},
                **RECORDED,
            ),
            mlflow=True,
        ),
    ),
    Example(
        "a cell of an earlier run has a seed that diverged and lacks another",
        grid(
            ["set", {"axes/method.a": [0.93, 0.77, 0.89, 0.6]}],
            ["run", {"workers": 2, "order": 6, "kill": 118}],
            ["run", {"workers": 2, "order": 6, "full": [69, 5]}],
            ["set", {"axes": {"method.a": [0.7]}}],
            execution={**head()["execution"], "checkpoint_every": 2},
            protocol={"rounds": 1, "epochs": 1},
            seeds=[5, 2, 7],
            axes={"method.a": [0.35, 0.4], "method.b": ["tie", "perfect"]},
            report={"reference": "a=0.3"},
        ),
    ),
    *both(
        "an axis of methods is dropped",
        search(RUN, ["set", {"axes": {}}], ACCEPTED, ABLATED, ACCEPTED, **PROMPTFL, **SEEDED),
    ),
    *both(
        "an axis of methods is replaced by one of settings",
        search(RUN, ["set", {"axes": SETTINGS}], ACCEPTED, ABLATED, RUN, **PROMPTFL, **METHODS),
    ),
    *both(
        "settings that share their trials are narrowed",
        search(RUN, NARROWED, ACCEPTED, axes=SETTINGS, search={"across": "settings"}, size={"trials": 3}),
    ),
    *both(
        "settings stop sharing their trials, and share them again",
        search(
            RUN,
            ["set", {"search/across": None}],
            ACCEPTED,
            ["set", {"search/across": "settings"}],
            axes=SETTINGS,
            search={"across": "settings"},
            size={"trials": 3},
        ),
    ),
    Example(
        "a grid over settings that are narrowed",
        grid(RUN, NARROWED, axes={"method.a": [0.3, 0.5, 0.6], **SETTINGS}, report={"claims": FIRST_CLAIM}),
    ),
    Example("a sweep over settings that are narrowed", grid(RUN, NARROWED, axes={"method.a": [0.3, 0.5], **SETTINGS})),
    *both(
        "a search becomes a grid",
        search(
            RUN,
            ["set", {"search": {}, "axes": {"method.a": [0.3, 0.4, 0.5]}}],
            ACCEPTED,
            space={**SPACE, "published": [{"method.a": 0.3}]},
        ),
    ),
    *(
        Example(
            f"a grid becomes a search, whose choice has {confirm} seeds",
            replace(
                grid(
                    RUN,
                    ["set", {"search": {"trials": 3, "sampler": "random", "confirm": confirm}, "axes": {}}],
                    ["set", {"search/only": ["method.a"]}],
                    ACCEPTED,
                    axes={"method.a": [0.3, 0.4, 0.5]},
                ),
                space={"space": {"method.a": {"low": 0.6, "high": 0.7}}, "published": []},
            ),
        )
        for confirm in (None, 2)
    ),
    Example(
        "a grid of two seeds with fewer values and six seeds",
        grid(RUN, ["set", {"axes/method.a": [0.4, 0.45], "seeds": 6}], axes={"method.a": [0.3, 0.4, 0.45, 0.5]}),
    ),
    *both(
        "the file of a space is narrowed",
        search(RUN, ["space", {"space": {"method.a": {"low": 0.5, "high": 0.7}}, "published": []}], ACCEPTED),
    ),
    *both(
        "a point that a trial has tried is published in place of another",
        search(
            RUN,
            ["published", [{"method.a": 0.45}]],
            ACCEPTED,
            space={"space": {"method.a": {"choices": [0.3, 0.45, 0.6]}}, "published": [{"method.a": 0.3}]},
            size={"trials": 3},
        ),
    ),
    *both(
        "a published point is corrected",
        search(RUN, ["published", [{"method.a": 0.55}]], ACCEPTED, space={**SPACE, "published": [{"method.a": 0.3}]}),
    ),
    *both(
        "a published point is withdrawn",
        search(RUN, ["published", []], ACCEPTED, space={**SPACE, "published": [{"method.a": 0.3}]}),
    ),
    Example(
        "another reference, and a wider axis",
        grid(
            RUN,
            ["set", {"references": [{"method": "mine:Other"}], "axes/method.a": [0.2, 0.3, 0.5]}],
            axes={"method.a": [0.3, 0.5]},
            references=[{"method": "zeroshot"}],
        ),
    ),
    *both(
        "a joint search with a reference over settings that are narrowed",
        search(
            RUN,
            NARROWED,
            ACCEPTED,
            axes={**METHODS["axes"], **SETTINGS},
            search=METHODS["search"],
            references=[{"method": "zeroshot"}],
            size={"trials": 2},
        ),
    ),
    *both(
        "a reference that is also the first trial",
        search(RUN, axes=SETTINGS, references=[{"method.a": 0.5}], size={"trials": 3}),
    ),
    *both(
        "the choice of a method in several settings is a reference, too",
        search(
            RUN,
            axes={"method": ["promptfl", "fedprox"], "data.shots": [2, 3]},
            references=[{"method": "promptfl", "optim.lr": 0.002}],
            search={"only": ["optim.lr"], "published": [{"optim.lr": 0.002}]},
            size={"trials": 1},
        ),
    ),
    Example(
        "a value that diverged is taken out",
        replace(
            grid(RUN, ["set", {"axes/method.a": [0.3, 0.4]}], axes={"method.a": [0.3, 0.4, 0.97]}, **RECORDED),
            mlflow=True,
        ),
    ),
    *both("an ablation after a halved search", search(RUN, ABLATED, ACCEPTED, ["read", "report"], **HALVED)),
    Example(
        "a search begins anew with other rounds, and is confirmed on seeds that the former one had",
        search(RUN, ["set", {"protocol/rounds": 3, "seeds": [1, 2]}], size={"trials": 2}, seeds=[3, 4]),
    ),
    *both("a halved search is stopped in its last round, and continued", search(["run", {"stop": 27}], RUN, **HALVED)),
    Example(
        "the confirmation of a halved search is stopped in its last round",
        search(["run", {"stop": 35}], **HALVED),
    ),
]

UNDER_RAY: Event = ["run", {"ray": True}]
LENGTHS = {"axes": {"method.n_ctx": [2, 4]}, "seeds": 2, "references": [{"method": "zeroshot"}]}
REAL = [
    Example(
        "a grid under Ray, stopped, with another axis and more seeds",
        replace(
            grid(
                ["run", {"ray": True, "stop": 3}],
                ["set", {"axes/method.n_ctx": [4, 8], "seeds": 3}],
                ["run", {"ray": True, "stop": 2}],
                ["source", 2],
                **LENGTHS,
            ),
            real=True,
        ),
    ),
    Example(
        "a halved search under Ray, stopped and continued with more trials",
        replace(
            search(
                ["run", {"ray": True, "signal": 4}],
                ["damage", "result.json", 1, "cut"],
                ["set", {"search/trials": 5}],
                UNDER_RAY,
                size={"trials": 3, "only": ["optim.lr"]},
                space={"space": {"optim.lr": {"low": 0.01, "high": 0.2}}, "published": [{"optim.lr": 0.05}]},
                **HALVED,
            ),
            real=True,
        ),
    ),
]
"""Histories with the true simulation, partly under Ray: they take half a minute each."""
