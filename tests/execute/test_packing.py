"""The packing of trials on GPUs: a policy on simulated devices that run out of memory as real ones do."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.execute.job import Job
from fpl_tune.execute.packing import CONTEXT_BYTES, PATIENCE, SLACK, SMALLEST, Packing, Slice, kind_of
from fpl_tune.study.cells import expand

GB = 1 << 30
Make = Callable[..., Any]


@pytest.fixture
def jobs(compose: Make) -> Callable[[list[int]], list[Job]]:
    """jobs(n_ctx of each): jobs whose kinds differ by the number of context tokens."""

    def make(sizes: list[int]) -> list[Job]:
        cells = {}
        for size in set(sizes):
            (cell,) = expand(*compose(f"method: {{n_ctx: {size}}}", name=f"size{size}"))
            cells[size] = cell
        return [Job(cells[size], (1, 2)) for size in sizes]

    return make


def slices(sizes: list[int]) -> list[Slice]:
    """GPUs of this machine, of which nobody else uses any."""
    return [Slice("", size, size) for size in sizes]


def simulate(packing: Packing, waiting: list[Job], truth: dict[str, int], sizes: list[int]) -> dict[str, Any]:
    """Runs all jobs, each a second long, on devices that refuse what does not fit. Ray places where the share fits."""
    free, used = [1.0] * len(sizes), [0] * len(sizes)
    running: list[tuple[float, int, int, Job, float, int]] = []
    found: dict[str, Any] = {"oom": [], "failed": [], "done": 0, "most": 0, "order": []}
    now, count = 0.0, 0
    while waiting or running:
        while (placed := packing.place(waiting)) is not None:
            job, share, _ = placed
            waiting = [other for other in waiting if other is not job]
            device = max(range(len(sizes)), key=lambda i: free[i])
            assert free[device] >= share - 1e-9, "what the policy places has room"
            need = truth[kind_of(job)] + CONTEXT_BYTES
            if need > share * sizes[device]:
                found["oom"].append(job)
                packing.ended(job)
                if job.alone:
                    found["failed"].append(job)
                else:
                    waiting.append(replace(job, alone=True))
                continue
            free[device] -= share
            used[device] += need
            assert used[device] <= sizes[device], "neighbours never push each other out"
            count += 1
            found["order"].append(job)
            heapq.heappush(running, (now + 1.0, count, device, job, share, need))
            found["most"] = max(found["most"], len(running))
        if not running:
            assert not waiting, "whatever waits goes when nothing runs"
            break
        now, _, device, job, share, need = heapq.heappop(running)
        free[device] += share
        used[device] -= need
        packing.measured(job, truth[kind_of(job)])
        packing.ended(job)
        found["done"] += 1
    return {**found, "seconds": now}


def test_small_trials_fill_what_large_ones_leave(jobs: Make, tmp_path: Path) -> None:
    waiting = jobs([2] * 12 + [16] * 4)
    truth = {kind_of(waiting[0]): 1 * GB, kind_of(waiting[-1]): 12 * GB}
    packing = Packing(slices([24 * GB]), tmp_path)
    found = simulate(packing, waiting, truth, [24 * GB])
    assert (found["done"], found["oom"]) == (16, [])
    # A second each to measure the two kinds alone; then the large ones one at a time, small ones beside each.
    assert found["seconds"] == 2 + 3
    assert found["most"] >= 4
    assert packing.peaks == truth
    again = simulate(Packing(slices([24 * GB]), tmp_path), jobs([16, 2, 2, 2]), truth, [24 * GB])
    assert again["seconds"] >= 1


def test_the_share_is_the_measured_peak_with_slack(jobs: Make, tmp_path: Path) -> None:
    (job,) = jobs([4])
    packing = Packing(slices([80 * GB, 40 * GB]), tmp_path)
    assert packing.share(job, "") == 1.0, "unknown: measured alone"
    packing.measured(job, 10 * GB)
    wanted = (SLACK * 10 * GB + CONTEXT_BYTES) / (40 * GB)
    assert wanted <= packing.share(job, "") < wanted + 0.01, "of the smallest device"
    assert packing.share(replace(job, alone=True), "") == 1.0
    packing.measured(job, 3)
    assert packing.peaks[kind_of(job)] == 10 * GB, "the largest of what was seen"
    small = Packing(slices([1 << 50]), tmp_path)
    assert small.share(job, "") == SMALLEST
    assert json.loads((tmp_path / "gpu-memory.json").read_text()) == packing.peaks


def test_more_seeds_are_another_kind(jobs: Make) -> None:
    (job,) = jobs([4])
    assert kind_of(job) == kind_of(replace(job, attempt=1))
    assert kind_of(job) != kind_of(replace(job, seeds=(1,)))


def test_out_of_memory_goes_alone_once_then_fails(jobs: Make, tmp_path: Path) -> None:
    small, large = jobs([2, 8])
    packing = Packing(slices([24 * GB]), tmp_path)
    for job in (small, large):  # the second is wrong
        packing.measured(job, 1 * GB)
    truth = {kind_of(small): 1 * GB, kind_of(large): 9 * GB}
    found = simulate(packing, [small, large], truth, [24 * GB])
    assert found["done"] == 2
    assert [job.alone for job in found["oom"]] == [False]
    assert packing.peaks[kind_of(large)] == 9 * GB, "and is known from then on"
    truth[kind_of(large)] = 30 * GB
    found = simulate(Packing(slices([24 * GB]), tmp_path), [small, large], truth, [24 * GB])
    assert [job.alone for job in found["oom"]] == [False, True]
    assert [job.cell.id for job in found["failed"]] == [large.cell.id]
    assert found["done"] == 1


def test_a_kind_that_is_being_measured_waits_for_its_figure(jobs: Make, tmp_path: Path) -> None:
    packing = Packing(slices([24 * GB, 24 * GB]), tmp_path)
    first, second, other = jobs([2, 2, 4])
    placed = packing.place([first, second, other])
    assert placed == (first, 1.0, "")
    assert packing.place([second, other]) == (other, 1.0, "")
    assert packing.place([second]) is None
    packing.measured(first, GB)
    packing.ended(first)
    assert packing.place([second]) == (second, packing.share(second, ""), "")


def test_nobody_waits_for_ever(jobs: Make, tmp_path: Path) -> None:
    large, *small = jobs([16] + [2] * 40)
    packing = Packing(slices([24 * GB]), tmp_path)
    packing.measured(large, 20 * GB)
    packing.measured(small[0], 2 * GB)
    assert packing.place([small[0]]) is not None
    waiting, running = [large, *small[1:]], [small[0]]
    for _ in range(3 * PATIENCE):
        placed = packing.place(waiting)
        if placed is None:
            packing.measured(running[0], 2 * GB)
            packing.ended(running.pop(0))
            continue
        waiting.remove(placed[0])
        running.append(placed[0])
        if placed[0] is large:
            break
    assert large in running
    assert len(waiting) < len(small), "others went before it, as long as there was patience"


@pytest.mark.parametrize("seed", range(5))
def test_any_mixture_ends_and_never_overfills(jobs: Make, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kinds = jobs([1, 2, 4, 8, 16])
    truth = {kind_of(job): int(rng.uniform(0.2, 20) * GB) for job in kinds}
    waiting = [replace(kinds[rng.randrange(5)], attempt=1) for _ in range(60)]
    sizes = [rng.choice([24, 40]) * GB for _ in range(rng.randint(1, 4))]
    found = simulate(Packing(slices(sizes), tmp_path), waiting, truth, sizes)
    assert found["done"] == 60
    assert not found["failed"]


def test_nodes_differ_and_other_programs_count(jobs: Make, tmp_path: Path) -> None:
    (job,) = jobs([4])
    packing = Packing([Slice("small", 24 * GB, 24 * GB), Slice("large", 80 * GB, 60 * GB)], tmp_path)
    assert packing.share(job, "large") == 0.75, "what other programs left"
    packing.measured(job, 10 * GB)
    assert packing.share(job, "large") < packing.share(job, "small") < 0.53
    first = packing.place([job])
    assert first is not None
    packing.ended(first.job)

    packing.measured(job, 40 * GB)
    placed = packing.place([replace(job, attempt=1)])
    assert placed is not None
    assert placed.node == "large", "it does not fit elsewhere"
    packing.keep(["small"])
    packing.ended(placed.job)
    assert packing.nodes == {"small"}
    packing.add([Slice("joined", 80 * GB, 80 * GB)])
    placed = packing.place([replace(job, attempt=1)])
    assert placed is not None
    assert placed.node == "joined"


def test_a_kind_is_known_while_its_first_trial_runs(jobs: Make, tmp_path: Path) -> None:
    first, *others = jobs([4, 4, 4])
    packing = Packing(slices([24 * GB, 24 * GB]), tmp_path)
    assert packing.place([first, *others]) == (first, 1.0, "")
    assert packing.place(others) is None, "its kind is being measured"
    packing.measured(first, 5 * GB)
    assert packing.place(others) is not None
    assert packing.place(others[1:]) is not None, "beside it on the other GPU"
