"""A world is exported, a trace compared, and what is wrong is one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fpl_tune import cli
from fpl_tune.parity import read_trace, write_trace

from .conftest import Command

SMALL = (
    "data.domains=[clipart]", "data.shots=2", "data.train_per_class=4", "data.test_per_class=2",
    "partition.n_clients=2", "method.n_ctx=2", "protocol.rounds=1", "protocol.epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> Path:
    """A world, and a trace of our own that stands for a fork's. To be copied, not written to."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPL_TUNE_CACHE", str(feature_cache))
        patch.chdir(folder)
        for words in (["world", "world", *SMALL, "seeds=[3,4]"], ["parity", "world/trace.npz", "--write"]):
            with pytest.raises(SystemExit) as ended:
                cli.main(words)
            assert ended.value.code in (None, 0)
    return folder / "world"


@pytest.fixture
def world(exported: Path, here: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(exported, here / "world")


def test_a_trace_that_agrees(world: Path, command: Command) -> None:
    done = command("parity", "world/trace.npz")
    assert done.code == 0
    assert "first/gradient/prompt" in done.out
    assert "against fpl-tune, seed 3" in done.out
    assert done.err == ""


def test_a_trace_that_differs(world: Path, command: Command) -> None:
    trace = read_trace(world / "trace.npz")
    write_trace(world / "trace.npz", {**trace, "losses": trace["losses"] + 1, "seconds": np.array([2.0])})
    done = command("parity", "world/trace.npz", "--format", "json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["agrees"]
    assert found["notes"] == []
    assert found["finding"].startswith("losses is the first to differ (step 0: round 1, client 0, epoch 0).")
    assert found["seconds"][0] == 2.0
    done = command("parity", "world/trace.npz")
    assert done.code == 1
    assert found["finding"] in done.out
    assert "seconds a round: 2 in the trace, " in done.out


def test_fields_given_now_replace_the_worlds(world: Path, command: Command) -> None:
    """A method of one's own choice does not have the fields of the world's."""
    write_trace(world / "other.npz", {"classes": read_trace(world / "trace.npz")["classes"]})
    assert command("parity", "world/other.npz", "method=zeroshot").code == 0
    write_trace(world / "other.npz", {"initial/prompt": np.zeros((2, 128))})
    done = command("parity", "world/other.npz", "method=zeroshot")
    assert done.code == 2
    assert "The trace has initial/prompt, but the run's method has no leaf 'prompt'. It learns nothing." in done.err


@pytest.mark.parametrize("seed", [3, 4])
def test_the_split_is_the_seeds(seed: int, world: Path, command: Command) -> None:
    words = ["parity", "world/trace.npz", f"seeds=[{seed}]"]
    done = command(*words)
    assert done.code == (seed != 3)
    assert ("Your split differs: client 0 has " in done.out) == (seed != 3)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("world world", 2, "world exists. Name a new folder for the world, or remove it."),
        ("parity world/none.npz", 3, "Cannot read world/none.npz"),
        ("parity elsewhere.npz", 2, "There is no world in .: put the trace into the folder that fpl-tune world wrote"),
        ("parity world/trace.npz seeds=2", 2, "A trace is of one seed, but seeds=[1, 2]. Write seeds=[1]."),
        ("parity world/trace.npz method=promptfk", 2, "Did you mean 'promptfl'"),
        ("parity world/trace.npz method.n_ctx=3", 2, "the shape [3, 128], but has [2, 128]. Set method.n_ctx=2."),
        ("parity world/trace.npz method=pfedmoap", 2, "method.experts must be at most the number of clients, 2"),
        ("parity world/world.json", 2, "world/world.json is not a trace"),
        ("world new method=", 2, "method"),
    ],
)
def test_a_mistake_is_one_line(words: str, code: int, message: str, world: Path, command: Command) -> None:
    done = command(*words.split())
    assert done.code == code
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not Path("new").exists()
