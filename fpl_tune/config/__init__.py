# pyright: reportUnusedImport=false
"""Configuration: Hydra merges YAML files and overrides into a plain dict, pydantic checks what comes out.

A run is resolved once: `RunSpec.method` is the `Method`, `RunSpec.stages` the stages. Imports the specifications of
`data` and `clip`, and `methods`; only this package imports Hydra. Open `specs.py` first.
"""

from fpl_tune.config.compose import choose, choose_in, compose_run, compose_study, fixed_seeds, take_seeds
from fpl_tune.config.fields import (
    as_dict,
    identity,
    no_field,
    set_field,
    stages,
    to_run,
    to_study,
    tuned_row,
)
from fpl_tune.config.files import options
from fpl_tune.config.overrides import Given, Override, dotted, parse
from fpl_tune.config.specs import (
    RUN_FIELDS,
    ClaimSpec,
    ExecutionSpec,
    ProtocolSpec,
    PruneSpec,
    ReportSpec,
    RunSpec,
    SearchSpec,
    Stage,
    Study,
    StudySpec,
    TrackingSpec,
)
from fpl_tune.core.nested import GROUPS, flatten, get_field
from fpl_tune.core.yaml_files import read_mapping
