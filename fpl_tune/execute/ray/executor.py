"""A study as one run of Ray Tune."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

from ray import tune

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.packing import Packing, Slice
from fpl_tune.execute.ray.bridge import Bridge, ReportScheduler
from fpl_tune.execute.ray.connect import connected
from fpl_tune.execute.ray.nodes import check, slices, survey
from fpl_tune.execute.ray.study_job import StudyTrainable
from fpl_tune.execute.ray.watch import RayGone, watched
from fpl_tune.execute.scheduler import Scheduler


def run(scheduler: Scheduler, setup: ExecutionContext) -> None:
    """Runs all jobs of the scheduler.

    Raises:
        EnvironmentProblem: Ray cannot be started or joined, or a node cannot run trials.
        ConfigError: a trial asks for what no node has.
    """
    with connected(setup.address) as folder:
        if scheduler.stopping:
            return
        bridge = Bridge(scheduler, *settle(setup))
        tuner = tune.Tuner(
            tune.with_resources(StudyTrainable, _resources),
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
                storage_path=folder,  # for Tune's own files, which are not read
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # jobs write their own
            ),
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                watched(setup.address, tuner.fit)
        except RayGone as problem:
            bridge.problem = problem  # ignores what Tune's thread may still report
            raise
        if bridge.problem is not None:
            raise bridge.problem


def settle(setup: ExecutionContext) -> tuple[ExecutionContext, Packing | None]:
    """The setup as the cluster allows it, and how trials share its GPUs.

    Raises:
        EnvironmentProblem: a node cannot run trials.
        ConfigError: a trial asks for what no node has.
    """
    if setup.address is None:
        found = [Slice("", *gpu) for gpu in gpus_here()] if setup.device == "cuda" and setup.gpus is None else []
    else:
        nodes = survey(setup.storage, setup.cache_dir, setup.data_roots)
        if setup.device == "auto":
            setup = replace(setup, device="cuda" if any(node.gpus for node in nodes) else "cpu")
        if setup.device == "cpu":
            setup = replace(setup, gpus=setup.gpus or 0.0)
        elif setup.execution.threads is None:
            setup = replace(setup, threads=1)
        check(nodes, setup.storage, setup.threads, 0.01 if setup.gpus is None else setup.gpus)  # any share of a GPU
        found = slices(nodes) if setup.gpus is None else []
        if setup.gpus is None and not found:
            raise EnvironmentProblem(
                "PyTorch sees no GPU on any node that has GPUs. Install a PyTorch with CUDA there, or use "
                "execution.device=cpu."
            )
    if not found:
        return replace(setup, gpus=setup.gpus or 0.0), None
    return setup, Packing(found, setup.cache_dir)


def _resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """The resources of a trial from its configuration, which `Bridge` suggests."""
    share = {"CPU": config["cpus"], "GPU": config["gpus"]} if config["gpus"] else {"CPU": config["cpus"]}
    selector = [{"ray.io/node-id": config["node"]}] if config["node"] else None
    return tune.PlacementGroupFactory([share], bundle_label_selector=selector)
