"""The state of MLflow's page on an experiment that the links open: its own shows no figures until one chooses columns.

MLflow keeps such states in tags of the experiment, as its button to share a view does. It takes the keys that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fpl_tune.study.tracking import Tracked

TAG = "mlflow.sharedViewState."
"""Prefix of the tag of a state; its key follows."""
_FIELDS = (12, 4, 0)
"""Fields as columns and axes, as many as fit in a tag: more than the first have no room on a screen."""
_LENGTH = 5000
"""Characters of an experiment's tag."""
_SECTIONS = ("Model metrics", "test", "val", "train")
"""Charts in their order, by the first part of the metrics' names: MLflow puts the figures, which have none, last."""


def state(tracked: Tracked, fields: Sequence[str], axes: Sequence[str], *, statuses: bool = False) -> dict[str, Any]:
    """The state: the cells without the study's own run, and charts, the figures first.

    Args:
        tracked: where MLflow holds the study.
        fields: parameters that are columns.
        axes: parameters that are axes of the parallel coordinates.
        statuses: whether to tell which cells were pruned or failed.
    """
    figures = dict.fromkeys([tracked.order, "test_acc", "test_acc_std", "val_acc", "n_seeds"])
    columns = [f"metrics.`{name}`" for name in figures] + [f"params.`{name}`" for name in fields]
    parallel = {
        "type": "PARALLEL",
        "uuid": "fpl-parallel",
        "metricSectionId": f"fpl-{_SECTIONS[0]}",
        "selectedParams": [*axes],
        "selectedMetrics": [tracked.order],
        "showAllRuns": True,
        "deleted": False,
        "isGenerated": False,
    }
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{tracked.parent}'",
        "orderByKey": f"metrics.`{tracked.order}`",
        "orderByAsc": tracked.ascending,
        "selectedColumns": [*columns, *(["tags.`fpl.status`"] if statuses else [])],
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": [parallel] if axes else [],
        "compareRunSections": [
            {"uuid": f"fpl-{name}", "name": name, "display": True, "isReordered": True, "deleted": False}
            for name in _SECTIONS
        ],
        "isAccordionReordered": True,
    }


def text(tracked: Tracked, fields: Sequence[str], axes: Sequence[str], *, statuses: bool = False) -> str:
    """A state, see `state`, as its tag's value."""
    texts = (
        json.dumps(state(tracked, fields[:most], axes[:most], statuses=statuses), separators=(",", ":"))
        for most in _FIELDS
    )
    return next(text for text in texts if len(text) <= _LENGTH)
