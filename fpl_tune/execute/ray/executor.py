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
from fpl_tune.execute.job import Setup
from fpl_tune.execute.packing import Memory, Packing
from fpl_tune.execute.ray.bridge import Link, Listening, Source
from fpl_tune.execute.ray.connect import connected
from fpl_tune.execute.ray.newcomers import NodeRefused
from fpl_tune.execute.ray.nodes import Node, check, gpus_here, storage_of, survey
from fpl_tune.execute.ray.slots import Room
from fpl_tune.execute.ray.trainable import TrialActor
from fpl_tune.execute.ray.watch import RayGone, watched
from fpl_tune.execute.resources import cores
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.study.versions import versions


def run(scheduler: Scheduler, setup: Setup) -> None:
    """Runs all jobs of the scheduler.

    Raises:
        EnvironmentProblem: Ray cannot be started or reached, or a node of it cannot do its part.
        ConfigError: a trial asks for what no node has.
    """
    with connected(setup.address), _scratch(setup.folder) as scratch:
        setup, packing, nodes = settle(setup)
        room = Room(setup, [node.id for node in nodes])
        link = Link(scheduler, room, packing)
        tuner = tune.Tuner(
            tune.with_resources(TrialActor, _resources(setup, room)),
            param_space={"setup": setup, "versions": versions()},
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=Source(link),
                scheduler=Listening(link),
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=f"{setup.study}-{os.getpid()}",  # of its own also on a cluster that others use
                storage_path=str(scratch),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", NodeRefused)
                watched(tuner.fit)
        except RayGone as problem:
            link.problem = problem  # what Tune's thread may still tell is not heard
            raise
        finally:
            link.close()
        if link.problem is not None:
            raise link.problem


def settle(setup: Setup) -> tuple[Setup, Packing | None, list[Node]]:
    """The setup as the cluster allows it, how trials share its GPUs, and its nodes.

    Raises:
        EnvironmentProblem: a node cannot do its part; all are asked at once, and none is waited for long.
        ConfigError: a trial asks for what no node has.
    """
    nodes: list[Node] = []
    if setup.address is None:
        sizes = [size for _, size in gpus_here()] if setup.device == "cuda" and setup.gpus is None else []
    else:
        nodes = survey(storage_of(setup), setup.cache_dir, setup.data_roots)
        setup = _on_cluster(setup, nodes)
        sizes = [size for node in nodes if node.facts for _, size in node.facts.gpus]
        sizes = sizes if setup.gpus is None else []
    if not sizes:
        return replace(setup, gpus=setup.gpus or 0.0), None, nodes
    return setup, Packing(sizes, Memory.load(setup.cache_dir)), nodes


def _on_cluster(setup: Setup, nodes: Sequence[Node]) -> Setup:
    if setup.device == "auto":
        setup = replace(setup, device="cuda" if any(node.gpus for node in nodes) else "cpu")
    if setup.device == "cpu":
        setup = replace(setup, gpus=setup.gpus or 0.0)
    asked = setup.gpus if setup.gpus is not None else 0.01  # any share of one
    check(nodes, storage_of(setup), setup.threads, asked)
    if setup.gpus is None and not any(node.facts and node.facts.gpus for node in nodes):
        raise EnvironmentProblem(
            "Memory of GPUs is measured with nvidia-smi, which no node that has GPUs can run. Say what a trial gets of "
            "one: execution.gpus=1."
        )
    return setup


def _resources(setup: Setup, room: Room) -> Any:
    """What Tune is to ask for a trial: the share that its ticket names, of a node that is not refused."""
    alone = float(cores()) if setup.address is None else float(setup.threads)
    threads = min(float(setup.threads), cores() / setup.parallel) if setup.address is None else float(setup.threads)

    def of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        ticket = config["ticket"]
        cpus = alone if ticket.job.alone and not ticket.gpus else threads
        share = {"CPU": cpus, "GPU": ticket.gpus} if ticket.gpus else {"CPU": cpus}
        if not room.refused:
            return tune.PlacementGroupFactory([share])
        elsewhere = {"ray.io/node-id": f"!in({','.join(room.refused)})"}
        return tune.PlacementGroupFactory([share], bundle_label_selector=[elsewhere])

    return of


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Where Tune writes what we do not read."""
    scratch = folder / ".ray"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
