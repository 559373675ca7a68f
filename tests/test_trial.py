"""A whole simulation on a corner of the embedded world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fpl_tune import config
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.trial import Diverged, Trial, device_of

CORNER = (
    "data.domains=[photo]",
    "data.train_per_class=10",
    "data.test_per_class=4",
    "data.shots=4",
    "partition.name=disjoint",
    "partition.n_clients=4",
    "optim.batch=8",
    "protocol.rounds=3",
    "protocol.epochs=1",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _trial(cache: Path, *overrides: str, seeds: tuple[int, ...] = (1, 2)) -> Trial:
    return Trial(config.compose_run([*CORNER, *overrides]), seeds, cache_dir=cache)


def _untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


def test_records_of_a_simulation(cache: Path) -> None:
    trial = _trial(cache)
    history = trial.run_all()
    assert trial.done
    assert [[r["round"] for r in records] for records in history] == [[1, 2, 3]] * 2
    first, last = history[0][0], history[0][-1]
    # PromptFL: 16 tokens of the compact text tower's width, four clients, four bytes a number, each way.
    prompt = 16 * trial.tasks[0].text_width * 4
    assert (first["comm/up_bytes"], first["comm/down_bytes"]) == (4 * prompt, 4 * prompt)
    assert last["comm/up_bytes"] == 3 * first["comm/up_bytes"]
    assert len(last["clients/val"]) == len(last["clients/test"]) == 4
    assert last["test/acc_mean"] == pytest.approx(sum(last["clients/test"]) / 4, abs=1e-6)
    assert history[0][-1]["val/loss"] != history[1][-1]["val/loss"]


def test_clients_that_train_alone_learn_their_images(cache: Path) -> None:
    first, *_, last = _trial(cache, "method=coop", seeds=(1,)).run_all()[0]
    assert last["train/loss"] < first["train/loss"]


def test_a_seed_alone_gives_the_same_figures_as_among_others(cache: Path) -> None:
    together = _trial(cache, seeds=(1, 2)).run_all()
    alone = _trial(cache, seeds=(2,)).run_all()
    for found, wanted in zip(together[1], alone[0], strict=True):
        assert found["clients/test"] == wanted["clients/test"]
        assert found["train/loss"] == pytest.approx(wanted["train/loss"], rel=1e-5)


@pytest.mark.parametrize("block", [1, 3])
def test_blocks_of_clients_change_nothing(cache: Path, block: int) -> None:
    whole = _trial(cache, seeds=(1,)).run_all()[0][-1]
    run = config.compose_run(CORNER)
    parts = Trial(run, (1,), cache_dir=cache, block=block).run_all()[0][-1]
    assert parts["clients/test"] == whole["clients/test"]
    assert parts["train/loss"] == pytest.approx(whole["train/loss"], rel=1e-5)


@pytest.mark.parametrize("method", ["promptfl", "coop", "promptfl_ft"])
def test_continues_bit_for_bit_from_a_checkpoint(cache: Path, tmp_path: Path, method: str) -> None:
    straight = _trial(cache, f"method={method}")
    wanted = straight.run_all()
    for stop in range(1, straight.rounds):
        paused = _trial(cache, f"method={method}")
        for _ in range(stop):
            paused.step()
        paused.save(tmp_path / str(stop))
        continued = _trial(cache, f"method={method}")
        continued.load(tmp_path / str(stop))
        assert continued.round == stop
        for i, records in enumerate(continued.run_all()):
            assert _untimed(records) == _untimed(wanted[i][stop:])
        for seed, leaves in continued.prompts().items():
            for name, leaf in leaves.items():
                assert torch.equal(leaf, straight.prompts()[seed][name])


def test_a_checkpoint_of_something_else_is_refused(cache: Path, tmp_path: Path) -> None:
    trial = _trial(cache)
    trial.step()
    trial.save(tmp_path)
    with pytest.raises(ConfigError, match="another configuration or other seeds"):
        _trial(cache, seeds=(1, 3)).load(tmp_path)
    with pytest.raises(ConfigError, match="another configuration or other seeds"):
        _trial(cache, "optim.lr=0.5").load(tmp_path)


def test_a_checkpoint_holds_no_code(cache: Path, tmp_path: Path) -> None:
    """It is a safetensors file: numbers and text, nothing that loading could run."""
    trial = _trial(cache)
    trial.step()
    trial.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    assert set(load_file(tmp_path / "state.safetensors")) == {"1/shared/prompt", "2/shared/prompt"}


def test_truncated_checkpoint_is_an_error_of_reading(cache: Path, tmp_path: Path) -> None:
    trial = _trial(cache)
    trial.step()
    trial.save(tmp_path)
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or corrupt"):
        _trial(cache).load(tmp_path)


def test_missing_leaf_is_named(cache: Path, tmp_path: Path) -> None:
    trial = _trial(cache)
    trial.step()
    trial.save(tmp_path)
    from safetensors import safe_open

    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as opened:
        meta = opened.metadata()
    leaves = {n.replace("prompt", "promt"): leaf for n, leaf in load_file(path).items()}
    save_file(leaves, path, metadata=meta)
    with pytest.raises(ConfigError, match="promt"):
        _trial(cache).load(tmp_path)


def test_divergence_names_seed_round_and_remedy(cache: Path) -> None:
    with pytest.raises(Diverged, match=r"seed 1 diverged in round \d+.*Lower optim.lr"):
        _trial(cache, "optim.lr=1e30", "protocol.rounds=5").run_all()


def test_zero_shot_needs_one_round_and_sends_nothing(cache: Path) -> None:
    trial = _trial(cache, "method=zeroshot")
    (record,) = trial.run_all()[0]
    assert (record["comm/up_bytes"], record["comm/down_bytes"]) == (0, 0)
    assert "train/loss" not in record


def test_evaluation_every_other_round_and_in_the_last(cache: Path) -> None:
    records = _trial(cache, "protocol.eval_every=2").run_all()[0]
    assert ["val/acc_mean" in r for r in records] == [False, True, True]


def test_device_is_checked() -> None:
    assert device_of("cpu") == "cpu"
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        device_of("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentProblem, match="PyTorch sees none"):
            device_of("cuda")
