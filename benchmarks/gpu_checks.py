"""Checks and measurements for the first minutes on a GPU: is everything right there, and as fast as predicted?

    python gpu_checks.py --out FOLDER          on a machine with CUDA, within eight minutes
    python gpu_checks.py --out FOLDER --simulated    what a simulated device can tell, on a CPU

Each section runs in a process of its own with a time limit, so that neither an error nor a lost CUDA context costs the
others. It may take the time that earlier ones have left, and what it has found by its limit counts. FOLDER receives
figures.json, written anew after each section, and figures.md, the same as a page beside what `predicted.json` of the
kit expects. Exit status: 0, or 1 where a check failed, and 3 without CUDA.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_steps import Size, StepsOfRounds, text_towers
from method_cases import METHODS, node
from simulated_device import simulated
from simulated_gpu import count_step
from step_contract import moved
from torch.utils.flop_counter import FlopCounterMode

from fpl_tune import config, methods
from fpl_tune.bench.measure import BenchRow, Peak, best, matrix_rate, once
from fpl_tune.bench.texts import CALTECH101
from fpl_tune.clip.text import cost
from fpl_tune.core.formatting import counted
from fpl_tune.execute.plan.preflight import Loaded, reserved_bytes
from fpl_tune.method import State
from fpl_tune.simulation import bounds
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.graphs import Graphs, capture
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.testing import assert_same, play, toy_task
from fpl_tune.testing.rounds import COHORTS, SIZES

BF16 = torch.bfloat16
CUDA = torch.device("cuda")
_PIXELS = "FedLoRA on pixels, ViT-B/16"
ROUNDS = {
    "PromptFL, compact CLIP": (),
    "pFedMoAP, RN50": ("method=pfedmoap", "clip=rn50"),
    "pFedMMA on pixels, ViT-B/16": ("method=pfedmma", "clip=vit_b16", "optim.batch=4"),
    _PIXELS: ("method=fedlora", "method.towers=both", "clip=vit_b16", "optim.batch=4"),
}
"""Rounds that are measured beside `plan`'s estimate of their memory."""
SMALL = ("protocol=quick", "data.train_per_class=4", "data.test_per_class=1", "data.shots=2")
_SHARED_SECONDS = 3.0  # of steps that processes run side by side


# -- right -------------------------------------------------------------------------------------------------------------


def contract(device: torch.device) -> Iterator[BenchRow]:
    """All forms of all methods: three rounds on the device end where they end on the CPU, in float64."""
    for name in sorted({name for name, _ in METHODS}):
        yield from _each_form(name, partial(_equals_cpu, device=device))


def _equals_cpu(method: methods.Method, device: torch.device) -> str:
    wanted, found = (_played(method, where) for where in (torch.device("cpu"), device))
    assert_same(moved(found, torch.Tensor.cpu), wanted, tolerance=1e-8)
    return ""


def graphs(device: torch.device) -> Iterator[BenchRow]:
    """All forms of all methods whose steps can be recorded: replayed steps end where eager ones end, bit for bit."""
    built = ((name, methods.build(node(name, how))) for name, how in METHODS)
    for name in sorted({name for name, method in built if method.learns and method.batched}):
        yield from _each_form(name, partial(_replayed_equals_eager, device=device))


def _replayed_equals_eager(method: methods.Method, device: torch.device) -> str:
    eager, replayed = (
        moved(_played(method, device, graphs), torch.Tensor.cpu) for graphs in (None, Graphs(always=True))
    )
    try:
        assert_same(replayed, eager)
    except AssertionError:
        assert_same(replayed, eager, tolerance=1e-8)
        return "equal to 1e-8, not bit for bit"
    return ""


def _each_form(name: str, check: Callable[[methods.Method], str]) -> Iterator[BenchRow]:
    """Checks the forms of a method, one row for all."""
    notes: list[str] = []
    began = time.perf_counter()
    passed: bool | None = True  # None: skipped
    for how in (how for other, how in METHODS if other == name):
        try:
            notes.append(check(methods.build(node(name, how))))
        except ModuleNotFoundError as problem:
            passed = passed and None
            notes.append(f"skipped: it needs {problem.name}, which is not here")
        except Exception as problem:
            passed = False
            notes.append(f"{how}: {type(problem).__name__}: {' '.join(str(problem).split())[:200]}")
    note = "; ".join(filter(None, dict.fromkeys(notes)))
    yield {"what": name, "passed": passed, "seconds": time.perf_counter() - began, "note": note}


def _played(method: methods.Method, device: torch.device, graphs: Graphs | None = None) -> State:
    """The first seed's state after the rounds of the contract, evaluated once."""
    task = toy_task(method.needs, seed=0, sizes=SIZES[0], device=device)
    state = play(method, [task], cohorts=COHORTS, graphs=graphs)[-1][0]
    evaluate(method, [task], [state])
    return state


def recovery(device: torch.device) -> Iterator[BenchRow]:
    """A round that runs out of memory is run again in smaller blocks of clients, and ends where it would have."""
    run = config.compose_run([*ROUNDS[_PIXELS], *SMALL, "clip.pretrained=null", "protocol.eval_every=3"])
    whole, held, peak = _second_round(run, device)
    limited, _, lower = _second_round(run, device, held + (peak - held) // 4)
    same = abs(whole - limited) <= 1e-5 * abs(whole)
    note = f"loss {whole:.6f} with {peak / 1e9:.2f} GB, {limited:.6f} with {lower / 1e9:.2f} GB"
    yield {"what": "a round with a quarter of the room for clients", "passed": same and lower < peak, "note": note}


def _second_round(run: config.RunSpec, device: torch.device, limit: int | None = None) -> tuple[float, int, int]:
    """Loss of the second round, bytes held before it, and peak bytes; only this round knows the limit."""
    simulation = Simulation(run, [1], cache_dir=_cache(), device="cuda", graphs=False)
    simulation.step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held, total = torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / total)
    loss = float(simulation.step()[0]["train/loss"])
    return loss, held, torch.cuda.max_memory_allocated(device)


# -- fast --------------------------------------------------------------------------------------------------------------


def launches(device: torch.device) -> Iterator[BenchRow]:
    """Launches, waits and copies of a step of pFedMoAP: those of a round of two steps minus those of one step."""
    if device.type != "cuda":
        yield {"what": "a step of pFedMoAP", **count_step()}
        return
    trial = StepsOfRounds(Size(), 2, BF16, device)
    trial.round(1)
    eager, replayed = (_profiled(trial, graphs) for graphs in (None, Graphs(always=True)))
    yield {"what": "a step of pFedMoAP", **eager, "graphed_launches": replayed["launches"]}


def _profiled(trial: StepsOfRounds, graphs: Graphs | None) -> dict[str, int]:
    """Counts of one more step of a round, by the profiler's names of calls to CUDA."""
    names = {"launches": ("LaunchKernel", "GraphLaunch"), "syncs": ("Synchronize",), "copies": ("cudaMemcpy",)}
    found = {name: 0 for name in names}
    for key, (count, _) in _one_more_step(trial, graphs, 1).items():
        for name, parts in names.items():
            found[name] += round(count) if any(part in key for part in parts) else 0
    return found


def _one_more_step(trial: StepsOfRounds, graphs: Graphs | None, more: int) -> dict[str, tuple[float, float]]:
    """Calls and seconds on the GPU by the profiler's names: those of a round of more steps minus those of one step."""
    found: list[dict[str, tuple[int, float]]] = []
    trial.round(1 + more, graphs)
    for steps in (1, 1 + more):
        torch.cuda.synchronize()
        with torch.profiler.profile() as seen:
            trial.round(steps, graphs)
        found.append({e.key: (e.count, _on_gpu(e)) for e in seen.key_averages()})
    one, many = found
    return {
        key: ((count - one.get(key, (0, 0.0))[0]) / more, (seconds - one.get(key, (0, 0.0))[1]) / more)
        for key, (count, seconds) in many.items()
    }


def _on_gpu(event: Any) -> float:
    """Seconds of a kernel; 0 of what runs on the CPU, which may have those of the kernels that it launches."""
    return event.self_device_time_total * 1e-6 if event.device_type.name == "CUDA" else 0.0


def kernels(device: torch.device) -> Iterator[BenchRow]:
    """Seconds of a replayed step's kernels, together and of those that take most: where a prediction is wrong."""
    for classes in (100, 10):
        trial = StepsOfRounds(Size(names=CALTECH101[:classes]), 1, BF16, device)
        found = _one_more_step(trial, Graphs(always=True), 10)
        ran = sorted(((seconds, n, key) for key, (n, seconds) in found.items() if seconds > 0), reverse=True)
        what = f"kernels of a step, {classes} classes"
        yield {"what": what, "seconds": sum(seconds for seconds, *_ in ran), "count": sum(n for _, n, _ in ran)}
        for seconds, n, key in ran[:15]:
            yield {"what": f"{what}: {_kernel(key)}", "seconds": seconds, "count": n}


def _kernel(name: str) -> str:
    """A kernel's name without namespaces, and no longer than a line."""
    return re.sub(r"void |at::native::|at::|c10::|\(anonymous namespace\)::|std::", "", name)[:110]


def text(device: torch.device) -> Iterator[BenchRow]:
    """Encoding of ten clients' prompts, forward and backward, of few to many classes: its share of the matrix rate."""
    rate = matrix_rate(device, BF16)
    yield {"what": "matrix product, bfloat16", "rate": rate}
    towers = text_towers(Size(), BF16, device)
    names = [f"{name} {i}" for i in range(10) for name in CALTECH101][:1000]
    for count in (10, 100, 1000):
        sentences = towers.sentences(names[:count], 16)
        context = torch.randn(10, 16, towers.text_width, device=device).requires_grad_()
        blocks = max(1, min(10, towers.text.prompts_at_once(sentences, BF16)))

        def step(sentences: Any = sentences, context: Any = context, blocks: int = blocks) -> None:
            for part in context.split(blocks):
                torch.autograd.grad(towers.encode_prompts(part, sentences).sum(), part)

        eager, replayed = best(step, device), best(capture(step, device), device)
        work = cost(towers.text, sentences, 10)
        yield {
            "what": f"text, RN50, {count} classes, 10 clients",
            "seconds": eager,
            "graphed_seconds": replayed,
            "matrix_rate_share": work.operations / replayed / rate,
        }


def steps(device: torch.device) -> Iterator[BenchRow]:
    """Steps of pFedMoAP with one and three seeds, eager and replayed, beside the plain path."""
    rate = matrix_rate(device, BF16)
    for classes, seeds in ((100, 1), (100, 3), (10, 1), (10, 3)):
        size = Size(names=CALTECH101[:classes])
        trial = StepsOfRounds(size, seeds, BF16, device)
        trial.round(1)
        peak = Peak(device)
        eager, replayed = (_seconds_per_step(trial, device, graphs) for graphs in (None, Graphs(always=True)))
        work = cost(trial.towers.text, trial.towers.sentences(size.names, 16), size.n_clients * seeds)
        peak_bytes, plain = peak.bytes(), best(trial.plain, device) * size.n_clients * seeds
        yield {
            "what": f"step, RN50, {classes} classes, {counted(seeds, 'seed')}",
            "seconds": eager,
            "graphed_seconds": replayed,
            "matrix_rate_share": work.operations / min(eager, replayed) / rate,
            "peak_memory_bytes": peak_bytes,
            "plain_seconds": plain,
        }


def _seconds_per_step(trial: StepsOfRounds, device: torch.device, graphs: Graphs | None) -> float:
    """Seconds of a step, without what a round takes besides; a first round records the graph."""
    few, many = 1, 11
    trial.round(many, graphs)
    short, long = (min(once(partial(trial.round, n, graphs), device) for _ in range(2)) for n in (few, many))
    return max(1e-9, long - short) / (many - few)


def rounds(device: torch.device) -> Iterator[BenchRow]:
    """Second rounds: seconds, share of the matrix rate, and the memory of the process beside what a trial reserves.

    What other programs hold on the GPU counts, too.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    rate = 0.0
    for name, chosen in ROUNDS.items():
        run = config.compose_run([*chosen, *SMALL, *(["clip.pretrained=null"] if len(chosen) else [])])
        eager = Simulation(run, [1], cache_dir=_cache(), device="cuda", graphs=False)
        eager.step()
        with FlopCounterMode(display=False) as counter:  # it sees no replayed step
            eager.step()
        del eager
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        simulation = Simulation(run, [1], cache_dir=_cache(), device="cuda")
        simulation.step()
        seconds = once(simulation.step, device)
        estimate = Loaded().memory_of(run).peak(int(bounds.BLOCK_SHARE * total))
        besides = total - torch.cuda.mem_get_info(device)[0] - torch.cuda.memory_reserved(device)
        tensors, kept = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        rate = rate or matrix_rate(device, torch.float32)  # its matrices are no part of the first round's memory
        yield {
            "what": f"round, {name}",
            "seconds": seconds,
            "matrix_rate_share": counter.get_total_flops() / seconds / rate,
            "tensors_bytes": tensors,
            "allocator_bytes": kept,
            "besides_bytes": besides,
            "process_bytes": besides + kept,
            "estimated_bytes": estimate,
            "reserved_bytes": reserved_bytes(estimate),
            "passed": besides + kept <= reserved_bytes(estimate),
        }
        del simulation
        gc.collect()


def sharing(device: torch.device) -> Iterator[BenchRow]:
    """Two processes on one GPU over one after the other, with and without NVIDIA's Multi-Process Service."""
    for classes in (10, 100):
        alone = _steps_together(1, classes)
        for service in (False, True):
            with _mps() if service else nullcontext(True) as running:
                what = f"two processes, {classes} classes, {'with' if service else 'without'} MPS"
                if not running:
                    yield {"what": what, "note": "nvidia-cuda-mps-control is missing or may not be started"}
                    continue
                yield {"what": what, "packed_gain": _steps_together(2, classes) / alone}


def _steps_together(processes: int, classes: int) -> float:
    """Steps a second of several processes, which begin together once all are ready."""
    command = [sys.executable, __file__, "--section", f"load{classes}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    try:
        for process in running:
            process.stdout.readline()
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        return sum(_read(process.communicate(timeout=60)[0])[0]["steps_per_second"] for process in running)
    finally:
        for process in running:
            process.kill()


def load(classes: int, device: torch.device) -> Iterator[BenchRow]:
    """Steps for some seconds, begun when standard input says so."""
    trial = StepsOfRounds(Size(names=CALTECH101[:classes]), 1, BF16, device)
    kept = Graphs(always=True)
    trial.round(20, kept)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < _SHARED_SECONDS:
        trial.round(20, kept)
        torch.cuda.synchronize()
        done += 20
    yield {"what": "load", "steps_per_second": done / (time.perf_counter() - began)}


@contextmanager
def _mps() -> Iterator[bool]:
    """The service, of this user alone; whether it runs."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            started = subprocess.run([control, "-d"], capture_output=True, timeout=30).returncode == 0
            yield started
        finally:
            with suppress(subprocess.SubprocessError):
                subprocess.run([control], input="quit\n", text=True, capture_output=True, timeout=30)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _cache() -> Path:
    return Path(os.environ["FPL_TUNE_CACHE"])


# -- all ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A part of the checks."""

    run: Callable[[torch.device], Iterator[BenchRow]]
    seconds: float
    """Time limit; what earlier sections leave of theirs is added."""
    simulated: bool = False
    """Whether the simulated device can run it."""


SECTIONS = {
    "contract": Section(contract, 110, True),
    "graphs": Section(graphs, 80, True),
    "recovery": Section(recovery, 40),
    "launches": Section(launches, 30, True),
    "kernels": Section(kernels, 20),
    "text": Section(text, 30),
    "steps": Section(steps, 40),
    "rounds": Section(rounds, 70),
    "sharing": Section(sharing, 60),
}
"""In the order in which they run; the limits add up to eight minutes."""
_SLOWER = 20  # times, on the simulated device


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all sections, or one of them, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--simulated", action="store_true", help="without a GPU: what a simulated device can tell")
    parser.add_argument("--section", help="one section alone, each row printed as a line of JSON")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if given.section:
        _print_rows(given.section, given.simulated)
        return 0
    if not given.simulated and not torch.cuda.is_available():
        print("gpu_checks.py measures a GPU, but PyTorch sees none here. Use --simulated without one.", file=sys.stderr)
        return 3
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": _machine(given.simulated), "sections": {}}
    left = 0.0
    for name, section in SECTIONS.items():
        if section.simulated or not given.simulated:
            print(f"{name} …", flush=True)
            began, limit = time.monotonic(), left + section.seconds * (_SLOWER if given.simulated else 1)
            rows = _apart(name, limit, given.simulated)
            seconds = time.monotonic() - began
            left = max(0.0, limit - seconds)
            found["sections"][name] = {"seconds": round(seconds, 1), "rows": rows}
            (given.out / "figures.json").write_text(json.dumps(found, indent=1))
            (given.out / "figures.md").write_text(page(found, _predicted()))
    failed = [row for part in found["sections"].values() for row in part["rows"] if row.get("passed") is False]
    print((given.out / "figures.md").read_text())
    return 1 if failed else 0


def _print_rows(name: str, on_simulated: bool) -> None:
    """Runs a section; each of its rows is printed at once, as a line of JSON."""
    section = partial(load, int(name[4:])) if name.startswith("load") else SECTIONS[name].run
    with simulated() if on_simulated else nullcontext(CUDA) as device:
        try:
            for row in section(device):
                print(json.dumps(row), flush=True)
        except Exception as problem:
            traceback.print_exc()
            row = {"what": name, "passed": False, "note": f"{type(problem).__name__}: {problem}"[:300]}
            print(json.dumps(row), flush=True)


def _read(printed: str | bytes | None) -> list[BenchRow]:
    """The rows of a section, of what its process has printed."""
    text = printed.decode() if isinstance(printed, bytes) else printed or ""
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"what"') and line.endswith("}")]


def _apart(name: str, limit: float, on_simulated: bool) -> list[BenchRow]:
    """The rows of a section that runs in a process of its own."""
    command = [sys.executable, __file__, "--section", name, *(["--simulated"] if on_simulated else [])]
    with tempfile.TemporaryDirectory() as cache:
        known = {"FPL_TUNE_CACHE": cache, **os.environ}
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit, env=known)
        except subprocess.TimeoutExpired as problem:
            found, note = _read(problem.stdout), f"not finished after {limit:.0f} s"
        else:
            found, note = _read(done.stdout), "" if done.returncode == 0 else f"exit status {done.returncode}"
        return [*found, {"what": name, "passed": False, "note": note}] if note else found


def _machine(on_simulated: bool) -> dict[str, Any]:
    gpu = "simulated"
    if not on_simulated:  # asked in another process: this one opens no CUDA context, whose memory would be measured
        ask = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
        gpu = subprocess.run(ask, stdout=subprocess.PIPE, text=True).stdout.strip()
    return {"gpu": gpu, "torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}


def _predicted() -> dict[str, dict[str, float]]:
    path = Path(__file__).with_name("predicted.json")
    return json.loads(path.read_text()) if path.is_file() else {}


def page(found: dict[str, Any], predicted: dict[str, dict[str, float]]) -> str:
    """The figures as Markdown: a table a section, each value beside the predicted one where there is one."""
    lines = ["# Figures", "", ", ".join(f"{k} {v}" for k, v in found["machine"].items()), ""]
    for name, part in found["sections"].items():
        rows: list[BenchRow] = part["rows"]
        failed = sum(row.get("passed") is False for row in rows)
        lines += [f"## {name} ({part['seconds']:.0f} s{f', {failed} failed' if failed else ''})", ""]
        if name in ("contract", "graphs"):
            shown = [row for row in rows if row["note"] or not row["passed"]]
            lines.append(f"{sum(bool(row['passed']) for row in rows)} of {len(rows)} methods pass.")
            lines += [f"* {row['what']}: {row['note']}" for row in shown]
        elif name == "kernels":
            lines += ["| what | a step | mean, µs | ms of a step | predicted |", "|---|---|---|---|---|"]
            for row in (row for row in rows if "count" in row):
                seconds, count, wanted = row["seconds"], row["count"], predicted.get(row["what"], {})
                each, all_of_it = f"{1e6 * seconds / max(1, count):.1f}", f"{1e3 * seconds:.3f}"
                expected = f"{1e3 * wanted['seconds']:.3f}" if wanted else ""
                lines.append(f"| {row['what']} | {count:.4g} | {each} | {all_of_it} | {expected} |")
        else:
            lines += ["| what | value | measured | predicted |", "|---|---|---|---|"]
            for row in rows:
                wanted = predicted.get(row["what"], {})
                for key, value in row.items():
                    if key != "what" and value not in (None, ""):
                        lines.append(f"| {row['what']} | {key} | {_shown(value)} | {_shown(wanted.get(key, ''))} |")
        lines.append("")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
