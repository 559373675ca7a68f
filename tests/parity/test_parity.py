"""A plain loop over state dicts computes what the platform computes, and a fault in it is named."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import one_of_each_base
from PIL import Image

import fpl_tune.method as fl
from fpl_tune import config, methods, parity
from fpl_tune.clip import load_towers
from fpl_tune.config import RunSpec
from fpl_tune.config.specs import Stage
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data.pool import read_image
from fpl_tune.data.shapes import COLOURS
from fpl_tune.method import Batch, Local, Task
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.parity import Trace, compare_trace, export_world, read_trace, trace_of, write_trace
from fpl_tune.parity.run import SeedRun, leaf_names
from fpl_tune.parity.weights import standard_tokenizer

FORK = Path(__file__).parent / "fork"
SMALL = (
    "data.domains=[clipart]", "data.shots=4", "data.train_per_class=12", "data.test_per_class=3",
    "partition.vary=false", "partition.n_clients=3", "method.n_ctx=4",
)  # fmt: skip
PLAIN = ("optim.lr=0.005", "optim.momentum=0", "protocol.rounds=2", "protocol.epochs=2")


def run(*more: str) -> RunSpec:
    return config.compose_run([*SMALL, *PLAIN, *more])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported world of three clients: seven, seven and six classes."""
    folder = tmp_path_factory.mktemp("world") / "small"
    return export_world(config.compose_run(SMALL), folder, seeds=[1, 2], overrides=SMALL)


@pytest.fixture(scope="module")
def ours(feature_cache: Path) -> Trace:
    """Two rounds of PromptFL."""
    return trace_of(run(), cache_dir=feature_cache)


@pytest.fixture(scope="module")
def of_fork(world: Path) -> Callable[[str], Trace]:
    """of_fork(fault): what the fork of `tests/parity/fork` records, in a process of its own."""

    def record(fault: str = "") -> Trace:
        path = world / f"trace-{fault}.npz"
        if not path.exists():
            words = [sys.executable, str(FORK / "federated_main.py"), str(world), str(path), fault]
            subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return read_trace(path)

    return record


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of ten pictures."""
    rng = np.random.default_rng(0)
    for name in ("gnu", "okapi"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def verdicts(found: parity.Comparison) -> dict[str, str]:
    return {row.name: row.verdict for row in found.rows}


# -- a fork ----------------------------------------------------------------------------------------------------------


def test_a_plain_loop_over_clients_computes_the_same(of_fork: Callable[..., Trace]) -> None:
    found = compare_trace(run(), of_fork())
    assert found.agrees
    seen = verdicts(found)
    assert {"first/logits", "first/gradient/prompt", "losses", "rates", "after/2/prompt", "accuracy/2"} <= seen.keys()
    assert set(seen.values()) <= {"equal", "agrees", "taken over"}
    assert seen["accuracy/1"] == seen["accuracy/2"] == "equal"
    by_name = {row.name: row.difference or 0.0 for row in found.rows}
    assert by_name["first/logits"] < 1e-5
    assert by_name["losses"] < 1e-5
    assert by_name["first/gradient/prompt"] < 1e-5
    assert found.seconds is not None
    assert min(found.seconds) > 0


def test_the_plain_loop_drops_incomplete_batches_as_its_trace_says(of_fork: Callable[..., Trace]) -> None:
    """28 images in batches of 8 are three steps; the platform alone would take four."""
    steps = of_fork()["steps"]
    assert len(steps) == 2 * 2 * 3 * 3
    assert np.unique(steps[:, 0]).tolist() == [1, 2]


@pytest.mark.system
def test_a_later_fork_computes_the_same(of_fork: Callable[..., Trace]) -> None:
    """Batches have an index in place of a path and come second, and the learned context includes a buffer."""
    trace, cell = of_fork("later"), run("optim.weight_decay=0")
    found = compare_trace(cell, trace)
    assert found.agrees, found.finding
    assert found.notes == ()
    assert set(verdicts(found).values()) <= {"equal", "agrees", "taken over"}
    assert {"losses", "first/gradient/prompt", "after/1/prompt", "after/2/prompt", "accuracy/2"} <= trace.keys()
    assert {name.rpartition("/")[2][:6] for name in trace["images"][0] if name} == {"train-"}


@pytest.mark.system
def test_rounds_are_counted_from_the_first_of_the_fork(of_fork: Callable[..., Trace]) -> None:
    trace = of_fork("later")
    assert np.unique(trace["steps"][:, 0]).tolist() == [1, 2]
    assert {name for name in trace if name.startswith("accuracy/")} == {"accuracy/1", "accuracy/2"}


@pytest.mark.system
def test_of_several_outputs_the_first_with_the_shape_of_logits_is_recorded(of_fork: Callable[..., Trace]) -> None:
    """The first output is text features, the last one twice the logits."""
    trace = of_fork("later")
    ours = trace_of(run("optim.weight_decay=0"), given=trace)
    np.testing.assert_allclose(trace["first/logits"], ours["first/logits"], rtol=1e-4)


@pytest.mark.system
def test_a_test_of_another_split_is_not_recorded(of_fork: Callable[..., Trace]) -> None:
    """Clients have 7 or 6 classes with 3 test images each; the other split has those of the other clients."""
    trace = of_fork("later")
    for accuracy, images in zip(trace["accuracy/2"], (21, 21, 18), strict=True):
        assert accuracy * images / 100 == pytest.approx(round(accuracy * images / 100), abs=1e-3)


def test_a_fork_with_other_numbers_of_clients_ends_with_a_line_and_writes_nothing(world: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(FORK / "federated_main.py"), str(world), str(tmp_path / "trace.npz"), "users"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "fpl_world: this world has 3 clients, but the fork 2: --num_users."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("length", r"^first/logits is the first to differ.* Image features are not normalised"),
        ("sentence", r"^Your tokenizer or class names differ: the sentence of class 0 \('\w+'\) ends with '"),
        (
            "momentum",
            r"^losses is the first to differ \(step [1-9]: round 1, client 0, epoch 0\)\.$",
        ),
        ("average", r"^after/1/prompt is the first to differ \(client 0\)\.$"),
        ("decay", r"^after/1/prompt is the first to differ \(client 0\)\.$"),  # by 1.5e-5: 6 steps of 0.005 · 5e-4
    ],
)
def test_a_fault_is_named(fault: str, message: str, of_fork: Callable[..., Trace]) -> None:
    found = compare_trace(run(), of_fork(fault))
    assert not found.agrees
    assert re.search(message, found.finding), found.finding


# -- a trace that was changed ----------------------------------------------------------------------------------------


def test_our_own_trace_is_equal(ours: Trace, tmp_path: Path, feature_cache: Path) -> None:
    path = write_trace(tmp_path / "ours.npz", ours)
    found = compare_trace(run(), read_trace(path), cache_dir=feature_cache)
    assert found.agrees
    assert set(verdicts(found).values()) == {"equal", "taken over"}


def swapped(names: np.ndarray) -> np.ndarray:
    return names[[1, 0, *range(2, len(names))]]


CHANGES: dict[str, tuple[Callable[[Trace], dict[str, Any]], str]] = {
    "class order": (lambda t: {"classes": swapped(t["classes"])}, "Your labels are permuted: class 0 is 'square'"),
    "columns": (
        lambda t: {"first/logits": t["first/logits"][:, [1, 0, *range(2, 20)]]},
        "Your labels are permuted: column 0 of the trace is column 1 here",
    ),
    "labels": (
        lambda t: {"labels": np.where(t["labels"] < 0, -1, (t["labels"] + 1) % 20)},
        "Your labels are permuted: images of class 0 ('circle') are labelled 1",
    ),
    "some labels": (lambda t: {"labels": np.where(t["labels"] < 0, -1, 0)}, "Your labels"),
    "another class": (lambda t: {"classes": np.array(["dog", *t["classes"][1:]])}, "Your classes differ"),
    "another split": (
        lambda t: {"train/0": t["train/1"], "train/1": t["train/0"]},
        "Your split differs: client 0 has 28 training images, 0 of them among the 28 that it has here",
    ),
    "another client's image": (
        lambda t: {"images": np.where(t["images"] == t["images"][0, 0], t["train/2"][0], t["images"])},
        "which client 2 has here",
    ),
    "nobody's image": (
        lambda t: {"images": np.where(t["images"] == t["images"][0, 0], "dog.png", t["images"])},
        "client 0 trains on dog.png, which no client has here",
    ),
    "tokens": (lambda t: {"tokens": np.where(t["tokens"] == 269, 267, t["tokens"])}, "Your tokenizer or class names"),
    "image length": (
        lambda t: {"first/logits": t["first/logits"] * np.arange(1, 9)[:, None]},
        "Image features are not",
    ),
    "text length": (lambda t: {"first/logits": t["first/logits"] * np.arange(1, 21)}, "Text features are not normal"),
    "temperature": (lambda t: {"first/logits": t["first/logits"] / 2}, "They are 0.5 times those here: another temp"),
    "inf": (lambda t: {"first/logits": t["first/logits"] * np.inf}, "It has numbers that are not finite"),
    "features": (
        lambda t: {"first/features": t["first/features"] + 1},
        "first/features is the first to differ ([0, 0]).",
    ),
    "sum": (lambda t: {"first/gradient/prompt": 8 * t["first/gradient/prompt"]}, "It is 8 times what it is here."),
    "rate": (lambda t: {"rates": t["rates"] / 10}, "It is 0.0005 in the trace and 0.005 here: set optim.lr"),
    "loss": (lambda t: {"losses": t["losses"] + 1}, "The logits agree: the labels or the loss differ"),
    "leaf": (lambda t: {"after/1/prompt": t["after/1/prompt"][:, :2]}, "(shape [3, 2, 128], here [3, 4, 128])"),
    "not a number": (
        lambda t: {"losses": t["losses"] * np.nan},
        "client 0, epoch 0). It has numbers that are not finite",
    ),
    "accuracy": (lambda t: {"accuracy/2": t["accuracy/2"] + 1}, "accuracy/2 is the first to differ (client 0: "),
}


@pytest.mark.parametrize(
    "change", [lambda logits: logits + 0.003, lambda logits: logits**2], ids=["shifted", "squared"]
)
def test_no_cause_is_guessed(change: Callable[[np.ndarray], np.ndarray], ours: Trace, feature_cache: Path) -> None:
    given = {**ours, "first/logits": change(ours["first/logits"])}
    found = compare_trace(run(), given, cache_dir=feature_cache)
    assert found.finding == "first/logits is the first to differ ([0, 0])."


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_told(change: str, ours: Trace, feature_cache: Path) -> None:
    make, message = CHANGES[change]
    found = compare_trace(run(), {**ours, **make(ours)}, cache_dir=feature_cache)
    assert not found.agrees
    assert message in found.finding


@pytest.mark.parametrize(
    "names",
    [("accuracy/0",), ("initial/prompt", "steps", "images", "losses"), ("classes", "tokens"), ("train/0", "test/2")],
)
def test_any_subset_is_compared(names: tuple[str, ...], ours: Trace, feature_cache: Path) -> None:
    found = compare_trace(run(), {name: ours[name] for name in names}, cache_dir=feature_cache)
    assert found.agrees
    assert len(found.rows) == len(names)


def test_what_needs_batches_is_not_compared_without_them(ours: Trace, feature_cache: Path) -> None:
    found = compare_trace(run(), {"losses": ours["losses"], "accuracy/1": ours["accuracy/1"]}, cache_dir=feature_cache)
    assert set(verdicts(found).values()) == {"not compared"}
    assert not found.agrees
    assert found.finding.startswith("Nothing could be compared")
    assert compare_trace(run(), {}, cache_dir=feature_cache).finding == found.finding


def test_clients_that_are_not_tested_do_not_count(ours: Trace, feature_cache: Path) -> None:
    holes = {name: value.astype(float) for name, value in ours.items() if name.startswith(("accuracy", "after"))}
    for value in holes.values():
        value[1] = np.nan
    assert compare_trace(run(), {**ours, **holes}, cache_dir=feature_cache).agrees


def test_nan_of_a_tested_client_differs(ours: Trace, feature_cache: Path) -> None:
    leaf = ours["after/2/prompt"].copy()
    leaf[1] = np.nan
    found = compare_trace(run(), {**ours, "after/2/prompt": leaf}, cache_dir=feature_cache)
    assert found.finding == "after/2/prompt is the first to differ (client 1). It has numbers that are not finite."
    accuracy = ours["accuracy/2"].copy()
    accuracy[2] = np.nan
    found = compare_trace(run(), {**ours, "accuracy/2": accuracy}, cache_dir=feature_cache)
    assert found.finding.startswith("accuracy/2 is the first to differ (client 2: nan, here ")
    leaf[1] = ours["after/2/prompt"][1]
    leaf[0, 0, 0] = np.nan
    found = compare_trace(run(), {"after/2/prompt": leaf, **steps_of(ours)}, cache_dir=feature_cache)
    assert verdicts(found)["after/2/prompt"] == "differs"


def steps_of(trace: Trace) -> Trace:
    return {name: trace[name] for name in ("initial/prompt", "steps", "images")}


def test_an_array_of_nan_is_not_compared(ours: Trace, feature_cache: Path) -> None:
    names = ("rates", "after/1/prompt", "accuracy/1")
    given = {**steps_of(ours), **{name: np.full(ours[name].shape, np.nan) for name in names}}
    found = compare_trace(run(), given, cache_dir=feature_cache)
    assert {name: verdicts(found)[name] for name in names} == dict.fromkeys(names, "not compared")
    assert found.finding.startswith("Nothing could be compared")


def test_equal_infinities_do_not_differ(feature_cache: Path) -> None:
    """FedTPG's logits of classes that a client does not have are -inf."""
    cell = run("method=fedtpg", "method.n_ctx=4", "protocol.rounds=1")
    theirs = trace_of(cell, cache_dir=feature_cache)
    assert np.isneginf(theirs["first/logits"]).any()
    assert compare_trace(cell, theirs, cache_dir=feature_cache).agrees
    given = {**theirs, "first/logits": theirs["first/logits"] * 2}
    found = compare_trace(cell, given, cache_dir=feature_cache)
    assert "They are 2 times those here: another temperature." in found.finding


def test_what_exceeds_ten_times_its_rounding_differs(ours: Trace, feature_cache: Path) -> None:
    """Without weight decay the prompt is 16 steps · 0.005 · 5e-4 = 4e-5 larger, less than 1e-4."""
    found = compare_trace(run("optim.weight_decay=0"), ours, cache_dir=feature_cache)
    rows = {row.name: row for row in found.rows}
    last = rows["after/2/prompt"]
    assert last.verdict == "differs"
    assert last.rounding is not None
    assert last.difference is not None
    assert 1e-8 < 10 * last.rounding < last.difference < 1e-4
    assert found.finding.startswith("after/1/prompt is the first to differ")
    assert rows["first/features"].rounding == 0.0
    assert compare_trace(run("optim.weight_decay=0"), ours, tolerance=1e-4, cache_dir=feature_cache).agrees
    near = {**ours, "first/features": ours["first/features"] * (1 + 1e-6 * np.arange(-4, 4)[:, None])}
    assert compare_trace(run(), near, cache_dir=feature_cache).agrees


def test_a_leaf_that_the_start_does_not_have_is_named(ours: Trace, feature_cache: Path) -> None:
    given = {name: value for name, value in ours.items() if name != "initial/prompt"}
    told = "The trace does not have initial/prompt: fpl-tune drew its own. Record what you start from."
    assert compare_trace(run(), given, cache_dir=feature_cache).notes == (told,)
    given = {**given, "first/logits": 2 * given["first/logits"]}
    found = compare_trace(run(), given, cache_dir=feature_cache)
    assert found.finding == f"first/logits is the first to differ ([0, 0]). {told}"
    names = compare_trace(run(), {"classes": ours["classes"]}, cache_dir=feature_cache)
    assert names.notes == ()


def test_a_rate_of_its_own_is_told_where_nothing_else_is_proven(feature_cache: Path) -> None:
    small = [*TINY, "method=fedsept", "optim.lr=0.002", "optim.groups.gate=0.002"]
    theirs = trace_of(config.compose_run(small), cache_dir=feature_cache)
    found = compare_trace(config.compose_run([*small[:-1], "optim.groups.gate=0.01"]), theirs, cache_dir=feature_cache)
    assert re.fullmatch(
        r"(losses|after/1/gate\.\S+) is the first to differ \(.+\)\. "
        r"`rates` are those of optim\.lr; optim\.groups trains gate\.\S+ at 0\.01 here\.",
        found.finding,
    )
    assert verdicts(found)["rates"] == "equal"


def test_leaves_that_start_at_zero_need_not_be_recorded(feature_cache: Path) -> None:
    cell = config.compose_run([*TINY, "method=fedavgm"])
    theirs = trace_of(cell, cache_dir=feature_cache)
    del theirs["initial/server.m.prompt"]
    found = compare_trace(cell, theirs, cache_dir=feature_cache)
    assert found.agrees
    assert found.notes == ()


def test_places_of_images_stand_for_their_names(ours: Trace, feature_cache: Path) -> None:
    own = [{name: i for i, name in enumerate(ours[f"train/{c}"].tolist())} for c in range(3)]
    rows = zip(ours["steps"].tolist(), ours["images"].tolist(), strict=True)
    places = np.array([[own[client].get(name, -1) for name in names] for (_, client, _), names in rows])
    given = {**ours, "images": places}
    assert compare_trace(run(), given, cache_dir=feature_cache).agrees
    given = {**ours, "images": places + 100}
    told = "Your split differs: client 0 has 28 training images here."
    assert compare_trace(run(), given, cache_dir=feature_cache).finding == told


def test_names_of_images_may_have_folders(ours: Trace, feature_cache: Path) -> None:
    images = np.array([[f"/data/{name}" if name else "" for name in row] for row in ours["images"].tolist()])
    listed = np.array([f"/data/{name}" for name in ours["train/0"].tolist()])
    assert compare_trace(run(), {**ours, "images": images, "train/0": listed}, cache_dir=feature_cache).agrees


def test_what_the_trace_does_not_have_is_noted(ours: Trace, feature_cache: Path) -> None:
    few = ours["steps"][:, 1] < 2
    given = {**ours, **{name: ours[name][few] for name in ("steps", "images", "labels", "rates", "losses")}}
    given = {name: value for name, value in given.items() if not name.startswith(("after", "accuracy"))}
    found = compare_trace(
        run("protocol.rounds=5", "protocol.epochs=1", "optim.batch=4"), given, cache_dir=feature_cache
    )
    assert found.notes == (
        "The trace has 2 rounds of protocol.rounds=5.",
        "A round has 2 epochs in the trace, not protocol.epochs=1.",
        "A batch has 8 images in the trace, not optim.batch=4.",
        "Only 2 of 3 clients train in the trace.",
    )
    assert compare_trace(run(), ours, cache_dir=feature_cache).notes == ()


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (1, 3, "Clients are counted from 0 to 2 here, but 3 trains in the trace."),
        (0, 0, "`steps` has a round 0, but rounds are counted from 1 to protocol.rounds=2. Set protocol.rounds=1."),
        (0, 7, "`steps` has a round 7, but rounds are counted from 1 to protocol.rounds=2. Set protocol.rounds=7."),
    ],
)
def test_steps_that_cannot_be_are_told(place: int, number: int, message: str, ours: Trace, feature_cache: Path) -> None:
    steps = ours["steps"].copy()
    steps[0, place] = number
    given = {**ours, "steps": steps}
    try:
        told = compare_trace(run(), given, cache_dir=feature_cache).finding
    except ConfigError as error:
        told = str(error)
    assert told == message


def test_a_data_set_that_changed_since_is_told(ours: Trace, feature_cache: Path) -> None:
    found = compare_trace(run(), ours, fingerprint="0" * 16, cache_dir=feature_cache)
    assert found.finding == "Your images differ: data=shapes has changed since the world was exported."


def test_another_start_is_taken_over(ours: Trace, feature_cache: Path) -> None:
    start = {**ours, "initial/prompt": 2 * ours["initial/prompt"]}
    theirs = trace_of(run(), given=start, cache_dir=feature_cache)
    assert np.array_equal(theirs["initial/prompt"], start["initial/prompt"])
    assert not np.allclose(theirs["losses"], ours["losses"])
    assert compare_trace(run(), theirs, cache_dir=feature_cache).agrees


WRAPPERS = {name for name, kind in methods.catalogue().items() if kind.__module__.startswith("fpl_tune.wrappers.")}
OWN_SIZES = {
    "pfedmoap": ["method.experts=2"],
    "pfedmoap_dp": ["method.inner.experts=2"],
    "fedmaple": ["method.depth=2"],
    "fedmap": ["method.depth=2"],
    "promptsrc": ["method.depth=2"],
    "sgpt": ["method.shared_blocks=1", "method.group_blocks=1"],
}
TINY = (
    "data.domains=[clipart,sketch]", "data.shots=2", "data.train_per_class=6", "data.test_per_class=2",
    "partition.n_clients=3", "protocol.rounds=2", "protocol.epochs=1",
)  # fmt: skip


FIRST = {name for name, _ in one_of_each_base()} | {"fedavgm", "pfedmoap"}
"""Each kind of state is among them: shared, personal, of the server, of a wrapper."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[] if name in FIRST else pytest.mark.system)
        for name in sorted(set(config.options("method")) - WRAPPERS)
    ],
)
def test_a_methods_own_trace_is_equal(method: str, feature_cache: Path) -> None:
    """From another start than the run's own. Of several stages, the first one."""
    whole = config.compose_run([*TINY, f"method={method}", *OWN_SIZES.get(method, [])])
    cell = replace(whole, stages=whole.stages[:1])
    state = SeedRun(cell, 1, cache_dir=feature_cache).init(7)
    start = {f"initial/{name}": getattr(state, kind)[leaf].numpy() for name, (kind, leaf) in leaf_names(state).items()}
    theirs = trace_of(cell, given=start, cache_dir=feature_cache)
    assert {name for name in theirs if name.startswith("initial/")} == start.keys()
    assert all(np.array_equal(theirs[name], leaf, equal_nan=True) for name, leaf in start.items())
    found = compare_trace(cell, theirs, cache_dir=feature_cache)
    assert found.agrees, found.finding
    assert found.notes == ()
    assert set(verdicts(found).values()) <= {"equal", "taken over"}
    assert {f"server/2/{leaf}" for leaf in state.server} <= verdicts(found).keys() or not cell.method.learns


def test_a_difference_in_the_servers_state_is_named(feature_cache: Path) -> None:
    cell = config.compose_run([*TINY, "method=fedavgm"])
    theirs = trace_of(cell, cache_dir=feature_cache)
    name = next(name for name in theirs if name.startswith("server/1/"))
    found = compare_trace(cell, {**theirs, name: 1.01 * theirs[name]}, cache_dir=feature_cache)
    assert found.finding.startswith(f"{name} is the first to differ ([")


def test_a_personal_leaf_may_be_one_for_all_clients(feature_cache: Path) -> None:
    cell = config.compose_run([*TINY, "method=fedpgp", "method.rank=2"])
    theirs = trace_of(cell, cache_dir=feature_cache)
    one = theirs["initial/u"][0]
    assert compare_trace(cell, {**theirs, "initial/u": one}, cache_dir=feature_cache).agrees
    found = compare_trace(cell, {**theirs, "initial/u": 2 * one}, cache_dir=feature_cache)
    assert found.finding.startswith("first/")


def test_two_leaves_of_one_name_are_told_apart(feature_cache: Path) -> None:
    """FedAMP's clients have a prompt, and the server a cloud prompt for each."""
    theirs = trace_of(config.compose_run([*TINY, "method=fedamp"]), cache_dir=feature_cache)
    assert {name for name in theirs if name.startswith("initial/")} >= {"initial/prompt", "initial/server.prompt"}


def test_a_method_that_does_not_fit_the_task_is_refused(feature_cache: Path) -> None:
    cell = config.compose_run([*TINY, "method=pfedmoap"])
    with pytest.raises(ConfigError, match=r"method\.experts"):
        compare_trace(cell, {"classes": np.array(["a"])}, cache_dir=feature_cache)


@fl.dataclass
class Doubled(PromptFL):
    """A method of somebody's own."""

    def logits(self, task: Task, local: Local, batch: Batch) -> torch.Tensor:
        return 2 * super().logits(task, local, batch)


def test_an_author_gives_numbers_to_others(tmp_path: Path, feature_cache: Path) -> None:
    method = Doubled(n_ctx=4)
    mine = replace(run(), method=method, stages=(Stage(method, 2, 2.0),))
    path = write_trace(tmp_path / "mine.npz", trace_of(mine, cache_dir=feature_cache))
    assert compare_trace(mine, read_trace(path), cache_dir=feature_cache).agrees
    found = compare_trace(run(), read_trace(path), cache_dir=feature_cache)
    assert "They are 2 times those here: another temperature" in found.finding


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"loss": np.zeros(3)}, r"has an array 'loss'. Did you mean 'losses'\?"),
        ({"losses": np.zeros((3, 2))}, r"losses of .* must be \[T\], but its shape is \[3, 2\]"),
        ({"steps": np.zeros((3, 2), int), "images": np.array([["a"]] * 3)}, r"steps of .* must be \[T, 3\]"),
        ({"classes": np.zeros(3)}, "classes of .* must contain text, but contains float64"),
        ({"losses": np.array(["a"])}, "losses of .* must contain numbers"),
        ({"losses": np.zeros(3), "rates": np.zeros(2)}, "must be equally long, but are: losses 3, rates 2"),
        ({"images": np.array([["a"]])}, "needs both `steps` and `images`"),
    ],
)
def test_what_is_no_trace_is_refused(arrays: Trace, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / "odd.npz")
    with pytest.raises(ConfigError, match=message.replace("of .* ", "of The trace ")):
        write_trace(tmp_path / "mine.npz", arrays)
    assert not (tmp_path / "mine.npz").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"Cannot read .*none\.npz"):
        read_trace(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ConfigError, match="is not a trace"):
        read_trace(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", losses=np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match="it holds objects instead of numbers and text"):
        read_trace(tmp_path / "objects.npz")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"initial/context": np.zeros((4, 128))},
            "has initial/context, but the run's method has no leaf 'context'. It has prompt",
        ),
        (
            {"initial/prompt": np.zeros((2, 128))},
            r"initial/prompt must have the shape \[4, 128\], but has \[2, 128\]\. Set method\.n_ctx=2\.$",
        ),
        (
            {"initial/prompt": np.zeros((4, 64))},
            r"initial/prompt must have the shape \[4, 128\], but has \[4, 64\]\.$",
        ),
    ],
)
def test_a_start_that_does_not_fit_is_refused(given: Trace, message: str, feature_cache: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        compare_trace(run(), given, cache_dir=feature_cache)


# -- a world ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_weights_in_openais_layout_encode_alike(world: Path) -> None:
    """Read as OpenAI's code reads its own checkpoints, and told the heads and the activation."""
    from open_clip.model import build_model_from_openai_state_dict

    towers = load_towers("compact")
    fpl_world = loaded(world)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    names = json.loads((world / "world.json").read_text())["classes"]
    texts = [f"a {COLOURS[i % len(COLOURS)]} {name}." for i, name in enumerate(names)]
    ids = standard_tokenizer().tokenizer(texts, context_length=77)
    states = [torch.load(world / "clip_state_dict.pt"), torch.jit.load(str(world / "clip.pt")).state_dict()]
    assert list(states[0]) == list(states[1])
    for state in states:
        model = build_model_from_openai_state_dict(state, cast_dtype=torch.float32).float()
        assert not torch.allclose(model.encode_text(ids), towers.encode_text(texts), atol=1e-2)
        fpl_world.adapt(model)
        with torch.no_grad():
            torch.testing.assert_close(model.encode_text(ids), towers.encode_text(texts), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(model.encode_image(images), towers.encode_images(images), rtol=1e-5, atol=1e-5)


def loaded(world: Path) -> Any:
    """The module that lies beside a world."""
    spec = spec_from_file_location("fpl_world", world / "fpl_world.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_are_the_platforms_pixel_for_pixel(world: Path) -> None:
    cell = parity.Clients(config.compose_run(SMALL), 2)
    fpl_world = loaded(world)
    for side, pool in (("train", cell.dataset.train), ("val", cell.dataset.train), ("test", cell.dataset.test)):
        held = fpl_world.clients(side, 2)
        assert [[Path(path).name for path, _ in one] for one in held] == cell.files(side)
        assert [[label for _, label in one] for one in held] == cell.labels(side)
        path, label = held[1][0]
        assert cell.classes[label] == Path(path).parent.name
        row = int(Path(path).stem.partition("-")[2])
        assert np.array_equal(np.asarray(read_image(Path(path))), np.asarray(pool.read(row)))


def test_coops_list_holds_every_image_once(world: Path) -> None:
    found = json.loads((world / "split_zhou_Shapes.json").read_text())
    paths = [path for part in ("train", "val", "test") for path, _, _ in found[part]]
    assert len(set(paths)) == len(paths) == len(list((world / "images").rglob("*.png")))
    assert all(found.values())
    assert {(k, name) for part in found.values() for _, k, name in part} == set(
        enumerate(json.loads((world / "world.json").read_text())["classes"])
    )


def test_a_world_of_ones_own_images_and_weights(photos: Path, tmp_path: Path) -> None:
    shape = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8, "head_width": 32},
    }
    shape["text_cfg"] = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1}
    (tmp_path / "tower").mkdir()
    (tmp_path / "tower" / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**shape, "quick_gelu": True}}))
    overrides = [f"clip.name=local-dir:{tmp_path}/tower", "data=folder", f"data.root={photos}", "partition.n_clients=2"]
    cell = config.compose_run(overrides)
    with pytest.warns(UserWarning, match="random weights"):
        world = export_world(cell, tmp_path / "own", overrides=overrides)
    content = json.loads((world / "world.json").read_text())
    assert (content["quick_gelu"], content["heads"]) == (True, {"64": 1})
    assert "QuickGELU" in (world / "README.md").read_text()
    assert len(torch.load(world / "clip_state_dict.pt")["token_embedding.weight"]) == 49408
    images = list((world / "images").rglob("*.png"))
    assert sorted({path.parent.name for path in images}) == content["classes"]
    assert {read_image(path).size for path in images} == {(16, 16)}, "of pictures that are 30 wide and 20 high"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["data=folder", "data.root=PHOTOS", "partition.n_clients=2"],
            "pieces to CLIP's tokenizer, but .* Export other",
        ),
        (["stages=[{rounds: 1}, {rounds: 1}]"], "A trace is of one stage, but the run has 2"),
        (["clients=backdoor"], "A trace is of benign clients, but some of the run are malicious"),
    ],
)
def test_what_a_fork_could_not_read_is_refused(
    overrides: list[str], message: str, photos: Path, tmp_path: Path, feature_cache: Path
) -> None:
    cell = config.compose_run([text.replace("PHOTOS", str(photos)) for text in overrides])
    with pytest.raises(ConfigError, match=message):
        export_world(cell, tmp_path / "world")
    assert list(tmp_path.glob("world*")) == []


def test_a_world_is_never_written_over(world: Path) -> None:
    with pytest.raises(ConfigError, match=r"exists\. Name a new folder"):
        export_world(config.compose_run(SMALL), world)


def test_a_folder_without_a_world(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no world in .*--world"):
        parity.read_world(tmp_path)
    (tmp_path / "world.json").write_text(
        '{"what": "fpl-tune world", "version": 9, "overrides": [], "seeds": [], "fingerprint": ""}'
    )
    with pytest.raises(ConfigError, match="is of another version"):
        parity.read_world(tmp_path)
