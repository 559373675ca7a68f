"""The resources of a trial on this machine: threads, trials at once, device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fpl_tune.config import StudySpec
from fpl_tune.core.device import cores, resolve
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.paths import cache_root
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.search.pruning import rungs
from fpl_tune.simulation.worlds import threads_of

_MOST_ROUNDS = 1_000_000


def setup_of(spec: StudySpec, folder: Path) -> ExecutionContext:
    """The setup of a study on this machine. The thread count is the same for both executors, as figures depend on it.

    Raises:
        ConfigError: an invalid address, or more than one GPU per trial.
        EnvironmentProblem: a GPU is requested, but there is none.
    """
    execution = spec.execution
    if execution.gpus is not None and execution.gpus > 1:
        raise ConfigError(
            f"execution.gpus is a share of one GPU, at most 1, but is {execution.gpus:g}; a trial trains on one GPU."
        )
    address = (execution.address or os.environ.get("RAY_ADDRESS")) if execution.executor == "ray" else None
    device, threads = execution.device, execution.threads or threads_of(spec)
    parallel, gpus = execution.parallel or 1, execution.gpus
    if address is not None:
        head_of(address)  # the nodes' resources decide the rest
    else:
        device = resolve(execution.device)
        n_gpus = torch.cuda.device_count() if device == "cuda" else 0
        threads = execution.threads or threads_of(spec, device)
        if execution.gpus and not n_gpus:
            raise EnvironmentProblem(
                f"execution.gpus={execution.gpus:g} asks for GPUs, but trials run on the CPU"
                f"{': PyTorch sees no GPU' if execution.device != 'cpu' else ' (execution.device=cpu)'}. "
                "Leave execution.gpus out, or set it to 0."
            )
        parallel = (execution.parallel or max(1, cores() // threads)) if execution.executor == "ray" else 1
        gpus = execution.gpus if n_gpus else 0.0
    return ExecutionContext(
        folder=folder,
        cache_dir=cache_root(),
        execution=execution,
        device=device,
        threads=threads,
        parallel=parallel,
        gpus=gpus,
        address=address,
        data_roots=(spec.data.root,) if spec.data.root else (),
        rungs=rungs(spec.prune, _MOST_ROUNDS),
    )


def head_of(address: str) -> tuple[str, int] | None:
    """Host and port of a cluster's head; None for `auto`.

    Raises:
        ConfigError: it is not an address.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return None
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"execution.address and RAY_ADDRESS must be auto or host:port, but one is {address!r}. Leave them out to "
            "start Ray on this machine."
        )
    return host, int(port)
