"""Rows of `optim=tuned`, as they are written from a study."""

import pytest
import write_defaults
import yaml

from fpl_tune.config import compose_run


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=pfedmoap"],
        ["method=pfedmoap", "optim.groups.gate=0.3"],
        ["method=fedpgp"],
        ["method=fedpgp", "optim.groups.u=null"],
        ["method=fedsept"],
        ["method=promptfl", "optim.lr=0.3"],
    ],
)
def test_a_row_trains_as_its_study_did(overrides: list[str]) -> None:
    """With the rates of groups that were not searched."""
    measured = compose_run(overrides).optim
    row = yaml.safe_load(write_defaults.text_of(write_defaults.settings(measured)))
    written = {f"optim.{name}": value for name, value in row.items()}
    assert compose_run([overrides[0], "optim=adamw", written]).optim == measured
