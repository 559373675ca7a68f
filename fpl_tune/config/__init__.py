"""Typed configuration: Hydra at the door, plain dataclasses behind it.

Below this room nobody sees a DictConfig.
"""

from fpl_tune.config.compose import check_name, choose, compose_run, compose_study, to_run, to_study
from fpl_tune.config.fields import as_dict, check, get_field, identity, known_fields, no_field, set_field, stages
from fpl_tune.config.messages import options
from fpl_tune.config.specs import (
    GROUPS,
    RUN_FIELDS,
    ExecutionSpec,
    ProtocolSpec,
    PruneSpec,
    ReportSpec,
    RunSpec,
    SearchSpec,
    StageSpec,
    StudySpec,
    TrackingSpec,
)
from fpl_tune.paths import list_studies

__all__ = [
    "GROUPS",
    "RUN_FIELDS",
    "ExecutionSpec",
    "ProtocolSpec",
    "PruneSpec",
    "ReportSpec",
    "RunSpec",
    "SearchSpec",
    "StageSpec",
    "StudySpec",
    "TrackingSpec",
    "as_dict",
    "check",
    "check_name",
    "choose",
    "compose_run",
    "compose_study",
    "get_field",
    "identity",
    "known_fields",
    "list_studies",
    "no_field",
    "options",
    "set_field",
    "stages",
    "to_run",
    "to_study",
]
