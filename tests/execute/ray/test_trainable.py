"""`fpl_tune.FederatedTrainable`: its configuration, its checkpoints, and its figures under a plain Tuner."""

import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fpl_tune import FederatedTrainable, config
from fpl_tune.clip import compact
from fpl_tune.core.errors import ConfigError
from fpl_tune.data import export_split, load, split
from fpl_tune.execute.ray.trainable import parse, summarise

from ...conftest import figures_of

DATA = {"train_per_class": 8, "test_per_class": 2, "shots": 2, "domains": ["clipart"]}
TINY: dict[str, Any] = {
    "method": "promptfl",
    "data": DATA,
    "partition.n_clients": 2,
    "protocol": {"rounds": 3, "epochs": 1},
    "optim.batch": 64,
    "seeds": 2,
    "execution.device": "cpu",
}
OVERRIDES = (
    "method=promptfl",
    *(f"data.{name}={str(value).replace(' ', '')}" for name, value in DATA.items()),
    *("partition.n_clients=2", "protocol.rounds=3", "protocol.epochs=1", "optim.batch=64"),
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def test_fields_make_the_run_that_overrides_make() -> None:
    fields = {name: value for name, value in TINY.items() if name not in ("seeds", "execution.device")}
    run, seeds, setup = parse({**fields, "optim.lr": np.float64(0.03), "execution": {"threads": 2}, "seeds": [4, 7]})
    assert config.identity(run) == config.identity(config.compose_run([*OVERRIDES, "optim.lr=0.03"]))
    assert (seeds, setup.threads) == ([4, 7], 2)
    wanted = config.compose_run(["method=pfedmoap", "method.lam=0.5", "protocol=quick", "data.shots=4"])
    named = {"method": {"name": "pfedmoap", "lam": 0.5}, "protocol": "quick", "data": {"shots": 4}}
    assert config.identity(parse(named)[0]) == config.identity(wanted)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("method.lamda", 1, "has no field 'lamda'"),
        ("optim.learning_rate", 0.1, "no field 'optim.learning_rate'"),
        ("execution.executor", "ray", "execution.executor"),
        ("seeds", 0, "seeds must be"),
        ("optim.lr", "fast", "optim.lr must be"),
        ("protocol.rounds", 4, r"protocol.rounds has two values: 3 and 4. Remove one."),
    ],
)
def test_a_wrong_field_is_refused_before_a_trial_starts(field: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        FederatedTrainable.default_resource_request({**TINY, field: value})
    assert "\n" not in str(caught.value)


def test_a_wrong_field_is_refused_where_the_resources_are_given() -> None:
    from ray import tune

    given: Any = tune.with_resources(FederatedTrainable, {"cpu": 2})
    assert given.default_resource_request(TINY).required_resources == {"CPU": 2}
    with pytest.raises(ConfigError, match=r"no field 'optim\.lrr'"):
        given.default_resource_request({**TINY, "optim.lrr": 1})


def rounds(trainable: FederatedTrainable, number: int) -> list[dict[str, Any]]:
    return [trainable.train() for _ in range(number)]


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What does not depend on the clock."""
    names = ("val/", "test/", "comm/", "train/")
    return {name: value for name, value in result.items() if name.startswith(names)}


def test_a_restored_run_has_the_figures_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole = rounds(FederatedTrainable(TINY), 3)
    assert [r["training_iteration"] for r in whole] == [1, 2, 3]
    assert [r["done"] for r in whole] == [False, False, True]
    for name in ("val/acc_mean", "test/acc_mean", "train/loss", "comm/up_bytes", "time/seconds"):
        assert math.isfinite(whole[-1][name])
    assert whole[-1]["test/acc_mean_seed_std"] >= 0

    first = FederatedTrainable(TINY)
    rounds(first, 1)
    first.save_checkpoint(str(tmp_path))
    second = FederatedTrainable(TINY)
    rounds(second, 2)
    second.load_checkpoint(str(tmp_path))
    assert [figures(r) for r in rounds(second, 2)] == [figures(r) for r in whole[1:]]
    assert second.reset_config({**TINY, "optim.lr": 0.5})
    second.reset_config(TINY)
    assert [figures(r) for r in rounds(second, 3)] == [figures(r) for r in whole], "an actor that is reused"
    second.save_checkpoint(str(tmp_path / "end"))
    first.load_checkpoint(str(tmp_path / "end"))
    (after,) = rounds(first, 1)
    assert (figures(after), after["done"]) == (figures(whole[-1]), True), "nothing is left to run"


def test_a_checkpoint_loads_where_shapes_are_kept_and_nowhere_else(tmp_path: Path) -> None:
    moap = {**TINY, "method": "pfedmoap", "method.experts": 2, "seeds": 1}
    first = FederatedTrainable(moap)
    rounds(first, 1)
    first.save_checkpoint(str(tmp_path))
    before = figures(rounds(first, 1)[0])

    other = FederatedTrainable({**moap, "optim.lr": 0.2, "method.lam": 3.0})
    other.load_checkpoint(str(tmp_path))
    after = rounds(other, 1)[0]
    assert after["training_iteration"] == 2
    assert figures(after) != before, "the new learning rate trains"
    for change, part in [
        ({"method.n_ctx": 3}, "shared"),
        ({"method": "fedotp"}, "method"),
        ({"partition.n_clients": 3}, "partition"),
        ({"seeds": 2}, "seeds"),
    ]:
        given = {name: value for name, value in moap.items() if "method" not in change or name != "method.experts"}
        wrong = FederatedTrainable({**given, **change})
        with pytest.raises(ConfigError, match=f"cannot load a checkpoint of another configuration: .*{part}") as caught:
            wrong.load_checkpoint(str(tmp_path))
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot load the checkpoint in .*: there is none"):
        other.load_checkpoint(str(tmp_path / "empty"))


def test_rounds_without_an_evaluation_repeat_the_last_one() -> None:
    trainable = FederatedTrainable({**TINY, "protocol.eval_every": 2})
    first, second, third = rounds(trainable, 3)
    assert math.isnan(first["val/acc_mean"])
    assert math.isfinite(second["val/acc_mean"])
    assert math.isfinite(third["val/acc_mean"])


# -- under a Tuner -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """A Ray as a user's script starts it."""
    import ray

    settings = {"RAY_AIR_NEW_OUTPUT": "0", "OMP_NUM_THREADS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        yield
        ray.shutdown()


def tuned(space: dict[str, Any], folder: Path, callbacks: Any = (), **options: Any) -> Any:
    """The results of a plain Tuner."""
    from ray import tune

    space = {**space, "execution": {"device": "cpu"}}
    space.pop("execution.device", None)
    tuner = tune.Tuner(
        FederatedTrainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="val/acc_mean", mode="max", reuse_actors=True, **options),
        run_config=tune.RunConfig(
            name="plain",
            storage_path=str(folder),
            verbose=0,
            callbacks=list(callbacks),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    )
    return tuner.fit()


def test_tuner_has_the_figures_of_a_study(
    session: None, tmp_path: Path, compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import tune

    from fpl_tune.study.store import Store

    from ...conftest import start_study

    monkeypatch.setenv("FPL_TUNE_CACHE", os.environ["FPL_TUNE_CACHE"])
    results = tuned({**TINY, "optim.lr": tune.grid_search([0.01, 0.1])}, tmp_path)
    assert not results.errors
    made = compose("axes: {optim: {lr: [0.01, 0.1]}}", *OVERRIDES, "seeds=2")
    assert start_study(made, root=tmp_path / "out").done == 2
    store = Store.open(tmp_path / "out", "tiny")
    for cell in store.cells():
        (result,) = [r for r in results if r.config["optim.lr"] == cell.run.optim.lr]
        frame: pd.DataFrame = result.metrics_dataframe
        histories = [store.history(cell, seed) for seed in (1, 2)]
        for number, records in enumerate(zip(*histories, strict=True)):
            assert frame["training_iteration"][number] == records[0]["round"]
            for name, value in figures(summarise(records)).items():
                assert frame[name][number] == value


@pytest.mark.system
@pytest.mark.parametrize("address", [None, "auto"])
def test_a_study_runs_in_the_ray_that_is_up_and_leaves_it_so(
    session: None, tmp_path: Path, compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    import ray

    from ...conftest import start_study

    monkeypatch.setenv("FPL_TUNE_CACHE", os.environ["FPL_TUNE_CACHE"])
    logging.getLogger("ray.tune").setLevel(logging.INFO)
    before, overrides = ray.get_runtime_context().get_job_id(), [*OVERRIDES, "execution.parallel=2", "seeds=2"]
    for executor in ("ray", "inline"):
        made = compose("axes: {optim: {lr: [0.01, 0.1]}}", *overrides, f"execution.executor={executor}")
        made = replace(made, execution=replace(made.execution, address=address))
        assert start_study(made, root=tmp_path / executor).done == 2
    pd.testing.assert_frame_equal(figures_of(tmp_path / "ray"), figures_of(tmp_path / "inline"), check_exact=True)
    assert ray.get_runtime_context().get_job_id() == before
    assert ray.get(ray.remote(lambda: 1).remote()) == 1
    assert logging.getLogger("ray.tune").level == logging.INFO


@pytest.mark.system
def test_another_address_than_that_of_the_ray_that_is_up_is_rejected(session: None) -> None:
    from fpl_tune.execute.ray.connect import connected
    from fpl_tune.execute.resources import address_in_use

    host, _, port = str(address_in_use()).rpartition(":")
    for address in (f"{host}:{int(port) + 1}", f"10.255.0.1:{port}"):
        with (
            pytest.raises(ConfigError, match=rf"already uses the Ray at {host}:{port}, .* is {address}"),
            connected(address),
        ):
            pass
    for address in (f"{host}:{port}", f"localhost:{port}"):
        with connected(address):
            pass


@pytest.mark.system
def test_the_check_of_a_node_sees_the_gpus_in_the_ray_that_is_up(
    session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray hides them from a worker that reserves none, unless its environment says otherwise."""
    from fpl_tune.execute.ray import nodes

    monkeypatch.setattr(nodes, "probe", lambda *_: (os.environ.get("CUDA_VISIBLE_DEVICES", "all"), ()))
    assert [node.problem for node in nodes.check_nodes(str(tmp_path))] == ["all"]


def test_tuner_with_asha_optuna_and_mlflow(session: None, tmp_path: Path) -> None:
    import mlflow
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    results = tuned(
        {**TINY, "method": "pfedmoap", "method.experts": 2, "method.lam": tune.uniform(0, 5), "seeds": 1},
        tmp_path,
        callbacks=[MLflowLoggerCallback(tracking_uri=uri, experiment_name="plain")],
        search_alg=ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=2),
        scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2),
        num_samples=4,
    )
    assert not results.errors
    assert len(results) == 4
    assert max(r.metrics["training_iteration"] for r in results) == 3
    runs = mlflow.MlflowClient(uri).search_runs(
        [mlflow.MlflowClient(uri).get_experiment_by_name("plain").experiment_id]  # type: ignore[union-attr]
    )
    assert len(runs) == 4
    assert all("val/acc_mean" in run.data.metrics and "method.lam" in run.data.params for run in runs)


def reached(results: Any) -> dict[str, tuple[int, float]]:
    """Round and validation accuracy of each trial."""
    return {r.metrics["trial_id"]: (r.metrics["training_iteration"], r.metrics["val/acc_mean"]) for r in results}


def test_tuner_with_population_based_training_and_restore(session: None, tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    mutations: dict[str, Any] = {"optim.lr": tune.loguniform(1e-4, 1.0), "method.lam": tune.uniform(0, 5)}
    rule = PopulationBasedTraining(
        "training_iteration", perturbation_interval=1, hyperparam_mutations=mutations, synch=True, quantile_fraction=0.5
    )
    space = {**TINY, "method": "pfedmoap", "method.experts": 2, "seeds": 1, **mutations}
    space["protocol"] = {"rounds": 4, "epochs": 1}
    results = tuned(space, tmp_path, scheduler=rule, num_samples=2)
    assert not results.errors
    assert [r.metrics["training_iteration"] for r in results] == [4, 4]
    frames = [r.metrics_dataframe for r in results]
    assert any(frame[f"config/{name}"].nunique() > 1 for frame in frames for name in mutations), "perturbed on the way"

    again = tune.Tuner.restore(str(tmp_path / "plain"), trainable=FederatedTrainable).fit()
    assert reached(again) == reached(results), "nothing is left to run"


def test_tuner_finds_relative_paths_where_a_study_does(
    session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune moves its workers into folders of their own."""
    from PIL import Image

    rng, here = np.random.default_rng(0), Path.cwd()  # where Ray was started
    photos = tmp_path / "photos"
    for kind in ("cat", "dog"):
        (photos / kind).mkdir(parents=True)
        for k in range(8):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(photos / kind / f"{k}.png")
    root = os.path.relpath(photos, here)
    run = config.compose_run(["data=folder", f"data.root={root}", "data.shots=2", "partition=iid",
                              "partition.n_clients=2"])  # fmt: skip
    data = load(run.data)
    file = os.path.relpath(export_split(split(data, run.data, run.partition, 1), data, tmp_path / "f.json"), here)
    space = {
        "method": "promptfl", "data": {"name": "folder", "root": root, "shots": 2, "names": {"cat": "tom.cat"}},
        "partition": {"name": "iid", "n_clients": 2}, "protocol": {"rounds": 1, "epochs": 1},
        "clip.pretrained": os.path.relpath(compact.weights_path(), here),
    }  # fmt: skip
    monkeypatch.setenv("FPL_TUNE_CACHE", os.path.relpath(os.environ["FPL_TUNE_CACHE"], here))
    (result,) = tuned(space, tmp_path / "named")
    assert result.error is None
    fixed = {"name": "file", "file": file}
    (result,) = tuned({**space, "data": {**space["data"], "names": {}}, "partition": fixed}, tmp_path / "fixed")
    assert result.error is None
