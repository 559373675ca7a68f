"""The oracle against numbers derived by hand, and the surfaces of drawn stores against the oracle."""

import csv
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oracle
import pytest
import surfaces
import yaml
from oracle import TEST, VAL

from ..conftest import MakeStore

GRID = "axes: {method: {n_ctx: [2, 4, 8]}}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
RUN = {"data": {"name": "shapes"}, "partition": {}, "protocol": {}, "clients": {}, "optim": {}}


def write(
    folder: Path, cells: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]], **study: Any
) -> dict[str, dict[str, Any]]:
    """Writes a store by hand: cell -> seed -> validation and test accuracy of each round. Returns its cell.json."""
    body = {"seeds": 3, "looks": [3], "axes": {"optim": {"lr": []}}, "search": {"sampler": None, "objectives": [VAL]}}
    body["report"] = {"metric": TEST, "rule": "final", "rope": 1.0}
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump({**body, **study}))
    same = {"role": "cell", "reference": "", "step": False, "search": "", "first": "", "inside": True}
    places = [{"id": key, "number": number, "label": key, **same} for number, key in enumerate(cells)]
    (folder / "cells.json").write_text(json.dumps({"cells": places}))
    nodes: dict[str, dict[str, Any]] = {}
    for number, (key, seeds) in enumerate(cells.items()):
        place, run = folder / "cells" / key, {**RUN, "optim": {"lr": 0.1 * (number + 1)}}
        nodes[key] = {"id": key, "varied": {"optim.lr": run["optim"]["lr"]}, "suggestion": None, "run": run}
        for seed, rounds in seeds.items():
            (place / f"seed={seed}").mkdir(parents=True)
            records = [
                {"round": i, VAL: val, TEST: test, "test/loss": 1 - test, "comm/up_bytes": i, "comm/down_bytes": 2 * i}
                for i, (val, test) in enumerate(rounds, 1)
            ]
            text = "".join(json.dumps(record) + "\n" for record in records)
            (place / f"seed={seed}" / "metrics.jsonl").write_text(text)
            digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            result = {"status": "done", "rounds": len(rounds), "split_hash": f"s{seed}", "history": digest}
            (place / f"seed={seed}" / "result.json").write_text(json.dumps(result))
        (place / "cell.json").write_text(json.dumps(nodes[key]))
    return nodes


def once(*finals: float) -> dict[int, list[tuple[float, float]]]:
    """Seeds from 1 on, of one round, whose validation and test accuracies are the same."""
    return {seed: [(value, value)] for seed, value in enumerate(finals, 1)}


def test_each_rule_reads_its_rounds() -> None:
    rounds = [(0.1, 0.9), (0.6, 0.2), (0.6, 0.3), (0.2, 0.4), (0.3, 0.5), (0.4, 0.6)]
    history = [{VAL: val, TEST: test, "test/loss": 1 - test} for val, test in rounds]
    found = {rule: oracle.value(history, TEST, rule) for rule in surfaces.RULES}
    assert found == {"final": 0.6, "best_val": 0.2, "best_test": 0.9, "mean_last5": pytest.approx(0.4)}
    assert oracle.value(history, VAL, "mean_last5") == pytest.approx(0.42)
    assert oracle.value(history, "test/loss", "best_val") == pytest.approx(0.8)
    assert oracle.value(history, "test/loss", "mean_last5") == pytest.approx(0.6)
    without = [{TEST: test} for _, test in rounds]
    assert math.isnan(oracle.value(without, TEST, "best_val"))
    assert oracle.value(without, TEST, "final") == 0.6


def test_means_deviations_and_students_interval(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": once(0.1, 0.2, 0.6), "b": once(0.2, 0.2, 0.2)})
    facts = oracle.load(tmp_path / "s")
    found = oracle.expected(facts)
    assert found.mean == pytest.approx({"a": 0.3, "b": 0.2})
    assert found.std == pytest.approx({"a": math.sqrt(0.07), "b": 0.0})  # (0.04 + 0.01 + 0.09) / 2
    assert (found.min["a"], found.max["a"], found.n["a"], found.seeds) == (0.1, 0.6, 3, 6)
    assert found.bytes == {"a": 3.0, "b": 3.0}
    difference, half, n = oracle.difference(facts.cells[0], facts.cells[1], TEST, "final")
    assert (difference, n) == (pytest.approx(0.1), 3)
    assert half == pytest.approx(4.30265273 * math.sqrt(0.07 / 3))  # Student's 97.5 % quantile of two degrees
    assert (facts.direction(TEST), facts.direction("test/loss"), facts.direction("comm/up_bytes")) == (1, -1, -1)


def test_seeds_of_another_split_are_no_pair(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": once(0.1, 0.2, 0.6), "b": once(0.2, 0.2, 0.2)})
    path = tmp_path / "s" / "cells" / "b" / "seed=3" / "result.json"
    path.write_text(path.read_text().replace('"s3"', '"s4"'))
    facts = oracle.load(tmp_path / "s")
    assert oracle.difference(facts.cells[0], facts.cells[1], TEST, "final")[::2] == (pytest.approx(-0.05), 2)


def test_the_choice_is_by_validation_over_common_seeds_and_ties_go_to_smaller_values(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": once(0.5, 0.5), "b": once(0.5, 0.5, 0.9), "c": once(0.4, 0.5)}, seeds=3)
    assert oracle.choose(oracle.load(tmp_path / "s")) == (["a"], 0.5, ["b"], False)
    search = {"sampler": "random", "objectives": ["test/loss"], "only": [], "space": {}}
    write(tmp_path / "t", {"a": once(0.5), "b": once(0.7)}, search=search, seeds=1)
    assert oracle.choose(oracle.load(tmp_path / "t"))[:2] == (["b"], pytest.approx(0.3))


def test_states_and_counts(tmp_path: Path) -> None:
    nodes = write(tmp_path / "s", {key: once(0.5, 0.6) for key in "abcde"}, seeds=2)
    for key, status in (("b", "failed"), ("c", "diverged"), ("d", "partial")):
        path = tmp_path / "s" / "cells" / key / "seed=2" / "result.json"
        path.write_text(path.read_text().replace("done", status))
    (tmp_path / "s" / "cells" / "e" / "seed=2" / "metrics.jsonl").write_text("{}\n")
    found = oracle.expected(oracle.load(tmp_path / "s"))
    assert found.state == dict(zip(nodes, ["done", "failed", "diverged", "pruned", "queued"], strict=True))
    assert found.n == {"a": 2, "b": 1, "c": 1, "d": 2, "e": 1}, "what was pruned is described by what ran equally long"
    assert found.best == ["a"], "cells with a failed, diverged or stopped seed are no candidates; the smaller rate wins"
    assert found.seeds == 7, "those that failed or diverged have no result"


@pytest.mark.parametrize("body", ["", "report: {rule: best_test}\n", "report: {metric: comm/total_bytes}\n"])
def test_surfaces_of_a_drawn_grid_agree(body: str, make_store: MakeStore) -> None:
    store = make_store(body=GRID + body, rounds=6)
    store.end(complete=True, exhausted=[])
    assert surfaces.disagreements(store.root, "toy")[0] == []


def keys(found: Sequence[str]) -> set[str]:
    return {entry.partition(" ")[0] for entry in found}


def test_a_changed_digit_in_results_csv_is_reported(make_store: MakeStore) -> None:
    store = make_store(body=GRID)
    store.end(complete=True, exhausted=[])
    path = store.folder / "results.csv"
    rows = [*csv.DictReader(path.read_text().splitlines())]
    digit = rows[5][TEST]
    path.write_text(path.read_text().replace(digit, f"{float(digit) + 0.001}"))
    assert keys(surfaces.disagreements(store.root, "toy")[0]) == {"mean", "formats"}


@pytest.mark.parametrize("wrong", ["mean", "verdict", "best", "status", "text"])
def test_a_planted_error_in_the_report_is_reported(
    wrong: str, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(body=GRID)
    store.end(complete=True, exhausted=[])
    name, pattern, text = {
        "mean": ("table.csv", r"0\.5\d*", "0.51"),
        "verdict": ("table.csv", "worse|undecided", "better"),
        "best": ("report.html", '"best":true', '"best":false'),
        "status": ("report.html", '"status":"done"', '"status":"failed"'),
        "text": ("table.md", r" 3 \|", " 2 |"),
    }[wrong]
    call = surfaces.call

    def planted(*words: str) -> surfaces.Done:
        ended = call(*words)
        if words[0] == "report":
            path = Path(words[words.index("--out") + 1]) / name
            path.write_text(re.sub(pattern, text, path.read_text(), count=1))
        return ended

    monkeypatch.setattr(surfaces, "call", planted)
    found = keys(surfaces.disagreements(store.root, "toy")[0])
    assert found & {"mean", "verdict", "best-differs", "state", "formats", "n"}


def test_a_traceback_is_reported(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(body=GRID)
    store.end(complete=True, exhausted=[])
    monkeypatch.setattr("fpl_tune.report.page.write", lambda *_, **__: 1 / 0)
    (found,) = surfaces.disagreements(store.root, "toy")[0]
    assert found.startswith("traceback report")
    assert "ZeroDivisionError" in found
