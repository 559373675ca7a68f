"""Every method on photographs, paintings, cartoons and sketches of PACS, where they are at hand (see `real_data`).

The compact CLIP has never seen such images nor such names, so that its zero-shot accuracy is near chance.
"""

from pathlib import Path

import pytest

from fpl_tune import config, methods
from fpl_tune.simulation.simulation import Simulation

SCHEDULE = ("protocol.rounds=3", "protocol.epochs=1", "protocol.eval_every=100", "optim.batch=8", "optim.lr=0.02")
FEW = ("data.max_train=6", "data.max_test=3", "data.shots=4", "partition=domain")
PHASES = "stages=[{method: {phase: 1}, rounds: 2, epochs: 1}, {method: {phase: 2}, rounds: 2, epochs: 1}]"

# What the compact towers (D=96, 4 blocks) and four clients ask for; visual prompts and towers are trained by AdamW.
# FedPGP's personal term is a product of two small factors, which hardly moves at the prompt's own rate. pFedPG's server
# hardly moves at the paper's. Where SGPT balances its groups, images have others after the first round, and so have
# losses.
OWN: dict[str, tuple[str, ...]] = {
    "pfedmoap": ("method.d_gating=32", "method.experts=4"),
    "pfedmoap_dp": ("method.inner.d_gating=32", "method.inner.experts=4", "method.epsilon=1e4"),
    "promptfl_dp": ("method.epsilon=1e4",),
    "fedprox_dp": ("method.epsilon=1e4",),
    "dpfpl_dp": ("method.epsilon=1e4",),
    "fedsept_dp": ("method.epsilon=1e4",),
    "fedpgp": ("optim.groups.u=1", "++optim.groups.v=1"),
    "fedmap": ("method.depth=3",),
    "pfedpg": ("optim.lr=0.005", "method.server_lr=0.1"),
    "sgpt": ("method.shared_blocks=2", "method.group_blocks=1", "method.balance=none"),
    "fedmaple": ("method.depth=3",),
    "promptsrc": ("method.depth=3",),
    "fedcocoop": ("optim.lr=0.2",),
    "feddpt": ("optim=adamw", "optim.lr=0.001"),
    "full_model": ("optim=adamw", "optim.lr=0.001"),
    "full_model_fedprox": ("optim=adamw", "optim.lr=0.001"),
    "fedapt_unsupervised": (PHASES, "optim.batch=64"),  # whole clients: what is dispersed depends on who is in a batch
    "fedclip_unsupervised": (PHASES, "optim.batch=64", "optim.lr=0.1"),
}
WRAPPERS = {name for name, kind in methods.catalogue().items() if kind.__module__.startswith("fpl_tune.wrappers.")}
RISING = ("fedclip_unsupervised",)
"""Losses that need not fall: pseudo-labels change by round."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def root(real_data: Path) -> str:
    if not (real_data / "PACS").is_dir():
        pytest.skip(f"no PACS/ in {real_data}")
    return str(real_data)


@pytest.mark.parametrize("name", sorted(set(config.options("method")) - WRAPPERS))
def test_every_method_trains_on_pacs(root: str, cache: Path, name: str) -> None:
    run = config.compose_run([f"method={name}", "data=pacs", f"data.root={root}", *SCHEDULE, *OWN.get(name, ()), *FEW])
    (history,) = Simulation(run, [1], cache_dir=cache).run_all()
    assert len(history) == run.rounds
    assert 0 <= history[-1]["test/acc_mean"] <= 1
    if not run.learns or name in RISING:
        return
    first = 0
    for stage in run.stages:  # stages may have losses of different kinds
        losses = [record["train/loss"] for record in history[first : first + stage.rounds]]
        assert losses[-1] < losses[0] or stage.rounds == 1, losses
        first += stage.rounds
