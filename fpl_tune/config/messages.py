"""Errors of Hydra and OmegaConf as one line with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

from fpl_tune import methods
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.paths import shipped


def options(group: str) -> list[str]:
    """Names that a group offers: its YAML files, and for `method` every known method."""
    named = {path.stem for path in shipped("conf", group).glob("*.yaml")}
    return sorted(named | set(methods.catalogue()) if group == "method" else named)


_KNOWN = {
    r"Could not (?:load|find) '([^']+)'": "{file} builds on '{0}', which is not a file in its folder or a study.",
    r"(?s)Could not delete from config.*?'([^']+)' does not exist": (
        "'~{0}' takes away a field that is not set. What is not set has its default; set another one."
    ),
    r"(?s)override \+*([\w.]+)=.*Cannot merge DictConfig with ListConfig": (
        "{0} has fields of its own and cannot be a list. Take it away first: '~{0}' '+{0}=[...]'."
    ),
    r"(?s)found duplicate key (\S+).*line (\d+), column": "{file} has the key {0} twice, the second time in line {1}.",
    r"Interpolation key '([^']+)' not found": "{file} refers to ${{{0}}}, which is not a field of it.",
}
"""Pattern of an error of Hydra or OmegaConf -> message."""


def readable(problem: Exception, path: Path) -> ConfigError:
    """An error of Hydra or OmegaConf in one line with a remedy."""
    full = f"{problem}\n{problem.__cause__}" if problem.__cause__ else str(problem)
    if option := re.search(r"Could not find '(\w+)/([^']+)'", full):
        group, name = option.groups()
        more = f" Any model of open_clip: clip.name={name} clip.pretrained=openai." if group == "clip" else ""
        return ConfigError(f"{unknown(group, name, options(group))}{more}")
    for pattern, message in _KNOWN.items():
        if found := re.search(pattern, full):
            return ConfigError(message.format(*found.groups(), file=path.name))
    return ConfigError(f"{path.name} cannot be composed: {' '.join(full.split())[:200]}")


def of_studies(field: str) -> ConfigError:
    """`ConfigError` for a field of studies in a run."""
    more = {
        "execution": " A run uses the GPU where PyTorch sees one; CUDA_VISIBLE_DEVICES= keeps it on the CPU.",
        "axes": " Write a study: fpl-tune new study NAME.",
    }
    return ConfigError(
        f"{field!r} is a field of studies: a run does not have it.{more.get(field.partition('.')[0], '')}"
    )
