"""Trained prompts used without their data: the same logits as in the trial."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import fpl_tune
from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import save_tensors
from fpl_tune.simulation import learned, serve
from fpl_tune.simulation.simulation import Simulation


@pytest.mark.parametrize("method", ["promptfl", "pfedmoap", "full_model"])
def test_exported_prompts_classify_as_the_trial_does(method: str, tmp_path: Path, feature_cache: Path) -> None:
    more = ["method.d_gating=96", "method.experts=2"] if method == "pfedmoap" else []
    small = ["data.train_per_class=4", "data.test_per_class=2", "data.shots=2", "partition.n_clients=3"]
    rounds = ["protocol.rounds=1", "protocol.epochs=1"]
    run = config.compose_run([f"method={method}", *more, *small, *rounds])
    trial = Simulation(run, [1], cache_dir=feature_cache)
    trial.run_all()
    leaves, facts = trial.deployed()[1]
    by_one = learned.deployed(run.stages[-1].method, trial.tasks[0], trial.states[0], at_once=1)
    assert {name: leaf.tolist() for name, leaf in by_one.items()} == {k: leaf.tolist() for k, leaf in leaves.items()}
    save_tensors({**trial.prompts()[1], **leaves}, tmp_path / "prompts-seed1.safetensors", facts)
    node = json.loads(json.dumps(config.as_dict(run)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(node))
    prompts = fpl_tune.load_prompts(tmp_path)
    task, method_ = trial.tasks[0], run.stages[-1].method
    _, data = task.tests[task.primary]
    clients = torch.arange(task.n_clients)
    local = method_.deploy(task, trial.states[0], clients)
    index = torch.arange(2).expand(task.n_clients, -1)
    expected = method_.logits(task, local, data.batch(clients, index))
    pool = trial.world.dataset.test
    for client in range(task.n_clients):
        pictures = [np.asarray(pool.read(int(row))) for row in data.rows[client, :2]]
        found = prompts.logits(pictures, client)
        assert torch.allclose(found, expected[client].float(), atol=1e-3)
        names = [prompts.classes[i] for i in found.argmax(-1).tolist()]
        assert prompts.predict(pictures, client) == names
    client = trial.tasks[0].n_clients - 1
    pictures = [np.asarray(pool.read(int(row))) for row in data.rows[client, :2]]
    names = prompts.predict(pictures, client)
    first = Image.fromarray(pictures[0])
    first.save(tmp_path / "first.png")
    singles = [tmp_path / "first.png", str(tmp_path / "first.png"), first, pictures[0]]
    for one in (*singles, *([single] for single in singles), iter(singles[:1]), tuple(singles[:1])):
        assert prompts.predict(one, client) == names[:1]
    assert prompts.logits(singles[1], client).shape == (1, len(prompts.classes))
    assert torch.equal(prompts.logits(pictures), prompts.logits(pictures, 0)), "the first client's"
    assert prompts.predict(np.stack(pictures), client) == names
    assert prompts.predict([], client) == []
    assert prompts.predict(pictures[:1] * 65, client) == names[:1] * 65, "more than one batch"
    chances = torch.stack([prompts.logits(pictures, one).softmax(-1) for one in range(prompts.clients)]).mean(0)
    assert prompts.predict(pictures) == [prompts.classes[i] for i in chances.argmax(-1).tolist()], (
        "all clients together"
    )
    with pytest.raises(ConfigError, match="client must be from 0 to 2"):
        prompts.logits([], client=99)
    with pytest.raises(ConfigError, match="client must be from 0 to 2, but is 3"):
        prompts.predict([], client=3)
    (tmp_path / "prompts-seed1.safetensors").rename(tmp_path / "prompts-seed10.safetensors")
    save_tensors(
        leaves,
        tmp_path / "prompts-seed9.safetensors",
        {"deployed": facts["deployed"].replace('"clients": 3', '"clients": 1')},
    )
    assert [fpl_tune.load_prompts(tmp_path, seed).clients for seed in (None, 9, 10)] == [1, 1, 3], "the first seed"
    with pytest.raises(ConfigError, match="has the seeds 9, 10, but not 1"):
        fpl_tune.load_prompts(tmp_path, 1)
    others = {"deployed": json.dumps({**json.loads(facts["deployed"]), "weights": "other"})}
    save_tensors(leaves, tmp_path / "prompts-seed9.safetensors", others)
    with pytest.raises(ConfigError, match=r"learned with other weights than clip\.name=compact"):
        fpl_tune.load_prompts(tmp_path)


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (np.zeros((4, 4, 3), np.uint16), "Cannot handle this data type"),
        (Image.new("F", (4, 4)), r"more than 8 bits \(mode F\)"),
    ],
)
def test_a_picture_of_another_kind_is_refused(picture: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        serve._as_rgb(picture)


def test_a_folder_without_prompts_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fpl-tune export STUDY .* --cell best"):
        fpl_tune.load_prompts(tmp_path)
