"""Benchmarks measure what they say: the documented fields, the same arithmetic on both paths, honest counts."""

import sys
from pathlib import Path

import pytest
import torch

from fpl_tune import bench, config
from fpl_tune.bench import rounds, texts
from fpl_tune.bench.measure import BenchRow, Peak, TowerMeter
from fpl_tune.clip.image import cost as image_cost
from fpl_tune.clip.text import cost
from fpl_tune.core.adapter import Adapter
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.simulation import Cohort, Simulation
from fpl_tune.testing import toy_towers

KEYS = [
    "bench",
    "seconds",
    "plain_seconds",
    "ratio",
    "tokens",
    "operations",
    "matrix_rate_share",
    "peak_memory_bytes",
    "note",
]
SHAPES = {"a": (32, 2), "b": (2, 32)}
TINY = [
    "data.train_per_class=2",
    "data.test_per_class=1",
    "data.domains=[photo]",
    "partition.n_clients=2",
    "protocol.rounds=2",
    "protocol.epochs=1",
    "optim.batch=4",
]


def _low_rank(leaf: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x @ leaf["a"] @ leaf["b"]


@pytest.fixture(autouse=True)
def _small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpl_tune.bench.measure._SQUARE_CPU", 256)


def _assert_sound(found: list[BenchRow], told: list[tuple[float, float, str]]) -> None:
    assert found
    for row in found:
        assert list(row) == KEYS
        assert all(row[key] > 0 for key in KEYS[1:-1])
        assert row["ratio"] == row["plain_seconds"] / row["seconds"]
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    assert all(done < total for done, total, _ in told)


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "CALTECH101", ("cat", "sea horse"))
    told: list[tuple[float, float, str]] = []
    found = bench.bench_text(config.compose_run(["partition.n_clients=3"]), progress=lambda *step: told.append(step))
    _assert_sound(found, told)
    assert [row["bench"] for row in found] == [f"text compact float32, {n}" for n in ("1 client", "3 clients")]
    assert found[1]["plain_seconds"] == pytest.approx(3 * found[0]["plain_seconds"])


@pytest.mark.parametrize("method", ["promptfl", "pfedmma"])
def test_a_round(method: str, tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []

    def progress(done: float, total: float, what: str) -> None:
        if not what.startswith("encoding"):
            told.append((done, total, what))

    run = config.compose_run([*TINY, f"method={method}"])
    found = bench.bench_round(run, cache_dir=tmp_path, progress=progress)
    _assert_sound(found, told)
    assert [row["bench"] for row in found] == [f"round {method} compact"]


@pytest.mark.parametrize("method", ["promptfl", "fedotp", "ivlp", "pfedmma method.blocks=1 method.alpha=1"])
def test_the_plain_path_computes_the_same(method: str, tmp_path: Path) -> None:
    trial = Simulation(config.compose_run([*TINY, *f"method={method}".split()]), [1], cache_dir=tmp_path)
    trial.step()
    task, plain = trial.tasks[0], rounds.plain_task(trial, tmp_path)
    clients, how = torch.arange(2), trial.stages[0].method
    trained = [
        run_round(how, [seen], trial.states, [Cohort(1, 2, clients)], epochs=1, spec=trial.run.optim)[0][0]
        for seen in (task, plain)
    ]
    for part in ("shared", "personal"):
        for fast, slow in zip(*(getattr(state, part).values() for state in trained), strict=True):
            torch.testing.assert_close(fast, slow, rtol=1e-3, atol=5e-5)  # patches are kept in half precision


def test_the_meter_counts_blocks_above_the_first_adapter_twice() -> None:
    towers = toy_towers()
    pixels, tokens = torch.zeros(1, 3, 3, 32, 32, dtype=torch.float64), torch.zeros(1, 0, 32, dtype=torch.float64)
    factors = {name: torch.zeros(1, 1, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    adapter = Adapter(_low_rank, {name: leaf.requires_grad_() for name, leaf in factors.items()}, 1, "attention")
    found = image_cost(towers.model.visual, 3, below=1)
    for place, below in (("attention", 1), ("block", 2)):
        meter = TowerMeter(towers)
        with meter.on():
            towers.encode_prompted_images(pixels, tokens, adapter=adapter._replace(place=place))
        assert meter.operations == found.forward + image_cost(towers.model.visual, 3, below=below).backward


def test_the_meter_counts_every_call() -> None:
    towers = toy_towers()
    meter = TowerMeter(towers)
    sentences = towers.sentences(["cat", "dog"], 2)
    context = torch.zeros(3, 2, 32, dtype=torch.float64)
    one = cost(towers.text, sentences, 3)
    with meter.on():
        towers.encode_prompts(context, sentences)
        towers.encode_prompts(context.requires_grad_(), sentences)
    towers.encode_prompts(context, sentences)
    assert meter.tokens == 2 * one.tokens
    assert meter.operations == 2 * one.forward + one.backward
    assert meter.seconds > 0
    assert meter.peak_bytes > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget an earlier peak")
def test_a_peak_counts_from_where_it_begins() -> None:
    size = 256 << 20
    before = Peak(torch.device("cpu"))
    torch.zeros(size, dtype=torch.uint8).add_(1)
    with_it, without = before.bytes(), Peak(torch.device("cpu")).bytes()
    assert with_it - without > 0.8 * size


def test_operations_are_fewer_where_sentences_are_packed() -> None:
    prompts, head = (
        bench.bench_operations(config.compose_run([*TINY, f"method={m}"]))[0] for m in ("kgcoop", "clip_fc")
    )
    assert prompts["ratio"] == prompts["plain_step"] / prompts["step"] > 10
    assert head["ratio"] == 1
