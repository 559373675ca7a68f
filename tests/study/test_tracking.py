"""Links to MLflow's pages: their form, their address, and no links where nothing is recorded."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from fpl_tune.study import tracking
from fpl_tune.study.tracking import Tracked

RUNS = {"a" * 16: "1" * 32, "b" * 16: "2" * 32, "c" * 16: "3" * 32}
HELD = Tracked(experiment="7", parent="f" * 32, runs=RUNS, best=["c" * 16, "a" * 16])


def taken_apart(link: str) -> tuple[str, str, dict[str, str]]:
    """Address, page, and query of a link whose page stands in its fragment."""
    address, _, fragment = link.partition("#")
    found = urlsplit(fragment)
    return address, found.path, {name: values[0] for name, values in parse_qs(found.query, strict_parsing=True).items()}


def test_the_links_open_a_comparison_of_the_candidates_a_table_and_charts(tmp_path: Path) -> None:
    tracking.write(tmp_path, HELD)
    links = tracking.links(tmp_path)
    assert list(links) == ["compare", "table", "charts"]
    address, page, query = taken_apart(links["compare"])
    assert (address, page) == ("http://127.0.0.1:5000/", "/compare-runs")
    assert json.loads(query["runs"]) == ["1" * 32, "3" * 32], "in the study's order, without the reference"
    assert json.loads(query["experiments"]) == ["7"]
    state = {"workflowType": "machine_learning", "viewStateShareKey": "f" * 32}
    assert taken_apart(links["table"])[1:] == ("/experiments/7/runs", state)
    assert taken_apart(links["charts"])[1:] == ("/experiments/7/runs", {**state, "compareRunsMode": "CHART"})
    assert all(set(link) <= set(map(chr, range(33, 127))) - set("\"'<>[]`{} ") for link in links.values())


def test_an_experiment_of_any_name_is_one_part_of_the_address(tmp_path: Path) -> None:
    tracking.write(tmp_path, HELD.model_copy(update={"experiment": "a/b?c&d"}))
    _, page, query = taken_apart(tracking.links(tmp_path)["table"])
    assert page == "/experiments/a%2Fb%3Fc%26d/runs"
    assert query["viewStateShareKey"] == "f" * 32


def test_of_many_runs_those_of_the_highest_validation_accuracy_are_compared(tmp_path: Path) -> None:
    runs = {f"{i:016x}": f"{i:032x}" for i in range(300)}
    tracking.write(tmp_path, HELD.model_copy(update={"runs": runs, "best": [*reversed(runs)]}))
    compared = json.loads(taken_apart(tracking.links(tmp_path)["compare"])[2]["runs"])
    assert compared == [f"{i:032x}" for i in range(100, 300)]


def test_a_study_without_finished_cells_has_nothing_to_compare(tmp_path: Path) -> None:
    tracking.write(tmp_path, Tracked(experiment="7", parent="f" * 32))
    assert list(tracking.links(tmp_path)) == ["table", "charts"]


@pytest.mark.parametrize(
    ("server", "base", "address"),
    [
        ("", None, "http://127.0.0.1:5000/"),
        ("", "http://127.0.0.1:5055", "http://127.0.0.1:5055/"),
        ("https://mlflow.example/base", "http://127.0.0.1:5055", "https://mlflow.example/base/"),
    ],
)
def test_a_server_has_its_own_address(tmp_path: Path, server: str, base: str | None, address: str) -> None:
    tracking.write(tmp_path, HELD.model_copy(update={"server": server}))
    links = tracking.links(tmp_path, base)
    assert {taken_apart(link)[0] for link in links.values()} == {address}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"experiment": "7"}', '{"experiment": "7", "parent": "f", "server": "javascript:x"}', "\xff"],
)
def test_a_damaged_file_gives_no_links(tmp_path: Path, text: str) -> None:
    assert tracking.links(tmp_path) == {}
    (tmp_path / "mlflow.json").write_text(text, encoding="latin-1")
    assert tracking.links(tmp_path) == {}
    tracking.write(tmp_path, HELD)
    assert tracking.read(tmp_path) == HELD
