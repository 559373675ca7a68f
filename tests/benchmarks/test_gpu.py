"""What is measured on a GPU: counted, predicted and checked without one."""

import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import gpu_checks
import pytest
import simulated_gpu
import torch
from gpu_steps import Size

from fpl_tune.bench.texts import CALTECH101


@pytest.mark.system
def test_a_step_waits_for_nothing_and_launches_as_often_for_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are those of 12 blocks; times are predicted for narrower ones."""
    size = Size(names=CALTECH101[:20], layers=2, width=128)
    told: list[tuple[float, float]] = []
    texts, few, many = {}, {}, {}
    for row in simulated_gpu.simulate_gpu(lambda done, total, _: told.append((done, total)), size):
        group = texts if "text encoding" in row["bench"] else few if ", 10 classes," in row["bench"] else many
        group[len(group)] = row
    for steps in (few, many):
        one, three = steps[0], steps[1]
        for row in (one, three):
            assert (row["syncs"], row["copies"]) == (0, 0)
            assert 100 < row["launches"] <= 450
            assert row["graphed_launches"] == 1
            assert row["predicted_seconds"] >= row["kernel_seconds"] > 0
            assert row["matrix_rate_share"] > 0
        assert one["launches"] == three["launches"]
        assert one["kernel_seconds"] < three["kernel_seconds"] < 3 * one["kernel_seconds"]
        assert three["seconds_over_one_seed"] >= three["seconds_over_one_seed_least"]
        assert 1 <= one["packed_gain"] <= 2
    assert few[0]["packed_gain"] >= many[0]["packed_gain"], "the smaller step leaves more room"
    for text, step in zip(texts.values(), many.values(), strict=True):
        assert text["kernel_seconds"] < step["kernel_seconds"]
    assert [done for done, _ in told] == list(range(4))
    assert told[0][1] == 4


def test_every_form_of_a_method_is_checked_and_an_error_costs_its_method_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(gpu_checks, "METHODS", [("coop", {"n_ctx": 2}), ("promptfl", {"n_ctx": 90}), ("tofa", {})])
    rows = {row["what"]: row for row in gpu_checks.contract(device)}
    assert {name: row["passed"] for name, row in rows.items()} == {"coop": True, "promptfl": False, "tofa": True}
    assert "{'n_ctx': 90}: ConfigError: " in rows["promptfl"]["note"]
    replayed = {row["what"]: row["passed"] for row in gpu_checks.graphs(device)}
    assert replayed == {"coop": True, "promptfl": False}, "a method that learns in no steps has none to record"


def test_the_page_has_each_figure_beside_the_predicted_one() -> None:
    rows = [{"what": "text, 10 classes", "seconds": 0.5, "matrix_rate_share": 0.51234}]
    failed = [{"what": "coop", "passed": False, "seconds": 1.0, "note": "{}: AssertionError: prompt"}]
    found: dict[str, Any] = {"machine": {"gpu": "H200"}, "sections": {}}
    for name, part in (("contract", failed), ("text", rows)):
        found["sections"][name] = {"seconds": 2.0, "rows": part}
    text = gpu_checks.page(found, {"text, 10 classes": {"matrix_rate_share": 0.53}})
    assert "0 of 1 methods pass." in text
    assert "* coop: {}: AssertionError: prompt" in text
    assert "| text, 10 classes | matrix_rate_share | 0.5123 | 0.53 |" in text


def test_a_method_whose_package_is_missing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> str:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(gpu_checks, "METHODS", [("coop", {"n_ctx": 2})])
    monkeypatch.setattr(gpu_checks, "_played", missing)
    (row,) = gpu_checks.contract(torch.device("cpu"))
    assert (row["passed"], row["note"]) == (None, "skipped: it needs scipy, which is not here")
    found = {"machine": {"gpu": "H200"}, "sections": {"contract": {"seconds": 2.0, "rows": [row]}}}
    assert "contract (2 s)\n\n0 of 1 methods pass.\n* coop: skipped" in gpu_checks.page(found, {})


def test_kernels_are_listed_by_what_they_take_of_a_step() -> None:
    what = "kernels of a step, 10 classes"
    rows = [{"what": what, "seconds": 0.002, "count": 400}, {"what": f"{what}: gemm", "seconds": 0.0003, "count": 12}]
    found = {"machine": {"gpu": "H200"}, "sections": {"kernels": {"seconds": 2.0, "rows": rows}}}
    text = gpu_checks.page(found, {what: {"seconds": 0.001}})
    assert f"| {what} | 400 | 5.0 | 2.000 | 1.000 |" in text
    assert f"| {what}: gemm | 12 | 25.0 | 0.300 |  |" in text


def test_without_a_gpu_one_line_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_checks.main(["--out", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs shell commands in place of sections."""

    def replace(commands: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{commands}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace


@pytest.mark.parametrize(("end", "note"), [("exec sleep 60", "not finished after 1 s"), ("exit 7", "exit status 7")])
def test_a_section_that_does_not_end_well_fails_and_keeps_its_rows(
    interpreter: Callable[[str], None], end: str, note: str
) -> None:
    interpreter(f"""echo a library talks; echo '{{"what": "coop"}}'; printf '{{"what": "pro'; {end}""")
    last = {"what": "contract", "passed": False, "note": note}
    assert gpu_checks._apart("contract", 1, on_simulated=False) == [{"what": "coop"}, last]


def test_processes_that_share_a_gpu_begin_when_all_are_ready(interpreter: Callable[[str], None]) -> None:
    interpreter("""echo ready; read go; echo '{"what": "load", "steps_per_second": 2.5}'""")
    assert gpu_checks._steps_together(2, 10) == 5


def test_sections_may_take_the_time_that_others_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(gpu_checks, "_apart", lambda _name, limit, _simulated: limits.append(limit) or [])
    assert gpu_checks.main(["--out", str(tmp_path), "--simulated"]) == 0
    own = [section.seconds * gpu_checks._SLOWER for section in gpu_checks.SECTIONS.values() if section.simulated]
    assert limits == pytest.approx(list(accumulate(own)), rel=0.01)
    assert sum(section.seconds for section in gpu_checks.SECTIONS.values()) <= 480
