"""`fpl-tune cluster`: the file that starts a cluster, and waiting for its nodes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from fpl_tune.cli.common import Overrides, app, template

cluster_app = typer.Typer(
    no_args_is_help=True, help="Ray clusters: write the file that starts one, wait for its nodes."
)
app.add_typer(
    cluster_app,
    name="cluster",
    epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8",
    rich_help_panel="Set up",
)


class Cluster(str, Enum):
    """Where a cluster runs."""

    slurm = "slurm"
    kuberay = "kuberay"
    aws = "aws"
    local = "local"


FILES = {"slurm": "slurm.sh", "kuberay": "kuberay.yaml", "aws": "aws.yaml", "local": "local.sh"}
_NEXT = {
    Cluster.slurm: "sbatch {file}",
    Cluster.kuberay: "kubectl apply -f {file}",
    Cluster.aws: "ray up {file}",
    Cluster.local: "sh {file}",
}


@cluster_app.command("template", epilog="Example: fpl-tune cluster template slurm lambda_sweep --nodes 4 --gpus 8")
def cluster_template(
    ctx: typer.Context,
    kind: Annotated[Cluster, typer.Argument(help="Where the cluster runs.")],
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
    shared = "/mnt/fpl-tune" if kind is Cluster.kuberay and shared == "$PWD" else shared
    text = render(kind.value, study, overrides or [], {**ctx.params, "shared": shared}, out)
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    if out.suffix == ".sh":
        out.chmod(0o755)
    print(f"Wrote {out}. Next: {_NEXT[kind].format(file=out)}", file=sys.stderr)


def render(kind: str, study: str, overrides: Sequence[str], options: Mapping[str, Any], out: Path | None = None) -> str:
    """Renders the file that starts a kind of cluster.

    Raises:
        ConfigError: the study or an option is invalid.
    """
    from fpl_tune import config
    from fpl_tune.errors import ConfigError
    from fpl_tune.study.versions import versions

    config.compose_study(study, overrides)
    for name in ("nodes", "cpus", "memory"):
        if options[name] < 1:
            raise ConfigError(f"--{name} must be >= 1, but is {options[name]}.")
    if options["gpus"] < 0:
        raise ConfigError(f"--gpus must be >= 0, but is {options['gpus']}.")
    shared = str(options["shared"])
    if not re.fullmatch(r"[\w./$@+:{}-]+", shared):
        raise ConfigError(f"--shared must be a path without spaces or quotes, but is {shared!r}.")
    if kind == "kuberay" and not shared.startswith("/"):
        raise ConfigError(f"--shared is a folder inside the pods and must begin with /, but is {shared!r}.")
    words = " ".join(shlex.quote(word) for word in (study, *overrides))
    if kind in ("kuberay", "aws") and re.search(r"[\n\"]|: | #", words):
        raise ConfigError("Overrides with quotes, ': ' or ' #' cannot be written to YAML; put them into a study file.")
    job = "fpl-" + re.sub(r"[^a-z0-9]+", "-", Path(study).stem.lower()).strip("-")[:40]
    shown = f'"{shared}"' if kind in ("slurm", "local") else shared
    return template(f"{FILES[kind]}.j2", trim_blocks=True).render(
        **{**options, "shared": shown},
        words=words,
        job=job,
        ray=versions()["ray"],
        file=out.name if out else FILES[kind],
    )


@cluster_app.command("wait", epilog="Example: fpl-tune cluster wait 10.0.0.1:6379 --nodes 4")
def cluster_wait(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the head, or auto.")],
    nodes: Annotated[int, typer.Option(help="Number of alive nodes, the head included.")] = 1,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 300.0,
) -> None:
    """Wait until a cluster has its nodes; exit code 3 if it does not get them in time."""
    from fpl_tune.errors import EnvironmentProblem
    from fpl_tune.execute import ray
    from fpl_tune.formatting import counted

    until = time.monotonic() + seconds
    problem = ""
    while True:
        try:
            found = ray.alive(address)
            problem = f"has {found}"
            if found >= nodes:
                print(f"{counted(found, 'node')} at {address}", file=sys.stderr)
                return
        except EnvironmentProblem as failure:
            problem = f"does not answer ({failure})"
        if time.monotonic() > until:
            raise EnvironmentProblem(
                f"The cluster at {address} must have {counted(nodes, 'node')} within {seconds:.0f} s, but {problem}. "
                "See what the nodes printed, or wait longer: --seconds."
            )
        time.sleep(1)
