"""The resources of a trial on this machine: threads, concurrent trials, device."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from fpl_tune.config import RunSpec, StudySpec
from fpl_tune.core.device import cores, resolve
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.paths import cache_root, usable_cache
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.simulation.worlds import threads_of


def setup_of(spec: StudySpec, folder: Path, runs: Iterable[RunSpec]) -> ExecutionContext:
    """The setup of a study on this machine. Every trial gets as many cores as the one with the most threads.

    A Ray that this process already uses is a cluster to the study: it may have fewer cores, or more nodes.

    Args:
        spec: the study.
        folder: the study's folder.
        runs: those of its cells and searches, whose towers may differ.

    Raises:
        ConfigError: an invalid address, or more than one GPU per trial.
        EnvironmentProblem: a GPU is requested, but there is none; or the feature cache cannot be written.
    """
    execution = spec.execution
    if execution.gpus is not None and execution.gpus > 1:
        raise ConfigError(
            f"execution.gpus is a share of one GPU, at most 1, but is {execution.gpus:g}; a trial trains on one GPU."
        )
    ray = execution.executor == "ray"
    address = (execution.address or os.environ.get("RAY_ADDRESS") or address_in_use()) if ray else None
    if address is not None:
        head_of(address)
    device = resolve(execution.device) if address is None else execution.device  # the nodes decide the rest
    threads = execution.threads or max((threads_of(run, device) for run in runs), default=1)
    gpus, parallel = execution.gpus, execution.parallel or 1
    if address is None:
        n_gpus = torch.cuda.device_count() if device == "cuda" else 0
        if gpus and not n_gpus:
            raise EnvironmentProblem(
                f"execution.gpus={gpus:g} asks for GPUs, but trials run on the CPU. Leave execution.gpus out, or see "
                "fpl-tune doctor for why PyTorch sees no GPU."
            )
        gpus = gpus if n_gpus else 0.0
        parallel = (execution.parallel or max(1, cores() // threads)) if ray else 1
    return ExecutionContext(
        folder=folder,
        cache_dir=usable_cache() if address is None else cache_root(),  # the nodes have their own
        execution=execution,
        device=device,
        threads=threads,
        parallel=parallel,
        gpus=gpus,
        address=address,
        data_roots=(spec.data.root,) if spec.data.root else (),
    )


def address_in_use() -> str | None:
    """Address of the Ray that this process has started or joined already, as a `tune.Tuner` does; None without one."""
    ray = sys.modules.get("ray")  # without an import, which takes a second
    return ray.get_runtime_context().gcs_address if ray is not None and ray.is_initialized() else None


def head_of(address: str) -> tuple[str, int] | None:
    """Host and port of a cluster's head; None for `auto`.

    Raises:
        ConfigError: it is not an address.
    """
    if address == "auto":
        return None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or int(port) >= 1 << 16:
        raise ConfigError(
            f"execution.address and RAY_ADDRESS must be auto or host:port, but one is {address!r}. Leave them out to "
            "start Ray on this machine."
        )
    return host, int(port)
