"""Benchmarks for developers of the platform; `fpl-tune bench` has those for users.

python benchmarks/bench.py platform [KEY=VALUE]...   planning and starting a large study, a suggestion, a trial
python benchmarks/bench.py trials [--trials 1000]    what short trials cost the driver: time, memory, page
python benchmarks/bench.py clients [KEY=VALUE]...    rounds of ten among 100 and among 10,000 clients
python benchmarks/bench.py simulate                  a step counted on a simulated GPU, and its predicted time
python benchmarks/bench.py record                    appends what `make bench` measures to benchmarks/bench.jsonl
python benchmarks/bench.py statistics                false positives, coverage and power on simulated studies
python benchmarks/bench.py search                    what searches pay on tables until they find a good configuration
python benchmarks/bench.py search --costs bytes flops   the same until they find a front of accuracy and a cost
python benchmarks/bench.py worlds                    whether the embedded world orders methods as real images do
python benchmarks/bench.py hosts                     cut links, killed nodes, heads and drivers on four hosts (as root)
"""

from __future__ import annotations

import argparse

import bench_record
from bench_clients import bench_clients
from bench_hosts import bench_hosts
from bench_platform import bench_platform
from bench_search import PROBLEMS, TABLES, bench_fronts, bench_search
from bench_statistics import bench_statistics
from bench_trials import bench_trials
from bench_worlds import bench_worlds
from simulated_gpu import simulate_gpu
from table_costs import COSTS

from fpl_tune.cli import output
from fpl_tune.core.device import resolve
from fpl_tune.core.paths import cache_root

KINDS = ("platform", "trials", "clients", "simulate", "record", "statistics", "search", "worlds", "hosts")


def main() -> None:
    """Runs one benchmark and prints its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--orders", type=int, default=20, help="search: replays of each searcher on each table")
    tables = dict.fromkeys((*TABLES, *(table for table, _ in PROBLEMS)))
    parser.add_argument("--tables", nargs="+", choices=tables, help="search: all by default")
    parser.add_argument("--costs", nargs="+", choices=COSTS, help="search: a second objective")
    parser.add_argument("--searchers", nargs="+", metavar="NAME", help="search: all by default")
    parser.add_argument("--trials", type=int, default=1000, help="trials: how many")
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table")
    given = parser.parse_args()
    with output.progress(given.kind) as progress:
        if given.kind == "platform":
            rows = bench_platform(given.overrides, resolve("auto"), cache_dir=cache_root(), progress=progress)
        elif given.kind == "trials":
            rows = bench_trials(given.trials)
        elif given.kind == "clients":
            rows = bench_clients([100, 10_000], given.overrides, cache_dir=cache_root())
        elif given.kind == "simulate":
            rows = simulate_gpu(progress)
        elif given.kind == "record":
            rows = bench_record.append(progress)
        elif given.kind == "worlds":
            rows = bench_worlds()
        elif given.kind == "hosts":
            rows = bench_hosts(progress)
        elif given.costs:
            problems = [(t, cost) for t, cost in PROBLEMS if t in (given.tables or tables) and cost in given.costs]
            rows = bench_fronts(given.orders, problems, given.searchers, progress)
        elif given.kind == "search":
            rows = bench_search(given.orders, given.tables or TABLES, given.searchers, progress)
        else:
            rows = bench_statistics(progress=progress)
    output.emit(rows, given.format)


if __name__ == "__main__":
    main()
