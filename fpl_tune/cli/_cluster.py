"""`fpl-tune cluster`: files that start a cluster, and waiting for its nodes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fpl_tune import config
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.formatting import counted
from fpl_tune.study.versions import versions

FILES = {"slurm": "slurm.sh", "kuberay": "kuberay.yaml", "aws": "aws.yaml", "local": "local.sh"}


def render(kind: str, study: str, overrides: Sequence[str], options: Mapping[str, Any], file: str = "") -> str:
    """The file of a kind of cluster as text.

    Raises:
        ConfigError: the study or an option is wrong.
    """
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
        raise ConfigError("Overrides with quotes, ': ' or ' #' do not fit into YAML: write them into a study's file.")
    environment = Environment(
        loader=PackageLoader("fpl_tune.cli"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    job = "fpl-" + re.sub(r"[^a-z0-9]+", "-", Path(study).stem.lower()).strip("-")[:40]
    shown = f'"{shared}"' if kind in ("slurm", "local") else shared
    return environment.get_template(f"{FILES[kind]}.j2").render(
        {**options, "shared": shown, "words": words, "job": job, "ray": versions()["ray"], "file": file or FILES[kind]}
    )


def template(kind: str, study: str, overrides: Sequence[str], options: Mapping[str, Any], out: Path | None) -> None:
    """Prints the file, or writes it."""
    text = render(kind, study, overrides, options, out.name if out else "")
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text)
    except OSError as problem:
        raise EnvironmentProblem(f"{out} cannot be written ({problem.strerror}). Name another file.") from None
    if out.suffix == ".sh":
        out.chmod(0o755)


def wait(address: str, nodes: int, seconds: float) -> None:
    """Waits until a cluster has so many living nodes, its head included.

    Raises:
        EnvironmentProblem: it has fewer when the time is over.
    """
    from fpl_tune.execute import ray

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
