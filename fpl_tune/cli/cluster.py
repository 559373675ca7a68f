"""`fpl-tune cluster`: the file that starts a cluster, and waiting for its nodes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from fpl_tune.cli.common import Overrides, app, render
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, unknown
from fpl_tune.core.formatting import counted

cluster_app = typer.Typer(
    no_args_is_help=True, help="Ray clusters: write the file that starts one, wait for its nodes."
)
app.add_typer(
    cluster_app,
    name="cluster",
    epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8",
    rich_help_panel="Set up",
)


_DATA = {"aws": "/home/ubuntu/data", "kuberay": "/mnt/data"}
"""Where nodes have the images of `data.root`, which Slurm's see where it says."""
_INSTANCES = (
    *((f"m5.{n}xlarge", "", 0, 4 * n, 16 * n) for n in (2, 4, 8, 12, 16, 24)),
    *(
        (f"{family}.{n if n > 1 else ''}xlarge", gpu, gpus, 4 * n, memory * n)
        for family, gpu, memory in (("g5", "a10g", 16), ("g6", "l4", 16), ("g6e", "l40s", 32))
        for n, gpus in ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (12, 4), (24, 4), (48, 8))
    ),
    ("p4d.24xlarge", "a100-40gb", 8, 96, 1152),
    ("p4de.24xlarge", "a100", 8, 96, 1152),
    ("p5.4xlarge", "h100", 1, 16, 256),
    ("p5.48xlarge", "h100", 8, 192, 2048),
    ("p5en.48xlarge", "h200", 8, 192, 2048),
)
"""Instance types of AWS, smallest first: GPU, number of GPUs, vCPUs, memory in GiB."""


def instance_type(gpu: str, gpus: int, cpus: int, memory: int) -> str:
    """The smallest instance type of AWS with exactly these GPUs, and at least these cores and GiB.

    Raises:
        ConfigError: there is none.
    """
    kinds = dict.fromkeys(kind for _, kind, *_ in _INSTANCES if kind)
    if gpus and gpu not in kinds:
        raise unknown("GPU of AWS", gpu, kinds)
    of_kind = [each for each in _INSTANCES if (each[1] == gpu if gpus else not each[1])]
    counts = sorted({each[2] for each in of_kind})
    if gpus not in counts:
        ways = " or ".join(map(str, counts))
        raise ConfigError(f"AWS has no instance with {counted(gpus, 'GPU')} of kind {gpu}. Write --gpus {ways}.")
    same = [each for each in of_kind if each[2] == gpus]
    fitting = [name for name, *_, cores, gib in same if cores >= cpus and gib >= memory]
    if not fitting:
        name, *_, cores, gib = same[-1]
        raise ConfigError(f"No instance has {cpus} cores and {memory} GiB; the largest, {name}, has {cores} and {gib}. "
                          "Lower --cpus or --memory.")  # fmt: skip
    return fitting[0]


@cluster_app.command("template", epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8")
def cluster_template(
    kind: Annotated[Literal["slurm", "kuberay", "aws", "local"], typer.Argument(help="Where the cluster runs.")],
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study that runs on it.")] = "lambda_sweep",
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that run trials.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a node.")] = 0,
    gpu: Annotated[
        str | None,
        typer.Option(help="Kind of GPU, as Slurm names it; for aws a10g, l4, l40s, a100, h100 or h200."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of a node; default: 8, or 8 for each GPU.", show_default=False)
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(min=1, help="Memory of a node in GiB; default: 32, or 32 for each GPU.", show_default=False),
    ] = None,
) -> None:
    """Print the file that starts a cluster and runs a study on it; its head says what to fill in and how to run it."""
    from fpl_tune.search.compose import compose
    from fpl_tune.study.versions import versions

    data = compose(study, overrides or []).spec.data.root
    if gpu and (not gpus or kind not in ("slurm", "aws")):
        raise ConfigError("--gpu names the kind of --gpus for slurm and aws; other templates take what nodes have.")
    if kind in ("kuberay", "aws") and Path(study).is_absolute():
        raise ConfigError(f"Nodes get the files of this folder, but the study is {study}. Write its path from here.")
    given = overrides or []
    if data and kind in _DATA:
        given = [*(each for each in given if not each.startswith("data.root=")), f"data.root={_DATA[kind]}"]
    words = shlex.join([study, *given])
    if kind in ("kuberay", "aws") and re.search(r"[\n\"]|: | #", words):
        raise ConfigError("Overrides with quotes, ': ' or ' #' cannot be written to YAML; put them into a study file.")
    job = "fpl-" + re.sub(r"[^a-z0-9]+", "-", Path(study).stem.lower()).strip("-")[:40]
    scale = max(1, gpus)
    sizes = {"nodes": nodes, "gpus": gpus, "cpus": cpus or 8 * scale, "memory": memory or 32 * scale}
    kind_of_gpu = (gpu or "a10g").lower() if kind == "aws" else gpu
    instance = instance_type(kind_of_gpu or "", gpus, sizes["cpus"], sizes["memory"]) if kind == "aws" else ""
    more = {"data": data, "gpu": kind_of_gpu, "instance": instance}
    ending = "sh" if kind in ("slurm", "local") else "yaml"
    print(render(f"{kind}.{ending}.j2", words=words, job=job, ray=versions()["ray"], **sizes, **more), end="")


@cluster_app.command("wait", epilog="Example: fpl-tune cluster wait 10.0.0.1:6379 --nodes 4")
def cluster_wait(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the head, or auto.")],
    nodes: Annotated[int, typer.Option(min=1, help="Number of alive nodes, the head included.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit.")] = 300.0,
) -> None:
    """Wait until a cluster has its nodes; exit code 3 if it does not get them in time."""
    from fpl_tune.execute import ray

    until, problem = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        try:
            if (alive := ray.alive(address)) >= nodes:
                print(f"{counted(alive, 'node')} at {address}", file=sys.stderr)
                return
            problem = f"has {alive}"
        except EnvironmentProblem as failure:
            problem = f"does not answer ({failure})"
        time.sleep(1)
    raise EnvironmentProblem(
        f"The cluster at {address} must have {counted(nodes, 'node')} within {seconds:.0f} s, but {problem}. "
        "See what the nodes printed, or wait longer: --seconds."
    )
