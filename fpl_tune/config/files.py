"""Study files, checked before Hydra merges them, and the options of groups."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpl_tune import methods
from fpl_tune.config.specs import RUN_FIELDS
from fpl_tune.core.clients import with_clients
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.nested import GROUPS
from fpl_tune.core.paths import config_dir, option_files, study_file
from fpl_tune.core.yaml_files import read_mapping


def check_study(path: Path) -> dict[str, Any]:
    """Reads a study file, and checks it and the files in its folder that it builds on before Hydra reads them.

    Raises:
        ConfigError: it does not end in .yaml, is not UTF-8 or YAML, not a mapping, has no `defaults` (unless it is a
            stored study), builds on itself, or holds an interpolation that calls code, a field twice, or a value that
            versions of YAML read differently.
    """
    if path.suffix != ".yaml":
        raise ConfigError(f"Hydra reads files that end in .yaml, but the study is {path.name}. Rename it.")
    node = read_mapping(path, "A study")
    if "defaults" not in node and not set(RUN_FIELDS) <= (node := with_clients(node)).keys():  # of a stored study
        raise ConfigError(f"{path.name} does not say what it builds on. Begin it with `defaults: [/study, _self_]`.")
    if not isinstance(node.get("defaults", []), list):
        raise ConfigError(f"defaults of {path.name} must be a list such as [/study, _self_].")
    _check_bases(path, node, ())
    return node


def _check_bases(path: Path, node: Mapping[str, Any], before: tuple[Path, ...]) -> None:
    """Checks the files in its own folder that a file builds on."""
    if path in before:
        raise ConfigError(f"{path.name} builds on itself: {' -> '.join(p.name for p in (*before, path))}.")
    if dotted := next((str(name) for name in node if "." in str(name)), None):
        nested = dotted.replace(".", ": {") + ": ..." + "}" * dotted.count(".")
        raise ConfigError(
            f"{path.name} has the key {dotted!r}, but names with dots are for the command line, axes and variants. "
            f"Write {nested}."
        )
    if "hydra" in node:
        raise ConfigError(f"{path.name} has settings of Hydra itself, which may call code. Remove 'hydra'.")
    for entry in node.get("defaults", []):
        if (
            isinstance(entry, str)
            and entry not in ("/study", "_self_")
            and not (path.parent / f"{entry}.yaml").is_file()
        ):
            study_file(entry.strip("/"))
        for group in entry if isinstance(entry, Mapping) else ():
            name = str(group).removeprefix("override ").strip(" /")
            if name not in GROUPS:
                raise ConfigError(f"{path.name}: {unknown('group of options', name, GROUPS)}")
    words = [word.strip("/") for word in re.findall(r"[\w./-]+", str(node.get("defaults")))]
    for name in (*words, *(f"{group}/{option}" for group, option in itertools.pairwise(words))):
        other = path.parent / f"{name}.yaml"
        if other.is_file():
            _check_bases(other, read_mapping(other, "A study"), (*before, path))


def options(group: str) -> list[str]:
    """Names of a group's options: its YAML files, and for `method` every known method."""
    named = set(option_files(group))
    return sorted(named | set(methods.catalogue()) if group == "method" else named)


def no_option(group: str, name: str) -> ConfigError:
    """`ConfigError` for an unknown option of a group."""
    more = " Other models of open_clip are named by fields: clip.name=ViT-L-14 clip.pretrained=openai."
    more = more if group == "clip" else ""
    module = name.split(":")[0].removesuffix(".py")
    if group == "method" and (classes := _classes(Path(f"{module}.py"))):
        written = " or ".join(f"method={module}:{each}" for each in classes)
        return ConfigError(
            f"There is no method {name!r} in fpl-tune, but {module}.py is in this folder. Write {written}."
        )
    own = "" if config_dir() else f" An option of your own, DIR/{group}/{name}.yaml, needs --config-dir DIR."
    more = own if not more and name.isidentifier() and group != "method" else more
    return ConfigError(f"{unknown(group, name, options(group))}{more}")


def _classes(path: Path) -> list[str]:
    """The public classes of a Python file, without importing it; empty if it cannot be read or is no regular file."""
    try:
        nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    except (OSError, ValueError, SyntaxError):
        return []
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
