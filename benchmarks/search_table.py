"""Tables of searched configurations: simulated once, so that searches can be compared without training.

python benchmarks/search_table.py generate [--configurations 256] [--folder build/tables]
python benchmarks/search_table.py pack [--folder build/tables]

`generate` appends a line per configuration to a file per table and continues after a kill; the tables take turns.
`pack` writes benchmarks/tables/<table>.npz from these files, with the same bytes for the same content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json
from scipy.stats import qmc

from fpl_tune.config import Study, compose_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import cache_root
from fpl_tune.search.cell_search import CellSearch
from fpl_tune.search.search import Search
from fpl_tune.search.space import Space
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Simulation

TABLES = Path(__file__).resolve().parent / "tables"
NAMES = ("pfedmoap", "fedpgp", "promptfl")


def search_of(name: str, *overrides: str) -> tuple[Study, CellSearch]:
    """The study of a table and its search."""
    study = compose_study(str(TABLES / f"table_{name}.yaml"), overrides)
    search = Search.plan(study)
    assert search is not None
    return study, search.parts[0]


def design(search: CellSearch, number: int) -> list[dict[str, Any]]:
    """The published points, and points of a scrambled Sobol sequence over the space: `number` in all."""
    space, points = search.space, search.points
    sequence = qmc.Sobol(len(space.params), seed=0).random(1 << (number - 1).bit_length())
    return [*points, *(point_at(space, row, search.node) for row in sequence)][:number]


def point_at(space: Space, unit: Any, node: Mapping[str, Any]) -> dict[str, Any]:
    """The point of a space at coordinates in [0, 1), one for each parameter."""
    at = {param.name: float(u) for param, u in zip(space.params, unit, strict=True)}

    def value(param: Any) -> Any:
        d, u = param.distribution, at[param.name]
        if isinstance(d, CategoricalDistribution):
            return d.choices[int(u * len(d.choices))]
        low, high = (np.log(d.low), np.log(d.high)) if d.log else (d.low, d.high)
        found = low + u * (high - low)
        found = float(np.exp(found)) if d.log else float(found)
        assert isinstance(d, FloatDistribution | IntDistribution)
        return found if isinstance(d, FloatDistribution) else round(found)

    return space.fill(node, {}, value)


def simulate(study: Study, search: CellSearch, point: Mapping[str, Any]) -> dict[str, Any]:
    """Simulates a configuration with all seeds in one batch, on one thread.

    Returns:
        Its parameters, seconds of the processor, and by set the number of images that are classified rightly
        [seeds, evaluated rounds, clients]; an error instead where training diverges or the method refuses the point.
    """
    began = time.process_time()
    try:
        simulation = Simulation(
            search.at(point), study.seed_list(), cache_dir=cache_root(), device="cpu", graphs=False, threads=1
        )
        histories = simulation.run_all()
    except (ConfigError, Diverged) as problem:
        return {"params": dict(point), "error": str(problem)}
    line: dict[str, Any] = {"params": dict(point), "seconds": round(time.process_time() - began, 3)}
    for name in ("val", "test"):
        tasks = simulation.tasks
        sizes = [t.val.sizes if name == "val" else t.tests[t.primary][1].sizes for t in tasks]
        key = f"clients/{name}"
        line[f"{name}_images"] = sizes
        line[f"{name}_right"] = [
            [[round(a * n) for a, n in zip(record[key], own, strict=True)] for record in history if key in record]
            for history, own in zip(histories, sizes, strict=True)
        ]
    return line


def generate(number: int, into: Path) -> None:
    """Simulates what is missing of all tables, a configuration of each in turn."""
    into.mkdir(parents=True, exist_ok=True)
    searches = {name: search_of(name) for name in NAMES}
    designs = {name: design(search, number) for name, (_, search) in searches.items()}
    for i in range(number):
        for name, (study, search) in searches.items():
            path = into / f"{name}.jsonl"
            if i < len(_lines(path)):
                continue
            line = simulate(study, search, designs[name][i])
            with path.open("a") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            print(f"{name} {i + 1}/{number}: {line.get('seconds', line.get('error'))}", flush=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; one that a kill cut off is removed."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def pack(name: str, folder: Path, into: Path = TABLES) -> Path:
    """Writes the published file of a table from its lines; diverged or refused configurations have no right image."""
    study, search = search_of(name)
    lines = _lines(folder / f"{name}.jsonl")
    sound = next(line for line in lines if "error" not in line)
    about = {
        "space": {param.name: distribution_to_json(param.distribution) for param in search.space.params},
        "points": [[line["params"][param.name] for param in search.space.params] for line in lines],
        "published": len(search.published),
        "failed": {i: line["error"] for i, line in enumerate(lines) if "error" in line},
    }
    every, last = study.protocol.eval_every, study.protocol.rounds
    arrays: dict[str, Any] = {
        "about": np.array(json.dumps(about)),
        "rounds": np.array([r for r in range(1, last + 1) if r % every == 0 or r == last]),
        "seconds": np.array([line.get("seconds", 0.0) for line in lines], np.float32),
    }
    for kind in ("val", "test"):
        arrays[f"{kind}_images"] = np.array(sound[f"{kind}_images"], np.uint16)
        nothing = np.zeros_like(sound[f"{kind}_right"]).tolist()
        arrays[f"{kind}_right"] = np.array([line.get(f"{kind}_right", nothing) for line in lines], np.uint8)
        assert arrays[f"{kind}_images"].max() < 256, "more images of a client than a byte counts"
    into.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(into / f"{name}.npz", **arrays)
    return into / f"{name}.npz"


def main() -> None:
    """Runs a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("generate", "pack"))
    parser.add_argument("--configurations", type=int, default=256, help="of each table")
    parser.add_argument("--folder", type=Path, default=Path("build/tables"), help="of the lines")
    given = parser.parse_args()
    if given.step == "generate":
        generate(given.configurations, given.folder)
    else:
        for name in NAMES:
            path = pack(name, given.folder)
            print(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
