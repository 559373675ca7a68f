"""Fixtures that more than one room's tests use."""

import gc
import json
import os
import sqlite3
import tarfile

from fpl_tune import api
from fpl_tune.execute import runner
from fpl_tune.execute.plan import plan
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.table import StudyTable

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch
    # Threads of tests side by side would fight for the same cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # oneDNN keeps a primitive for each shape of a product: of the thousands in a worker's tests, 200 MB and more.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from hypothesis import settings
from simulated_device import simulated
from sqlalchemy import Engine, event

from fpl_tune import config
from fpl_tune.clip.allocator import trim
from fpl_tune.config import RunSpec, Study
from fpl_tune.core.files import save_tensors
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.decide import asking, suggested
from fpl_tune.search.halving import design_of
from fpl_tune.search.search import Search
from fpl_tune.simulation import worlds
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store
from fpl_tune.testing import toys

settings.register_profile("beside others", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("beside others")


@event.listens_for(Engine, "connect")
def _no_fsync(connection: Any, record: Any) -> None:
    """Databases of tests need not survive a power cut; a commit that waits for the disk takes 10 ms and more."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


_LARGE = 600 << 20
"""Bytes of a worker; the imports alone are 400 MB."""
MakeStore = Callable[..., Store]
Compose = Callable[..., Study]
Found = TypeVar("Found")


SYSTEM = (
    "execute/ray/test_cluster.py",
    "execute/ray/test_hosts.py",
    "benchmarks/test_search.py",  # no line of the package
    "cli/test_cluster.py::test_the_local_script_runs_a_study_and_stops_only_its_own_ray",
    "cli/test_examples.py",
    "cli/test_retry.py",
    "cli/test_streams.py::test_so_does_one_in_ray_whose",
    "cli/test_ui.py::test_the_server_answers_at_the_link_and_ends_with_the_command",
    "clip/test_text.py::test_a_thousand_names_are_kept_whole_in_two_gigabytes",
    "clip/test_text.py::test_packed_equals_plain_in_towers_of_true_size[RN50",  # toy towers are in the first tier
    "execute/ray/test_execute.py::test_stopped_in_ray_and_continued_inline_equals_undisturbed",
    "execute/ray/test_trainable.py::test_tuner",
    "faults/test_hostile_commands.py::test_every_verb_refuses_the_whole_corpus_in_one_line",
    "faults/test_kill_matrix.py::test_killed_at_every_13th_file_operation",
    "faults/test_lost_ray.py",
    "faults/test_misbehaving_methods.py",
    "faults/test_storm.py",
    "methods/test_pacs.py",
    "test_examples.py::test_the_tuner_runs",
    "test_notebook.py::test_the_quickstart_runs_and_shows_the_figures_in_it",
    "test_wheel.py",
    "track/test_kills.py",
    "track/test_servers.py",
)
"""Tests of clusters, servers, databases, kills and wheels: `make test-system`. The longest comes first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `SYSTEM` and runs the longest first: at the end, one worker would wait for it."""
    for item in items:
        if item.nodeid.startswith(tuple(f"tests/{path}" for path in SYSTEM)):
            item.add_marker(pytest.mark.system)
        if item.get_closest_marker("system") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
    items.sort(key=lambda item: SYSTEM[0] not in item.nodeid)


@pytest.fixture(scope="session")
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of features for all processes of a test run, and for no other run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "features"


@pytest.fixture
def sim() -> Iterator[torch.device]:
    """The simulated accelerator."""
    with simulated() as device:
        yield device


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """What a test, or a library in it, sets is not there for the next one, nor for processes that it starts."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def _one_cache(feature_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(feature_cache))


@pytest.fixture(autouse=True, scope="module")
def _memory_returned() -> Iterator[None]:
    """Frees what a module's tests have cached, and returns it to the system: a worker runs dozens of modules."""
    yield
    worlds._worlds.clear()
    toys._toy_classes.cache_clear()
    if psutil.Process().memory_info().rss > _LARGE:
        gc.collect()
        gc.freeze()  # what is left is imported: 400,000 objects, which every later pass would take 0.2 s to look at
    trim()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums of several threads differ in their last digit from those of one, which trials under Ray have."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def head() -> str:
    """A tiny study on the embedded world: PromptFL, four clients, two rounds of one step."""
    return """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 2, epochs: 1}
execution: {executor: inline, checkpoint_every: 2}
optim: {batch: 64}
seeds: 2
"""


@pytest.fixture
def compose(head: str, tmp_path: Path) -> Compose:
    """compose(body, *overrides): a study of `head`, then `body`."""

    def make(body: str = "axes: {optim: {lr: [0.01, 0.1]}}", *overrides: str, name: str = "tiny") -> Study:
        path = tmp_path / f"{name}.yaml"
        path.write_text(head + body)
        return config.compose_study(str(path), overrides)

    return make


def there(found: Found | None) -> Found:
    """What must not be None."""
    assert found is not None
    return found


def outdated(store: Store, label: str = "", **prints: str) -> None:
    """Makes stored results of other fingerprints: those of one cell, or of all."""
    for cell in store.cells():
        for seed in store.seeds(cell) if label in ("", cell.label) else ():
            path = store.seed_folder(cell, seed) / "result.json"
            node = json.loads(path.read_text())
            path.write_text(json.dumps({**node, "fingerprints": {**node["fingerprints"], **prints}}))


class Heard(Callback):
    """Notes what a callback hears."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.cells: list[str] = []
        self.stales: list[str] = []
        self.paused: list[str] = []
        self.warnings: list[str] = []
        self.outcomes: list[Outcome] = []

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        self.stales.append(f"{cell.label}: {', '.join(reasons)}")

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        self.rounds += [(f"{cell.label}/{r['seed']}", int(r["round"])) for r in records]

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self.paused.append(cell.label)

    def on_cell_end(self, row: Row) -> None:
        self.cells.append(row.cell.label)

    def on_warning(self, cell: Cell, text: str) -> None:
        self.warnings.append(text)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def built(study: Study | ComposedStudy) -> ComposedStudy:
    """A study with its cells and searches."""
    return study if isinstance(study, ComposedStudy) else ComposedStudy.of(study)


def start_study(study: Study | ComposedStudy, *, executor: runner.Executor | None = None, **how: Any) -> Outcome:
    """Runs a study with the executor that it names, or with another one."""
    if executor is None:
        return api.start_study(built(study), **how)
    return runner.run_study(built(study), executor=executor, **how)


def make_plan(study: Study | ComposedStudy, root: Path) -> plan.StudyPlan:
    """Plans a study."""
    return plan.make_plan(built(study), root=root)


class Asked:
    """The searches of a study that are asked for trials, whose results a test says.

    Args:
        spec: the study.
        fits: see `Search.plan`.
        rows: of the trials before, of which those count that today's study would suggest with the same configuration.
    """

    def __init__(self, spec: Study, fits: Callable[[RunSpec], object] | None = None, rows: Sequence[Row] = ()) -> None:
        self.search = there(Search.plan(spec, fits))
        trials = {cell.id: cell for cell in self.search.restore([row.cell for row in rows])}
        before = {row.cell.id: replace(row, cell=trials[row.cell.id]) for row in rows if row.cell.id in trials}
        self.table = StudyTable(StudyFile.of(spec), design_of(spec), before)
        self._exhausted: set[str] = set()

    @property
    def rows(self) -> list[Row]:
        """The trials so far."""
        return [*self.table.rows.values()]

    def request(self) -> Cell | None:
        """The next trial; None where none is left to suggest."""
        from fpl_tune.search.ask import ask  # with Optuna

        while (part := asking(self.table, self.search.parts, self._exhausted)) is not None:
            cell = ask(part, self.table.design, suggested(self.table, part))
            if cell is not None:
                self.table.rows[cell.id] = Row(cell, self.table.design)
                return cell
            self._exhausted.add(str(part))
        return None

    def all(self) -> list[Cell]:
        """All trials that are left to suggest."""
        return [*iter(self.request, None)]

    def note(self, cell: Cell, histories: Mapping[int, Sequence[Record]], status: str = "done") -> None:
        """Says what a trial's seeds have left."""
        runs = {seed: make_result(status, history) for seed, history in histories.items()}
        self.table.rows[cell.id] = Row(cell, self.table.design, runs)


def note_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that simulations train from now on."""
    step, found = Simulation.step, []
    monkeypatch.setattr(Simulation, "step", lambda self: (found.append(self.round + 1), step(self))[1])
    return found


def figures_of(root: Path, name: str = "tiny") -> pd.DataFrame:
    """results.csv without what a clock wrote."""
    return pd.read_csv(root / name / "results.csv").drop(columns="time/seconds")


@cache
def _composed(path: Path, content: str, overrides: tuple[str, ...]) -> Study:
    """Composed once for all stores of such a study: it takes a tenth of a second."""
    path.write_text(content)
    return config.compose_study(str(path), overrides)


def drawn_history(seed: int, level: float, *, rounds: int, clients: int) -> list[dict[str, Any]]:
    """Records that rise to `level`: what a trial would leave, drawn from (seed, level)."""
    noise = np.random.default_rng([seed, int(1e6 * abs(level))])
    records = []
    for number in range(1, rounds + 1):
        reached = level * (1 - 0.5 / number) + 0.01 * noise.standard_normal()
        test = np.clip(reached + 0.05 * noise.standard_normal(clients), 0, 1)
        val = np.clip(reached + 0.05 * noise.standard_normal(clients), 0, 1)
        records.append(
            {
                "seed": seed,
                "round": number,
                "val/acc_mean": float(val.mean()),
                "test/acc_mean": float(test.mean()),
                "clients/val": val.tolist(),
                "clients/test": test.tolist(),
                "train/loss": 1.0 / number,
                "train/clients": clients,
                "time/train_seconds": 0.4,
                "comm/up_bytes": 1000 * number,
                "comm/down_bytes": 4000 * number,
                "time/seconds": 0.5 * number,
            }
        )
    return records


@pytest.fixture(scope="session")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files of drawn studies."""
    return tmp_path_factory.mktemp("composed")


@pytest.fixture
def make_store(tmp_path: Path, composed: Path) -> MakeStore:
    """Makes the store of a study whose results are drawn: `make_store(overrides, level=..., skip=...)`."""

    def make(
        overrides: Sequence[str] = (),
        *,
        body: str = "axes: {method: {n_ctx: [2, 4, 8]}}\nreferences: [{method: zeroshot}]\nseeds: 3\n",
        name: str = "toy",
        rounds: int = 4,
        clients: int = 10,
        level: Callable[[Any], float] = lambda cell: 0.5 + 0.1 * cell.number,
        fill: Callable[[Any, int], bool] = lambda cell, seed: True,
        root: Path = tmp_path,
    ) -> Store:
        stated = any(override.startswith("protocol.rounds=") for override in overrides)
        given = tuple(overrides) if stated else (*overrides, f"protocol.rounds={rounds}")
        spec = _composed(composed / f"{name}.yaml", f"defaults: [/study, _self_]\n{body}", given)
        store = Store(root, spec.name)
        store.begin(spec, expand(spec))
        for cell in store.cells():
            for seed in spec.seed_list():
                if fill(cell, seed):
                    history = drawn_history(seed, level(cell), rounds=rounds, clients=clients)
                    at = f"2024-05-0{1 + cell.number % 9}T10:00:0{seed}+00:00"
                    result = replace(make_result("done", history, split_hash=f"split{seed}"), finished=at)
                    owner = {"cell": cell.id, "seed": str(seed)}
                    save_tensors({"shared.context": torch.zeros(2, 3)}, learned := root / "learned", owner)
                    store.put(cell, seed, result, learned)
        return store

    return make


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real data sets: what `FPL_TUNE_TEST_DATA` names, or ../shared/data; archives in it are unpacked."""
    held = Path(os.environ.get("FPL_TUNE_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not held.is_dir():
        pytest.skip("no real data sets: FPL_TUNE_TEST_DATA names no folder")
    archives = sorted(held.glob("*.tar"))
    if not archives:
        return held
    unpacked = tmp_path_factory.mktemp("data")
    for archive in archives:
        with tarfile.open(archive) as file:
            file.extractall(unpacked, filter="data")
    for folder in (path for path in held.iterdir() if path.is_dir()):
        (unpacked / folder.name).symlink_to(folder)
    return unpacked
