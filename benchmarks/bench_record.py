"""Benchmarks over time: what `make bench` measures, appended to one file with machine and commit."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from fpl_tune import bench, config
from fpl_tune.core.device import cores, resolve
from fpl_tune.core.paths import cache_root

FILE = Path(__file__).with_name("bench.jsonl")
KEPT = ("bench", "seconds", "plain_seconds", "ratio")


def append(progress: Callable[..., Any], file: Path = FILE) -> list[dict[str, Any]]:
    """Measures text encoding and a round, and appends a line for each to the file."""
    run, device = config.compose_run([]), resolve("auto")
    rows = bench.bench_text(run, device, progress=progress)
    rows += bench.bench_round(run, device, cache_dir=cache_root(), progress=progress)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=FILE.parent, capture_output=True, text=True, check=True
    ).stdout.strip()
    where = {"date": date.today().isoformat(), "commit": commit, "machine": f"{_processor()}, {cores()} cores"}
    lines = [{**where, **{name: row[name] for name in KEPT if name in row}} for row in rows]
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    return lines


def _processor() -> str:
    """The processor's name, as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
