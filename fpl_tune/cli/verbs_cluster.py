"""Verbs on clusters."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import work
from fpl_tune.cli.frame import Overrides, app

cluster_app = typer.Typer(no_args_is_help=True, help="Ray clusters: files that start one, and waiting for its nodes.")
app.add_typer(
    cluster_app,
    name="cluster",
    epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8",
    rich_help_panel="Set up",
)


class Cluster(str, Enum):
    """Where a cluster can run."""

    slurm = "slurm"
    kuberay = "kuberay"
    aws = "aws"
    local = "local"


@cluster_app.command("template", epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8")
def cluster_template(
    kind: Annotated[Cluster, typer.Argument(help="What starts the cluster.")],
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study that runs on it.")] = "lambda_sweep",
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Nodes that run trials.")] = 2,
    gpus: Annotated[int, typer.Option(help="GPUs of a node.")] = 0,
    cpus: Annotated[int, typer.Option(help="Cores of a node.")] = 8,
    memory: Annotated[int, typer.Option(help="Memory of a node, in GiB.")] = 32,
    shared: Annotated[str, typer.Option(help="Folder that all nodes see.")] = "$PWD",
    time: Annotated[str, typer.Option(help="Slurm: time limit.")] = "08:00:00",
    partition: Annotated[str, typer.Option(help="Slurm: partition.")] = "",
    account: Annotated[str, typer.Option(help="Slurm: account.")] = "",
    image: Annotated[str, typer.Option(help="KubeRay: image that holds fpl-tune.")] = "fpl-tune:latest",
    claim: Annotated[str, typer.Option(help="KubeRay: volume claim behind the shared folder.")] = "fpl-tune",
    region: Annotated[str, typer.Option(help="AWS: region.")] = "eu-central-1",
    instance: Annotated[str, typer.Option(help="AWS: type of a worker.")] = "g5.2xlarge",
    head_instance: Annotated[str, typer.Option(help="AWS: type of the head.")] = "m5.xlarge",
    bucket: Annotated[str, typer.Option(help="AWS: URL of checkpoints.")] = "s3://my-bucket/fpl-tune",
    package: Annotated[str, typer.Option(help="AWS: what pip installs.")] = "fpl-tune",
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
) -> None:
    """Print the file that starts a cluster and runs a study on it."""
    options = dict(
        nodes=nodes, gpus=gpus, cpus=cpus, memory=memory, time=time, partition=partition, account=account, image=image
    )
    options |= dict(claim=claim, region=region, instance=instance, head_instance=head_instance, bucket=bucket)
    shared = "/mnt/fpl-tune" if kind is Cluster.kuberay and shared == "$PWD" else shared
    work.cluster.template(kind.value, study, overrides or [], {**options, "package": package, "shared": shared}, out)


@cluster_app.command("wait", epilog="Example: fpl-tune cluster wait 10.0.0.1:6379 --nodes 4")
def cluster_wait(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the head, or auto.")],
    nodes: Annotated[int, typer.Option(help="Living nodes, the head included.")] = 1,
    seconds: Annotated[float, typer.Option(help="Give up after so long.")] = 300.0,
) -> None:
    """Wait until a cluster has its nodes; exit code 3 if it does not get them."""
    work.cluster.wait(address, nodes, seconds)
