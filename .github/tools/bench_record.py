"""Benchmarks over time: `make bench` appended to one file with machine and commit, and the page that draws it."""

from __future__ import annotations

import io
import json
import platform
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.core.device import cores, resolve
from fpl_tune.core.paths import cache_root
from fpl_tune.testing import bench

FILE = Path(__file__).resolve().parents[1] / "bench.jsonl"
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


def page(file: Path = FILE) -> tuple[str, dict[str, bytes]]:
    """The page of the site, and its charts by name: seconds by date, a chart for each benchmark."""
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    parts = [
        "# Benchmarks over time",
        "`python .github/tools/bench.py record` appends what `make bench` measures. The ratio is that to the plain "
        "path in the same run, which says more than seconds where machines differ.",
    ]
    charts: dict[str, bytes] = {}
    for number, name in enumerate(dict.fromkeys(line["bench"] for line in lines)):
        found = [line for line in lines if line["bench"] == name]
        figure = Figure(figsize=(6, 2.2), layout="constrained")
        axes = figure.subplots()
        for machine in dict.fromkeys(line["machine"] for line in found):
            own = [line for line in found if line["machine"] == machine]
            axes.plot([date.fromisoformat(line["date"]) for line in own], [line["seconds"] for line in own], "o-",
                      label=machine)  # fmt: skip
        days = sorted({date.fromisoformat(line["date"]) for line in found})
        axes.set_xticks(days[:: 1 + len(days) // 8])
        axes.set(ylabel="seconds", ylim=(0, None))
        axes.legend(fontsize="x-small")
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg")
        charts[f"bench_{number}.svg"] = drawn.getvalue()
        rows = [f"| {line['date']} | {line['commit']} | {line['seconds']:.3g} | {line.get('ratio', float('nan')):.3g} |"
                for line in found]  # fmt: skip
        head = ["| date | commit | seconds | ratio to the plain path |", "|---|---|---|---|"]
        parts += [f"## {name}", f"![Seconds by date](images/bench_{number}.svg)", "\n".join([*head, *rows])]
    return "\n\n".join(parts) + "\n", charts
