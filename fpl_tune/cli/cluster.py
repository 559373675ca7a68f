"""`fpl-tune cluster`: the file that starts a cluster, and waiting for its nodes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from fpl_tune.cli.common import Overrides, app, template
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


_FILES = {
    "slurm": ("slurm.sh", "sbatch"),
    "kuberay": ("kuberay.yaml", "kubectl apply -f"),
    "aws": ("aws.yaml", "ray up"),
    "local": ("local.sh", "sh"),
}
"""The file's usual name, and the command that takes it."""


@cluster_app.command("template", epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8")
def cluster_template(
    ctx: typer.Context,
    kind: Annotated[Literal["slurm", "kuberay", "aws", "local"], typer.Argument(help="Where the cluster runs.")],
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study that runs on it.")] = "lambda_sweep",
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that run trials.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a node.")] = 0,
    cpus: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = 8,
    memory: Annotated[int, typer.Option(min=1, help="Memory of a node, in GiB.")] = 32,
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
    from fpl_tune import config
    from fpl_tune.study.versions import versions

    words = [study, *(overrides or [])]
    config.compose_study(study, words[1:])
    if kind == "kuberay" and shared == "$PWD":
        shared = "/mnt/fpl-tune"
    if not re.fullmatch(r"[\w./$@+:{}-]+", shared):
        raise ConfigError(f"--shared must be a path without spaces or quotes, but is {shared!r}.")
    if kind == "kuberay" and not shared.startswith("/"):
        raise ConfigError(f"--shared is a folder inside the pods and must begin with /, but is {shared!r}.")
    quoted, shell = shlex.join(words), kind in ("slurm", "local")
    if not shell and re.search(r"[\n\"]|: | #", quoted):
        raise ConfigError("Overrides with quotes, ': ' or ' #' cannot be written to YAML; put them into a study file.")
    usual, command = _FILES[kind]
    options = {
        "shared": f'"{shared}"' if shell else shared,
        "words": quoted,
        "job": "fpl-" + re.sub(r"[^a-z0-9]+", "-", Path(study).stem.lower()).strip("-")[:40],
        "ray": versions()["ray"],
        "file": out.name if out else usual,
    }
    text = template(f"{usual}.j2", trim_blocks=True).render(**{**ctx.params, **options})
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    if out.suffix == ".sh":
        out.chmod(0o755)
    print(f"Wrote {out}. Next: {command} {out}", file=sys.stderr)


@cluster_app.command("wait", epilog="Example: fpl-tune cluster wait 10.0.0.1:6379 --nodes 4")
def cluster_wait(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the head, or auto.")],
    nodes: Annotated[int, typer.Option(min=1, help="Number of alive nodes, the head included.")] = 1,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 300.0,
) -> None:
    """Wait until a cluster has its nodes; exit code 3 if it does not get them in time."""
    from fpl_tune.execute import ray

    until = time.monotonic() + seconds
    while True:
        try:
            found = ray.alive(address)
            problem = f"has {found}"
        except EnvironmentProblem as failure:
            found, problem = 0, f"does not answer ({failure})"
        if found >= nodes:
            print(f"{counted(found, 'node')} at {address}", file=sys.stderr)
            return
        if time.monotonic() > until:
            raise EnvironmentProblem(
                f"The cluster at {address} must have {counted(nodes, 'node')} within {seconds:.0f} s, but {problem}. "
                "See what the nodes printed, or wait longer: --seconds."
            )
        time.sleep(1)
