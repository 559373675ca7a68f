"""What the charts of a page draw: marks where values say, colours, rings, and what the page's filter fades."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import vl_convert

from fpl_tune.core.formatting import axis_name
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.partition import class_counts
from fpl_tune.report import charts, search, vega
from fpl_tune.report.page import SECTIONS
from fpl_tune.study.cells import Cell

from ..conftest import MakeStore
from .conftest import SEARCH, TRADED, findings_of, put

Mark = Mapping[str, Any]
PLACES = {"x": "x", "y": "y", "x2": "x", "y2": "y"}


def marks(spec: charts.Spec, findings: Findings) -> list[dict[int, list[Mark]]]:
    """What the file of a chart draws, in each of its panels by the number of the layer."""
    found: list[dict[int, list[Mark]]] = []

    def walk(node: Mark, into: dict[int, list[Mark]]) -> None:
        for item in node.get("items", []):
            walk(item, into)
        if (name := re.fullmatch(r"(?:child_)?(?:layer_(\d+)_)?marks", node.get("name") or "")) is not None:
            into.setdefault(int(name[1] or 0), []).extend(node["items"])

    def cells(node: Mark) -> Iterator[Mark]:
        yield from node["items"] if node.get("name") == "cell" else ()
        for item in node.get("items", []):
            yield from cells(item)

    graph = vl_convert.vegalite_to_scenegraph(vega.whole(spec, charts.cell_rows(findings)))["scenegraph"]
    for panel in [*cells(graph)] or [graph]:
        found.append({})
        walk(panel, found[-1])
    return found


def all_marks(spec: charts.Spec, findings: Findings) -> dict[int, list[Mark]]:
    """The same of a chart with a single panel."""
    (drawn,) = marks(spec, findings)
    return drawn


FILTERS: Mapping[str, Callable[[Mark], bool]] = {
    "datum.best": lambda row: row.get("best", False),
    "!datum.kind": lambda row: "kind" not in row,
    "datum.best && !datum.kind": lambda row: "kind" not in row and row.get("best", False),
    "datum.kind == 'level'": lambda row: row.get("kind") == "level",
    **{
        f"datum.kind == '{kind}'": lambda row, kind=kind: row.get("kind") == kind
        for kind in ("trial", "line", "point", "published", "limit of x", "limit of y")
    },
}
"""The conditions of layers on the rows of their chart."""


def layers(spec: charts.Spec, panel: str | None = None) -> list[charts.Spec]:
    """The layers of a chart, each with its rows in a panel as `rows`; those that transform their data have none."""
    found = []
    for layer in spec.get("spec", spec).get("layer", [spec]):
        data = layer.get("data", spec.get("data"))
        steps = [step.get("filter") for step in layer.get("transform", [])]
        known = "values" in data and {*steps} <= FILTERS.keys() and "transform" not in spec
        here = [row for row in data["values"] if panel in (None, row.get("panel"))] if known else []
        rows = [row for row in here if all(FILTERS[step](row) for step in steps)] if known else None
        found.append({**layer, "rows": rows})
    return found


def panels_of(spec: charts.Spec) -> list[str | None]:
    """The titles of a chart's panels; None for a chart without."""
    return spec["facet"]["sort"] if "facet" in spec else [None]


def charts_of(findings: Findings) -> dict[str, charts.Spec]:
    """All charts of a study's page by name."""
    comparisons = compare(findings)
    panels = (question(findings, comparisons) for *_, questions in SECTIONS for question in questions)
    return {name: spec for panel in panels if panel for name, (spec, _) in panel.charts.items()}


def name_of(mark: Mark) -> str:
    """The name of the cell that a mark's tooltip says, if it does."""
    found = re.search(r"cell: ([^;]+)", mark.get("description", ""))
    return found[1] if found else ""


METHODS = """
  variant: [{label: full, method: promptfl}, {label: other, method: coop}, {label: wide, method.n_ctx: 8}]
  split: [{label: disjoint, partition: disjoint}, {label: equal, partition: iid}]
"""


@pytest.fixture(params=["sweep", "names", "settings", "search", "several", "front", "fronts"])
def findings(
    request: pytest.FixtureRequest,
    make_store: MakeStore,
    trials: Callable[..., Findings],
    traded: Callable[..., Findings],
) -> Findings:
    """Studies of all kinds: numbers and names along an axis, one search and several, fronts of one and several."""
    if request.param == "search":
        return trials(lambda cell, published: 0.7 + 0.002 * (cell.number * 7 % 14), early=lambda number: number > 10)
    if request.param == "several":
        body = "axes: {method: [promptfl, fedprox]}\nreferences: [{method: zeroshot}]\n" + SEARCH.replace("14", "5")
        return trials(lambda cell, published: 0.7 + 0.002 * (cell.number * 7 % 12), body=body)
    if request.param == "front":
        body = SEARCH.replace("trials: 14", "trials: 8, objectives: [val/acc_mean, comm/total_bytes]")
        return trials(lambda cell, published: 0.7 + 0.002 * (cell.number * 7 % 12), body=body)
    if request.param == "fronts":
        axes = "{method: [promptfl, coop], split: [{label: one, partition: disjoint}, {label: two, partition: iid}]}"
        limits = "only: [optim.lr], limits: {comm/total_bytes: 450000, val/acc_mean: 0.7}"
        body = TRADED.replace("{method: [promptfl, coop]}", axes).replace("only: [optim.lr]", limits)

        def value(cell: Cell, seed: int) -> tuple[float, float]:
            return 0.7 + 0.002 * (cell.number * 7 % 12) + 0.001 * (seed % 3), 1e5 * (1 + cell.number % 5)

        return traded(value, body)
    axes = {"sweep": "{method.n_ctx: [2, 4, 8], optim.lr: [0.001, 0.01, 0.1]}", "names": "{method: [promptfl, coop]}",
            "settings": METHODS}  # fmt: skip
    body = f"axes: {axes[request.param]}\nreferences: [{{method: zeroshot}}]\nseeds: 2\n"
    store = make_store(body=body, level=lambda cell: 0.6 + 0.01 * (cell.number * 5 % 9), clients=4)
    for cell in store.cells():
        for seed in store.seeds(cell):
            put(store, cell, seed, split_hash=class_counts(cell.run, seed).hash)
    return findings_of(store)


def test_every_chart_has_its_data_in_its_file_and_a_plain_name(findings: Findings) -> None:
    for name, spec in charts_of(findings).items():
        assert re.fullmatch(r"\w+", name)
        empty = [drawn for drawn in marks(spec, findings) if not any(drawn.values())]
        assert not empty or name == "slice_method_mu", name


def test_methods_in_settings_are_rows_and_curves_of_a_panel_each(make_store: MakeStore) -> None:
    """With the references, which reach another level in each setting."""
    body = f"axes: {METHODS}\nreferences: [{{method: fedprox}}]\nseeds: 3\n"
    findings = findings_of(make_store(body=body, level=lambda cell: 0.4 + 0.05 * cell.number))
    drawn = charts_of(findings)
    assert len(findings.references) == 2
    for name, of_a_cell in (("curve", 1), ("learning_test_acc_mean", 4)):
        assert panels_of(drawn[name]) == ["disjoint", "equal"]
        for panel in panels_of(drawn[name]):
            points = next(each for each in layers(drawn[name], panel) if each["mark"]["type"] == "point")["rows"]
            assert len(points) == 4 * of_a_cell
            labels = {row["x"] if name == "curve" else row["series"] for row in points}
            assert labels == {"full", "other", "wide", "fedprox"}
            for row in points if name == "curve" else ():
                cell = findings.cells[row["number"]]
                assert cell.varied["split"]["label"] == panel
                assert row["mean"] == findings.frame.loc[cell.id, "mean"]


def test_a_reference_of_a_sweep_is_a_level_of_its_own_in_each_setting(make_store: MakeStore) -> None:
    split = "split: [{label: disjoint, partition: disjoint}, {label: equal, partition: iid}]"
    body = f"axes: {{method.mu: [0.1, 0.2, 0.4], {split}}}\nreferences: [{{method: coop}}]\nseeds: 2\n"
    store = make_store(["method=fedprox"], body=body, level=lambda cell: 0.5 + 0.01 * cell.number)
    findings = findings_of(store)
    spec = charts_of(findings)["curve"]
    levels = {
        panel: [row["mean"] for row in each["rows"]]
        for panel in panels_of(spec)
        for each in layers(spec, panel)
        if each["mark"]["type"] == "rule"
    }
    means = {cell.varied["split"]["label"]: findings.frame.loc[cell.id, "mean"] for cell in findings.references}
    assert levels == {panel: [mean] for panel, mean in means.items()}
    assert len({*means.values()}) == 2


def quantities(layer: charts.Spec) -> Iterator[tuple[str, charts.Spec]]:
    """The channels of a layer's numbers that say where its marks are."""
    for name in ("x", "y"):
        if (channel := layer["encoding"].get(name, {})).get("type") == "quantitative":
            yield name, channel


def test_marks_lie_where_their_values_say_and_have_the_colour_of_their_series(findings: Findings) -> None:
    for name, spec in charts_of(findings).items():
        colours, panels = dict[str, str](), marks(spec, findings)
        assert len(panels) == len(panels_of(spec)), name
        for drawn, number, layer in (
            (drawn, *each)
            for drawn, panel in zip(panels, panels_of(spec), strict=True)
            for each in enumerate(layers(spec, panel))
        ):
            rows, kind = layer["rows"], layer["mark"]["type"]
            if not rows or kind in ("boxplot", "area", "line", "text"):
                continue
            assert len(drawn[number]) == len(rows), name
            for place, channel in quantities(layer):
                size = "width" if place == "x" else "height"
                ends = [mark[place] + mark.get(size, 0) * (kind == "bar") for mark in drawn[number]]
                scale = math.log if channel["scale"].get("type") == "log" else float
                values = [scale(row[channel["field"]]) for row in rows]
                assert all(0 <= end <= 620 for end in ends)
                if np.ptp(values) > 0:
                    slope, start = np.polyfit(values, ends, 1)
                    assert slope * (1 if place == "x" else -1) > 0
                    assert np.abs(slope * np.array(values) + start - ends).max() < 0.6, (name, number, place)
            if layer["encoding"].get("color", {}).get("field") == "series":
                for row, mark in zip(rows, drawn[number], strict=True):
                    colour = mark["stroke"] if kind == "rule" else mark["fill"]
                    assert colours.setdefault(row["series"], colour) == colour
                    assert mark.get("opacity", 1) == 1
        assert len({*colours.values()}) == len(colours) <= len(charts.COLOURS) + 1, name


def test_the_page_s_filter_fades_the_other_cells_in_every_chart_of_cells(findings: Findings) -> None:
    kept = findings.numbers[findings.own[0].id]
    for name, spec in charts_of(findings).items():
        if "params" not in spec:
            continue
        filtered = marks({**spec, "params": [{"name": "kept", "value": [kept]}]}, findings)
        for drawn, panel in zip(filtered, panels_of(spec), strict=True):
            for number, layer in enumerate(layers(spec, panel)):
                rows = layer["rows"]
                if rows and layer["mark"]["type"] == "point" and "opacity" in layer["encoding"]:
                    clear = [row["number"] == kept for row in rows]
                    assert [mark["opacity"] == 1 for mark in drawn[number]] == clear, name
                    assert all(mark["opacity"] in (1, 0.08) for mark in drawn[number])
            if spec.get("data") == charts.CELLS:
                bright = {
                    name_of(mark) for of in drawn.values() for mark in of if name_of(mark) and mark["opacity"] == 1
                }
                assert bright <= {findings.names.of(findings.own[0])}
                alone = name == "slice_method_mu" or name.startswith("history_")
                assert bright or alone, "which only FedProx, or another setting, has"


def test_the_best_cell_has_a_ring_in_every_chart_that_marks_it(findings: Findings) -> None:
    best = {findings.names.of(findings.by_id[key]) for key in findings.marked}
    for name, spec in charts_of(findings).items():
        if name.startswith("learning"):
            continue
        for drawn, (number, layer) in itertools.product(marks(spec, findings), enumerate(layers(spec))):
            if layer["mark"].get("size") == charts.RING["size"]:
                points = {(mark["x"], mark["y"]): name_of(mark) for of in drawn.values() for mark in of
                          if "shape" in mark and name_of(mark)}  # fmt: skip
                rings = [(mark["x"], mark["y"]) for mark in drawn.get(number, [])]
                assert sorted(points[ring] for ring in rings) == sorted(best & {*points.values()}), name
                assert rings or name == "slice_method_mu" or (findings.confirmed and not name.startswith("front"))
                assert all(mark["fill"] == "transparent" for mark in drawn.get(number, []))


def test_trials_stand_at_their_cost_and_objective_and_those_stopped_early_are_small_and_hollow(
    trials: Callable[..., Findings],
) -> None:
    findings = trials(
        lambda cell, published: 0.7 + 0.1 * (cell.number > 9) + 0.01 * (cell.number * 5 % 14),
        early=lambda number: number > 9,
    )
    rows = {row["label"]: row for row in charts.cell_rows(findings)}
    drawn = all_marks(search.history(findings), findings)
    points = [mark for of in drawn.values() for mark in of if name_of(mark)]
    at = [name_of(mark) for mark in points]
    assert sorted(at) == sorted(name for name, row in rows.items() if row["role"] == "trial")
    for place, field, way in (("x", "cost", 1), ("y", "objective", -1)):
        order = np.argsort([way * rows[name][field] for name in at], kind="stable")
        assert np.all(np.diff([points[i][place] for i in order]) > 0)
    for name, mark in zip(at, points, strict=True):
        early = rows[name]["status"] == "pruned"
        assert (mark["fill"] == "transparent") == early
        assert (mark["size"] < 30) == early
    line = [row["objective"] for row in search.history(findings)["layer"][1]["data"]["values"]]
    assert (
        line[-1] == max(line) == max(map(findings.objective, findings.whole)) < max(map(findings.reached, findings.own))
    )


def test_the_map_of_a_search_fills_its_chart_with_means_of_trials_near_by(trials: Callable[..., Findings]) -> None:
    only = "only: [optim.lr, protocol.participation], space: {protocol.participation: {low: 0.2, high: 1.0}}"
    body = f"seeds: 3\nsearch: {{sampler: random, trials: 40, confirm: 0, {only}}}\n"
    findings = trials(lambda cell, published: 0.5 + 0.3 * cell.run.protocol.participation, body=body)
    spec = charts_of(findings)["contour"]
    tiles, points = (layer["rows"] for layer in layers(spec))
    fields = [axis_name(name) for name in ("lr", "participation")]
    across, up = (channel["title"] for _, channel in quantities(spec["layer"][0]))
    assert sorted([across, up]) == sorted(fields)
    share, high = ("x", "x2") if "participation" in across else ("y", "y2")
    values = [row["value"] for row in points]
    assert all(min(values) <= tile["value"] <= max(values) for tile in tiles)
    assert np.corrcoef([tile[share] + tile[high] for tile in tiles], [tile["value"] for tile in tiles])[0, 1] > 0.9
    scales = {name: np.log if channel["scale"].get("type") == "log" else np.asarray
              for name, channel in quantities(spec["layer"][0])}  # fmt: skip
    at = np.column_stack([scale([row[name] for row in points]) for name, scale in scales.items()])
    for tile in tiles:
        middle = [scale([tile[name], tile[f"{name}2"]]).mean() for name, scale in scales.items()]
        weights = np.exp(-0.5 * (((at - middle) / np.ptp(at, axis=0) / 0.12) ** 2).sum(1))
        assert tile["value"] == pytest.approx(np.average(values, weights=weights), abs=1e-5)
    for low, end, other in (("x", "x2", "y"), ("y", "y2", "x")):
        firsts = sorted({tile[low] for tile in tiles})
        assert len(firsts) == 16
        assert {tile[end] for tile in tiles} >= {*firsts[1:]}, "without a gap"
        assert (firsts[0], max(tile[end] for tile in tiles)) == pytest.approx(
            (min(row[low] for row in points), max(row[low] for row in points))
        )
        assert len({(tile[low], tile[other]) for tile in tiles}) == len(tiles)
    drawn = all_marks(spec, findings)[0]
    assert min(mark["x"] for mark in drawn) == pytest.approx(0)
    assert max(mark["x"] + mark["width"] for mark in drawn) == pytest.approx(620)
    assert min(mark["y"] for mark in drawn) == pytest.approx(0)
    assert max(mark["y"] + mark["height"] for mark in drawn) == pytest.approx(spec["height"])


def test_levels_far_below_and_above_what_must_be_seen_are_texts_at_the_edges() -> None:
    """Three of them are named, in their order, and the others counted."""
    metric, at = "test/acc_mean", (0.1, 0.2, 0.3, 0.4, 0.805, 0.98)
    levels = [{"series": f"r{number}", "mean": mean} for number, mean in enumerate(at)]
    channel, nearby, far = charts.focused(charts.measured(metric), [0.8, 0.85], levels, "mean", metric)
    low, high = channel["scale"]["domain"]
    assert 0.7 < low < 0.8 < 0.85 < high < 0.9
    assert [row["series"] for row in nearby] == ["r4"]
    texts = {row["kind"]: row["text"] for row in far}
    assert texts == {"low": "↓ r0 10.00 %, r1 20.00 %, r2 30.00 % and 1 more", "high": "↑ r5 98.00 %"}
    assert [layer["mark"]["baseline"] for layer in charts.edges(far)] == ["bottom", "top"]


def test_the_worst_quarter_of_trials_lies_on_the_lower_edge_of_the_chart(trials: Callable[..., Findings]) -> None:
    """Of trials that were stopped early; whole ones are shown where they stand."""
    level = {number: 0.6 for number in (9, 10, 11)} | {number: 0.3 for number in (12, 13, 14)}
    findings = trials(lambda cell, published: level.get(cell.number, 0.8), early=lambda number: number > 7)
    assert len(findings.own) == 14
    numbers = {findings.names.of(cell): cell.number for cell in findings.own}
    for spec in (search.history(findings), *charts_of(findings).values()):
        if spec.get("data") == charts.CELLS and spec["layer"][0]["mark"]["type"] != "line":
            drawn = all_marks(spec, findings)
            low = {numbers[name_of(mark)] for of in drawn.values() for mark in of
                   if name_of(mark) and mark["y"] >= spec["height"] - 0.01}  # fmt: skip
            assert low == {12, 13, 14}
