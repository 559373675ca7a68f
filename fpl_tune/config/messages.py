"""What Hydra and OmegaConf complain about, in one line with a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.errors import ConfigCompositionException

from fpl_tune import methods
from fpl_tune.config.fields import known_fields, no_field
from fpl_tune.errors import ConfigError, unknown
from fpl_tune.paths import shipped

_KINDS = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false"}


def options(group: str) -> list[str]:
    """Names that a group offers: its YAML files, and for `method` every known method."""
    named = {path.stem for path in shipped("conf", group).glob("*.yaml")}
    return sorted(named | set(methods.catalogue()) if group == "method" else named)


def readable(problem: Exception, path: Path, chosen: Mapping[str, Any] | None = None) -> ConfigError:
    """Hydra's message in one line, with did-you-mean for keys and options; `chosen` sets the method."""
    text = str(problem)
    cause = problem.__cause__
    full = f"{text}\n{cause}" if cause else text
    if option := re.search(r"Could not find '(\w+)/([^']+)'", full):
        group, name = option.groups()
        return unknown(group, name, options(group))
    if key := re.search(r"Key '([^']+)' (?:is )?not in '?(\w+)'?", full):
        where = re.search(r"full_key: ([\w.\[\]]+)", full)
        return _no_field(where.group(1) if where else key.group(1), chosen or {})
    if override := re.search(r"Could not override '([^']+)'", full):
        return _no_field(override.group(1), chosen or {})
    if value := re.search(r"Value '(.*?)' of type '(\w+)' could not be converted to (\w+)", full):
        where = re.search(r"full_key: ([\w.\[\]]+)", full)
        wanted = _KINDS.get(value.group(3), value.group(3))
        return ConfigError(f"{where.group(1) if where else 'a field'} must be {wanted}, but is {value.group(1)!r}.")
    if listed := re.search(r"override \+*([\w.]+)=.*Cannot merge DictConfig with ListConfig", full, re.DOTALL):
        name = listed.group(1)
        return ConfigError(
            f"{name} has fields of its own and cannot be a list. Take it away first: '~{name}' '+{name}=[...]'."
        )
    if empty := re.search(r"field '([\w.]+)' is not Optional", full):
        return ConfigError(f"{empty.group(1)} cannot be null. Leave it out, or take it away: '~{empty.group(1)}'.")
    if isinstance(problem, ConfigCompositionException) and cause is not None:
        text = f"{text}: {cause}"
    return ConfigError(f"{path.name}: {' '.join(text.split())}")


def _no_field(dotted: str, chosen: Mapping[str, Any]) -> ConfigError:
    return of_studies(dotted) if dotted in known_fields("") else no_field(dotted, chosen)


def of_studies(field: str) -> ConfigError:
    """`ConfigError` for a field that a run has not."""
    return ConfigError(f"{field!r} is a field of studies: a run has none.")
