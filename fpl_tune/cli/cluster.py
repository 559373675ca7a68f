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
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
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


@cluster_app.command("template", epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8")
def cluster_template(
    kind: Annotated[Literal["slurm", "kuberay", "aws", "local"], typer.Argument(help="Where the cluster runs.")],
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study that runs on it.")] = "lambda_sweep",
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that run trials.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a node.")] = 0,
    cpus: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = 8,
    memory: Annotated[int, typer.Option(min=1, help="Memory of a node, in GiB.")] = 32,
) -> None:
    """Print the file that starts a cluster and runs a study on it; its head says what to fill in and how to run it."""
    from fpl_tune.search.compose import compose
    from fpl_tune.study.versions import versions

    words = shlex.join([study, *(overrides or [])])
    compose(study, overrides or [])
    if kind in ("kuberay", "aws") and re.search(r"[\n\"]|: | #", words):
        raise ConfigError("Overrides with quotes, ': ' or ' #' cannot be written to YAML; put them into a study file.")
    job = "fpl-" + re.sub(r"[^a-z0-9]+", "-", Path(study).stem.lower()).strip("-")[:40]
    sizes = {"nodes": nodes, "gpus": gpus, "cpus": cpus, "memory": memory}
    ending = "sh" if kind in ("slurm", "local") else "yaml"
    print(render(f"{kind}.{ending}.j2", words=words, job=job, ray=versions()["ray"], **sizes), end="")


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
