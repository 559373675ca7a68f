"""MLflow's page of a study: its cells alone, best first, with the fields that vary and the metrics over seeds.

MLflow's "Share" button saves a view in a tag of the experiment, and a link names the tag. The same tag is written here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_KEY = "cells"
TAG = f"mlflow.sharedViewState.{_KEY}"
"""Tag of the experiment that holds the view."""


def cells(axes: Sequence[str]) -> str:
    """The view of an experiment that lists its cells, with what varies.

    MLflow puts metrics, by the alphabet, before parameters. With two of them the parameters are in sight.
    """
    columns = [*(f"params.`{axis}`" for axis in axes), "metrics.`test_acc`", "metrics.`val_acc`"]
    state = {
        "searchFilter": "tags.`fpl.kind` = 'cell'",
        "orderByKey": "metrics.`val_acc`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "runsHiddenMode": "SHOWALL",
    }
    return json.dumps(state)


def page(address: str, experiment: str) -> str:
    """The address of an experiment's cells; without the workflow type MLflow opens its view for language models."""
    where = f"{address.rstrip('/')}/#/experiments/{experiment}/runs"
    return f"{where}?workflowType=machine_learning&viewStateShareKey={_KEY}"
