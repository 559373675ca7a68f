from __future__ import annotations

import io
import json

import numpy as np
from matplotlib.patches import Rectangle
from rich.console import Console

from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.show import overview

SMALL = DataSpec("shapes", train_per_class=4, test_per_class=2, shots=2)
DATA = load(SMALL)


def test_counts_are_those_of_the_split() -> None:
    drawn = split(DATA, SMALL, PartitionSpec("disjoint", n_clients=10), 0)
    seen = overview(drawn, DATA)
    assert seen.clients_by_classes.shape == (10, 20)
    assert (seen.clients_by_classes.sum(0) == 2).all()
    assert ((seen.clients_by_classes > 0).sum(1) == 2).all()
    assert (seen.clients_by_domains.sum(1) == 4).all()
    assert seen.sizes == {
        "train": [4] * 10,
        "val": [2] * 10,
        "test": [24] * 10,
    }
    assert seen.constant_prediction == 0.5  # two classes of equal size
    assert json.loads(json.dumps(seen.to_dict()))["hash"] == drawn.hash


def test_the_table_has_a_row_per_client_and_says_how_many_more() -> None:
    def text(partition: PartitionSpec) -> str:
        printed = io.StringIO()
        Console(width=160, file=printed).print(overview(split(DATA, SMALL, partition, 0), DATA).table())
        return printed.getvalue()

    by_domain = text(PartitionSpec("domain"))
    assert "6 clients, 20 classes" in by_domain
    assert "quickdraw" in by_domain
    assert "more clients" not in by_domain
    assert "10 more clients" in text(PartitionSpec("classes", n_clients=50))


def test_the_figure_shows_clients_by_classes_and_both_histograms() -> None:
    seen = overview(split(DATA, SMALL, PartitionSpec("domain"), 0), DATA)
    figure = seen.figure()
    figure.draw_without_rendering()
    labels, domains, heat, scale = figure.axes
    assert np.array_equal(np.asarray(heat.images[0].get_array()), seen.clients_by_classes)
    upright, lying = ([bar for bar in axes.patches if isinstance(bar, Rectangle)] for axes in (labels, domains))
    assert [bar.get_height() for bar in upright] == seen.clients_by_classes.sum(0).tolist()
    assert [bar.get_width() for bar in lying] == seen.clients_by_domains.sum(0).tolist()
    assert scale.get_ylabel() == "training images"
