"""Every method on photographs, paintings, cartoons and sketches of PACS, where `FPL_TUNE_TEST_DATA` holds them.

The compact CLIP has never seen such images nor such names, so that its zero-shot accuracy is near chance.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fpl_tune import config
from fpl_tune.simulation.simulation import Record, Simulation

SCHEDULE = ("protocol.rounds=3", "protocol.epochs=1", "protocol.eval_every=100", "optim.batch=8", "optim.lr=0.02")
FEW = ("data.max_train=6", "data.max_test=3", "data.shots=4", "partition=domain")
PHASES = "stages=[{method: {phase: 1}, rounds: 2, epochs: 1}, {method: {phase: 2}, rounds: 2, epochs: 1}]"

# What the compact towers (D=96, 4 blocks) and four clients ask for; visual prompts and towers are trained by AdamW.
# FedPGP's personal term is a product of two small factors, which hardly moves at the prompt's own rate.
OWN: dict[str, tuple[str, ...]] = {
    "pfedmoap": ("method.d_gating=32", "method.experts=4"),
    "pfedmoap_dp": ("method.inner.d_gating=32", "method.inner.experts=4", "method.epsilon=1e4"),
    "promptfl_dp": ("method.epsilon=1e4",),
    "fedprox_dp": ("method.epsilon=1e4",),
    "fedpgp": ("optim.groups.u=1", "++optim.groups.v=1"),
    "fedmaple": ("method.depth=3",),
    "fedcocoop": ("optim.lr=0.2",),
    "feddpt": ("optim=adamw", "optim.lr=0.001"),
    "full_model": ("optim=adamw", "optim.lr=0.001"),
    "full_model_fedprox": ("optim=adamw", "optim.lr=0.001"),
    "fedapt_unsupervised": (PHASES, "optim.batch=64"),  # whole clients: what is dispersed depends on who is in a batch
    "fedclip_unsupervised": (PHASES, "optim.batch=64", "optim.lr=0.1"),
}
PERSONAL = ("coop", "promptfl_ft", "fedper", "fedamp", "pfedprompt", "fedotp", "fedpgp", "pfedmoap")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(os.environ.get("FPL_TUNE_TEST_DATA", ""))
    if not os.environ.get("FPL_TUNE_TEST_DATA") or not (root / "PACS").is_dir():
        pytest.skip("FPL_TUNE_TEST_DATA names no folder with PACS/")
    return tmp_path_factory.mktemp("cache")


def records(cache: Path, method: str, *overrides: str) -> list[Record]:
    chosen = [f"method={method}", "data=pacs", f"data.root={os.environ['FPL_TUNE_TEST_DATA']}"]
    run = config.compose_run([*chosen, *SCHEDULE, *OWN.get(method, ()), *overrides])
    (history,) = Simulation(run, [1], cache_dir=cache).run_all()
    assert len(history) == run.rounds
    return history


@pytest.mark.parametrize("name", sorted(config.options("method")))
def test_every_method_trains_on_pacs(cache: Path, name: str) -> None:
    if name in {"proximal", "finetuned", "private"}:
        pytest.skip("a wrapper, here inside its compositions")
    history = records(cache, name, *FEW)
    assert 0 <= history[-1]["test/acc_mean"] <= 1
    if name == "zeroshot":
        return
    first = 0
    run = config.compose_run([f"method={name}", *SCHEDULE, *OWN.get(name, ())])
    for stage in run.stages:  # stages may have losses of different kinds
        losses = [record["train/loss"] for record in history[first : first + stage.rounds]]
        assert losses[-1] < losses[0] or stage.rounds == 1, losses
        first += stage.rounds


def test_what_personalises_beats_zero_shot_where_clients_hold_classes_of_their_own(cache: Path) -> None:
    three = ("data.domains=[photo]", "partition=disjoint", "partition.n_clients=3", "data.shots=8", "data.max_train=16")
    found = {
        name: records(cache, name, *three, *(["method.experts=3"] if name == "pfedmoap" else []))[-1]["val/acc_mean"]
        for name in ("zeroshot", *PERSONAL)
    }
    zero = found.pop("zeroshot")
    assert {name: accuracy for name, accuracy in found.items() if accuracy <= zero} == {}, zero
