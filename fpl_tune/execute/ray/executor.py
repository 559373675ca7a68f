"""A study as one run of Ray Tune."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.job import Setup
from fpl_tune.execute.packing import Memory, Packing, Slice
from fpl_tune.execute.ray.bridge import Bridge, ReportScheduler
from fpl_tune.execute.ray.connect import connected
from fpl_tune.execute.ray.nodes import Node, check, slices, storage_of, survey
from fpl_tune.execute.ray.slots import NodeRefused, Slots
from fpl_tune.execute.ray.trainable import FederatedTrainable
from fpl_tune.execute.ray.watch import RayGone, watched
from fpl_tune.execute.resources import cores
from fpl_tune.execute.scheduler import Scheduler


def run(scheduler: Scheduler, setup: Setup) -> None:
    """Runs all jobs of the scheduler.

    Raises:
        EnvironmentProblem: Ray cannot be started or joined, or a node cannot run trials.
        ConfigError: a trial asks for what no node has.
    """
    with connected(setup.address), _scratch(setup.folder) as scratch:
        if scheduler.stopping:
            return
        setup, packing = settle(setup)
        slots = Slots(setup)
        bridge = Bridge(scheduler, slots, packing)
        tuner = tune.Tuner(
            tune.with_resources(FederatedTrainable, _resources(slots)),
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=bridge,
                scheduler=ReportScheduler(bridge),
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=f"{setup.study}-{os.getpid()}",  # unique on a cluster that others use too
                storage_path=str(scratch),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", NodeRefused)
                watched(setup.address, tuner.fit)
        except RayGone as problem:
            bridge.problem = problem  # ignores what Tune's thread may still report
            raise
        slots.close()
        if bridge.problem is not None:
            raise bridge.problem


def settle(setup: Setup) -> tuple[Setup, Packing | None]:
    """The setup as the cluster allows it, and how trials share its GPUs.

    Raises:
        EnvironmentProblem: a node cannot run trials.
        ConfigError: a trial asks for what no node has.
    """
    if setup.address is None:
        found = [Slice("", *gpu) for gpu in gpus_here()] if setup.device == "cuda" and setup.gpus is None else []
    else:
        nodes = survey(storage_of(setup), setup.cache_dir, setup.data_roots)
        setup = _on_cluster(setup, nodes)
        found = slices(nodes) if setup.gpus is None else []
    if not found:
        return replace(setup, gpus=setup.gpus or 0.0), None
    return setup, Packing(found, Memory.load(setup.cache_dir))


def _on_cluster(setup: Setup, nodes: Sequence[Node]) -> Setup:
    if setup.device == "auto":
        setup = replace(setup, device="cuda" if any(node.gpus for node in nodes) else "cpu")
    if setup.device == "cuda" and not setup.threads_given:
        setup = replace(setup, threads=1)
    if setup.device == "cpu":
        setup = replace(setup, gpus=setup.gpus or 0.0)
    asked = setup.gpus if setup.gpus is not None else 0.01  # any share of one
    check(nodes, storage_of(setup), setup.threads, asked)
    if setup.gpus is None and not any(node.facts and node.facts.gpus for node in nodes):
        raise EnvironmentProblem(
            "PyTorch sees no GPU on any node that has GPUs. Install a PyTorch with CUDA there, or use "
            "execution.device=cpu."
        )
    return setup


def _resources(slots: Slots) -> Any:
    """The function by which Tune derives a trial's resources from its configuration."""
    setup = slots.setup
    own = setup.address is None
    threads = min(float(setup.threads), cores() / setup.parallel) if own else float(setup.threads)

    def request(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        cpus = float(cores()) if own and config["alone"] and not config["gpus"] else threads
        share = {"CPU": cpus, "GPU": config["gpus"]} if config["gpus"] else {"CPU": cpus}
        label = config["node"] or (f"!in({','.join(slots.refused)})" if slots.refused else "")
        selector = [{"ray.io/node-id": label}] if label else None
        return tune.PlacementGroupFactory([share], bundle_label_selector=selector)

    return request


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for Tune's own files, which are not read."""
    scratch = folder / ".ray"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
