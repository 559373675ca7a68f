"""How MLflow's pages show a study: its cells alone, best first, with the fields that vary and the figures over seeds.

MLflow keeps what its "Share" button saves in a tag of the experiment, and opens a page by that tag's key; the same is
written here, so that a link shows the cells without a click.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

SHARED = "mlflow.sharedViewState."
"""Prefix of the tags that hold views."""

KEY = "cells"
COMPARED = 100
"""Runs that MLflow's comparison page still draws at ease."""


def cells(axes: Sequence[str], metric: str) -> str:
    """The view of an experiment that lists its cells; `metric` is the one that is reported."""
    figures = [f"agg/{metric}_{kind}" for kind in ("mean", "std", "n")]
    columns = [f"params.`{axis}`" for axis in axes]
    columns += [f"metrics.`{name}`" for name in dict.fromkeys([*figures, "agg/val/acc_mean_mean", "comm/up_bytes"])]
    state = {
        "searchFilter": "tags.`fpl.kind` = 'cell'",
        "orderByKey": "metrics.`agg/val/acc_mean_mean`",
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
    """Where a browser finds the cells of an experiment; MLflow opens its view for language models unless told."""
    where = f"{address.rstrip('/')}/#/experiments/{experiment}/runs"
    return f"{where}?workflowType=machine_learning&viewStateShareKey={KEY}"


def comparison(address: str, experiment: str, runs: Sequence[str]) -> str:
    """Where a browser finds the comparison of runs: parallel coordinates, scatter, box and contour plots."""
    ids, of = quote(json.dumps(list(runs[:COMPARED]))), quote(json.dumps([experiment]))
    return f"{address.rstrip('/')}/#/compare-runs?runs={ids}&experiments={of}&workflowType=machine_learning"
