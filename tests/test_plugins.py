"""A package of somebody else brings a method, a data set and towers by entry points; the platform takes them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fpl_tune
from fpl_tune import config, contract, data, methods, plugins
from fpl_tune.clip import load_towers
from fpl_tune.errors import ConfigError
from fpl_tune.testing import check_method

README = Path(__file__).resolve().parent.parent / "README.md"

BROUGHT = '''

import numpy as np

from fpl_tune.data.pool import ArrayPool, Dataset
from fpl_tune.data.sources import Source
from fpl_tune.data.spec import PartitionSpec
from fpl_tune.testing import toy_towers


def images():
    """Two classes told apart by their colour, thirty images each."""
    pictures = np.random.default_rng(0).integers(0, 80, (60, 32, 32, 3), dtype=np.uint8)
    pictures[::2, :, :, 0] += 150
    return pictures


def colours(spec):
    def pool(key, rows):
        named = tuple(f"{row}.png" for row in rows)
        zero = np.zeros(len(rows), np.int64)
        return ArrayPool(f"colours-{key}", named, rows % 2, zero, "clip", images, "1", rows)

    rows = np.arange(60)
    train, test = pool("train", rows[:40]), pool("test", rows[40:])
    return Dataset("colours", ("grey star", "red star"), ("drawn",), "a drawing of a {}.", train, test)


source = Source("red and grey noise", colours, PartitionSpec("iid", n_clients=2), "nothing", "drawn")


def towers(pretrained, *, device="cpu", dtype=None, seed=0):
    return toy_towers(dtype=dtype, seed=seed)
'''

ENTRIES = """
[fpl_tune.methods]
fedavgm = brought:PromptFedAvgM
[fpl_tune.data]
colours = brought:source
broken = brought:nothing
[fpl_tune.towers]
tiny = brought:towers
"""


def _method_of_the_readme() -> str:
    (text,) = (t for t in README.read_text().split("```python\n") if "class PromptFedAvgM" in t)
    return text.split("```")[0]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as pip would leave it: the README's method, a data set and towers."""
    (tmp_path / "brought.py").write_text(_method_of_the_readme() + BROUGHT)
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "cache"))
    methods.catalogue.cache_clear()
    yield
    methods.catalogue.cache_clear()


def test_a_run_of_a_method_on_data_and_towers_that_are_all_brought() -> None:
    frame = fpl_tune.run(
        "method=fedavgm", "method.beta=0.5", "method.n_ctx=2", "data.name=colours", "data.shots=4",
        "clip.name=tiny", "clip.pretrained=null", "protocol.rounds=2", "protocol.epochs=1", seeds=2,
    )  # fmt: skip
    assert frame["round"].tolist() == [1, 2, 1, 2]
    assert frame["test/acc_mean"].between(0, 1).all()


def test_all_three_keep_their_contracts() -> None:
    check_method(methods.build({"name": "fedavgm", "n_ctx": 2}))
    contract.check_dataset(data.load(data.DataSpec("colours")))
    contract.check_towers(load_towers("tiny"))


def test_they_are_known_by_name() -> None:
    assert "fedavgm" in config.options("method")
    with pytest.raises(ConfigError, match="Did you mean 'colours'"):
        data.load(data.DataSpec("colurs"))


def test_one_that_cannot_be_imported_names_its_package() -> None:
    with pytest.raises(ConfigError, match=r"'broken' of the package brought cannot be imported from brought:nothing"):
        plugins.load("data", "broken")


@pytest.mark.parametrize("name", ["shapes"])
def test_our_own_data_keep_the_contract(name: str) -> None:
    spec = data.DataSpec(name, train_per_class=4, test_per_class=2, domains=["clipart", "sketch"])
    contract.check_dataset(data.load(spec))


def test_our_own_towers_keep_the_contract() -> None:
    contract.check_towers(load_towers("compact"))
