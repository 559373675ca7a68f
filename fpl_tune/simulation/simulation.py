"""One configuration and its seeds: a whole federated simulation, paused after any round and continued bit for bit.

No Ray, no MLflow. All randomness is derived from (seed, client, round), so that a checkpoint is the state, the round
and the running totals; there are no generators to store.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from fpl_tune import config, methods
from fpl_tune.config import RunSpec
from fpl_tune.core import formatting
from fpl_tune.core.device import OutOfMemory, fixed_settings, is_out_of_memory, usable_bytes
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import BYTES_PER_SCALAR
from fpl_tune.core.plugins import describe_error
from fpl_tune.core.tensors import large_leaves_in
from fpl_tune.method import Method, State, trees_like
from fpl_tune.simulation import attacks, bounds, divergence, learned
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.costs import known_costs
from fpl_tune.simulation.engine import RoundReport, kept_bytes, run_round
from fpl_tune.simulation.evaluate import NEWCOMERS, PATCHED, Score, clock, detect, diagnose, evaluate, summarise
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.task import ClientTask
from fpl_tune.simulation.worlds import cohort_of, initial_state, task_of, threads_of, world_of

Record = dict[str, Any]
"""Metrics of one seed and round: `seed`, `round`, floats by name, and `clients/<set>` lists of accuracies."""


class Simulation:
    """A simulation of several seeds side by side, advanced round by round.

    Args:
        run: the configuration.
        seeds: seeds trained together as one batch; each one's result is the same alone.
        cache_dir: where image features are kept.
        device: cpu or cuda.
        block: clients (over all seeds) trained at once; None: as many as memory allows; fewer where they
            turn out not to fit.
        graphs: whether steps are recorded once and replayed; None: where that saves time.
        threads: CPU threads, on which sums depend in their last digits; None: see `threads_of`.
        warn: called with what does not stop the trial.
    """

    def __init__(
        self,
        run: RunSpec,
        seeds: Sequence[int],
        *,
        cache_dir: Path,
        device: str = "cpu",
        block: int | None = None,
        graphs: bool | None = None,
        threads: int | None = None,
        progress: Any = None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.run, self.seeds = run, list(seeds)
        self.stages = run.stages
        self._methods = [checked(stage.method) for stage in run.stages]
        self.threads, self._warn = threads or threads_of(run, device), warn
        ends = [0, *accumulate(stage.rounds for stage in self.stages)]
        self._spans = [range(first + 1, end + 1) for first, end in pairwise(ends)]
        """The rounds of each stage, counted from 1 over all stages."""
        self.rounds = run.rounds
        self.round = 0
        self.totals: list[dict[str, float]] = [{"up": 0, "down": 0, "vain": 0, "seconds": 0.0} for _ in self.seeds]
        self._changed: set[str] = set()  # settings of which the user was told
        self._held = 0  # the stage whose states these are
        self._cache_dir = cache_dir
        with self.settings():
            self._load(cache_dir, device, progress)
            self.states = self._begin(self._methods[0], None)
        self.block = block
        self._blocks: dict[int, int] = {}  # by stage
        self._graphs = None if graphs is False else Graphs(always=graphs is True, warn=warn)

    def _load(self, cache_dir: Path, device: str, progress: Any) -> None:
        """Loads the towers and images, and deals them to the clients of each seed."""
        run = self.run
        self.world = world_of(run, cache_dir=cache_dir, device=device, progress=progress)
        self.tasks: list[ClientTask] = [task_of(self.world, run, seed) for seed in self.seeds]
        width = max(task.train.rows.shape[1] for task in self.tasks)
        for task in self.tasks:
            for data in filter(None, (task.train, task.poisoned)):
                data.widen(width)  # the tables of all seeds lie side by side
        for method in self._methods:
            method.check(self.tasks[0])
        attacks.check(run, self.tasks[0])

    @contextmanager
    def settings(self) -> Iterator[None]:
        """PyTorch's settings in this simulation; a method that changes them for its process is named once."""
        changed: list[str] = []
        try:
            with fixed_settings(self.threads) as changed:
                yield
        finally:
            if not self._changed >= set(changed):
                self._changed.update(changed)
                named = methods.name_of(self.run.method)
                self._warn(f"{named} changed {' and '.join(changed)} of PyTorch; it was restored.")

    def _block(self) -> int:
        """Largest block of clients that fits, by the configuration and the device's memory size alone, so that
        results are reproducible.

        Raises:
            OutOfMemory: one client does not fit.
        """
        if self._held not in self._blocks:
            where = self.tasks[0].device
            try:
                n_bytes = kept_bytes(self._methods[self._held], self.tasks[0], self.states[0], self.run.optim)
            except Exception as problem:
                if is_out_of_memory(problem):
                    raise self._too_small() from problem
                raise
            self._blocks[self._held] = bounds.clients_at_once(n_bytes, bounds.block_room(where))
        return self._blocks[self._held]

    def _too_small(self) -> OutOfMemory:
        size = formatting.size(usable_bytes(self.tasks[0].device))
        where = "this machine's memory" if self.tasks[0].device.type == "cpu" else f"the GPU's {size}"
        return OutOfMemory(
            f"one step of one client does not fit into {where}; lower optim.batch (now {self.run.optim.batch}) "
            "or set clip.dtype=bfloat16"
        )

    def _round(self, method: Method, cohorts: Sequence[Cohort], epochs: float) -> RoundReport:
        """Trains a round.

        Out of memory on a GPU, the round starts again from the same states with blocks of half as many clients. The CPU
        does not retry, so states are updated in place there.
        """
        block, where = self.block or self._block(), self.tasks[0].device
        while True:
            try:
                self.states, report = run_round(
                    method,
                    self.tasks,
                    self.states,
                    cohorts,
                    epochs=epochs,
                    spec=self.run.optim,
                    block=block,
                    stage=self._spans[self._held],
                    graphs=self._graphs,
                    reuse=where.type == "cpu",
                    malicious=self.run.clients.malicious,
                )
                return report
            except Exception as problem:
                block = min(block, sum(len(cohort.clients) for cohort in cohorts)) // 2
                if self.block is not None or where.type == "cpu" or not is_out_of_memory(problem):
                    raise
                if not block:
                    raise self._too_small() from problem
            self._blocks[self._held] = block
            self._forget_graphs()
            torch.cuda.empty_cache()

    def _forget_graphs(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    def _begin(self, method: Method, before: list[State] | None) -> list[State]:
        begun = []
        for task, seed, left in zip(self.tasks, self.seeds, before or [None] * len(self.seeds), strict=True):
            with torch.no_grad(), large_leaves_in(self._cache_dir):
                begun.append(initial_state(method, task, seed, left))
        return begun

    @property
    def done(self) -> bool:
        return self.round >= self.rounds

    def step(self) -> list[Record]:
        """One round of every seed. Returns a record per seed.

        Raises:
            Diverged: a loss is NaN or out of range, or what was learned is NaN or inf.
        """
        with self.settings():
            return self._step()

    def _step(self) -> list[Record]:
        began = time.perf_counter()
        coming = next(i for i, span in enumerate(self._spans) if self.round + 1 in span)
        stage, method = self.stages[coming], self._methods[coming]
        if coming != self._held:
            self.states, self._held = self._begin(method, self.states), coming
            self._forget_graphs()
        number = self.round + 1
        cohorts = self._cohorts(number)
        here, start = self.tasks[0].device, time.perf_counter()
        report = self._round(method, cohorts, stage.epochs)
        training = (clock(here) - start) / len(self.seeds)
        self.round = number
        scores = None
        if number % self.run.protocol.eval_every == 0 or self.done:
            new = any(name in NEWCOMERS for name in self.tasks[0].tests)
            scores = evaluate(method, self.tasks, self.states, fresh=self._fresh(self._held) if new else ())
        losses = divergence.watch(self.run.optim, self.tasks, self.states, cohorts, report.loss, scores)
        seconds = (time.perf_counter() - began) / len(self.seeds)
        records: list[Record] = []
        for i, seed in enumerate(self.seeds):
            total = self.totals[i]
            total["up"] += report.up[i] * BYTES_PER_SCALAR
            total["down"] += report.down[i] * BYTES_PER_SCALAR
            total["vain"] += report.vain[i] * BYTES_PER_SCALAR
            total["seconds"] += seconds
            record: Record = {"seed": seed, "round": number, "train/clients": len(cohorts[i].clients)}
            if (absent := cohorts[i].absent) is not None:
                record["train/sampled"] = len(cohorts[i].clients) + len(absent)
                record["comm/vain_bytes"] = int(total["vain"])
            if scores is not None:
                record.update(self._figures(i, scores[i], cohorts[i]), **self._costs)
                record.update(method.metrics(self.tasks[i], self.states[i]))
            if self.done:
                record.update(diagnose(method, self.tasks[i], self.states[i]))
                record.update(detect(method, self.tasks[i], self.states[i]))
                record.update(self._images(i))
            if losses is not None and len(losses[i]):
                record["train/loss"] = losses[i].mean().item()
            record["comm/up_bytes"], record["comm/down_bytes"] = int(total["up"]), int(total["down"])
            record["time/train_seconds"], record["time/seconds"] = training, total["seconds"]
            records.append(record)
        return records

    def _cohorts(self, number: int) -> list[Cohort]:
        """The cohort of a round, for every seed."""
        first = self._spans[self._held][0]
        return [cohort_of(self.run, task, s, number, first) for s, task in zip(self.seeds, self.tasks, strict=True)]

    def _figures(self, i: int, scores: Mapping[str, Score], cohort: Cohort) -> Record:
        """Accuracies of one seed, of the whole, by client, and of slow and absent clients; and what testing on the main
        set took."""
        primary = self.tasks[i].primary
        accuracy, parts = scores[primary].accuracy, {"slow": self.tasks[i].slow, "absent": cohort.absent}
        means = {
            f"test/{name}/acc_mean": accuracy[part].nanmean().item() for name, part in parts.items() if part is not None
        }
        by_client = {
            f"clients/{'test' if name == primary else name}": score.accuracy.tolist()
            for name, score in scores.items()
            if name != PATCHED
        }
        of_groups = {name: mean for name, mean in means.items() if not math.isnan(mean)}
        return {**summarise(scores, primary), **of_groups, **by_client, "time/test_seconds": scores[primary].seconds}

    @cached_property
    def _costs(self) -> Record:
        """The costs of a client, known before the run; none of a method that fails on images without content."""
        try:
            known = known_costs(self.run, self.world.towers, self.world.dataset)
        except Exception as problem:
            self._warn(f"What the run costs a client is not known: {describe_error(problem)}")
            return {}
        return {name: value for name, value in known.items() if name.startswith("cost/")}

    def _images(self, i: int) -> Record:
        """The number of different images of each set that one seed is evaluated on."""
        task = self.tasks[i]
        rooms = {name: "test" if name == task.primary else f"test/{name}" for name in task.tests if name != PATCHED}
        tests = {f"{room}/images": task.tests[name][1].images_held for name, room in rooms.items()}
        return {"val/images": (task.validation or task.val).images_held, **tests}

    def run_all(self) -> list[list[Record]]:
        """All remaining rounds; records per seed."""
        history: list[list[Record]] = [[] for _ in self.seeds]
        while not self.done:
            for seed_history, record in zip(history, self.step(), strict=True):
                seed_history.append(record)
        return history

    def prompts(self) -> dict[int, dict[str, torch.Tensor]]:
        """Per seed, what was learned; see `learned.prompts`. On the CPU it shares memory until the next round."""
        return {seed: learned.prompts(state) for seed, state in zip(self.seeds, self.states, strict=True)}

    def deployed(self) -> dict[int, tuple[dict[str, torch.Tensor], dict[str, str]]]:
        """Per seed, what clients are evaluated with, and the metadata to use it without the data; see `learned`."""
        method, transform = self._methods[self._held], self.world.dataset.train.transform
        with self.settings(), large_leaves_in(self._cache_dir):
            return {
                seed: (learned.deployed(method, task, state), learned.facts(task, transform, self.world.weights))
                for seed, task, state in zip(self.seeds, self.tasks, self.states, strict=True)
            }

    # -- pausing ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The state after the last round; on the CPU it shares memory with the trial, until its next round."""
        tensors = {
            f"{seed}/{group}/{name}": leaf
            for seed, state in zip(self.seeds, self.states, strict=True)
            for group in State._fields
            for name, leaf in getattr(state, group).items()
        }
        meta = {
            "round": self.round,
            "stage": self._held,
            "seeds": self.seeds,
            "totals": [dict(total) for total in self.totals],
            "cell": config.identity(self.run),
        }
        return Snapshot(tensors, meta)

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from a snapshot; where that fails, the trial is as before.

        Raises:
            ConfigError: it is of another configuration or other seeds.
        """
        meta = snapshot.meta
        if meta["cell"] != config.identity(self.run) or meta["seeds"] != self.seeds:
            raise ConfigError("A trial continues from its own checkpoint, but this is of another one. Remove it.")
        stage = int(meta["stage"])
        trees: dict[str, dict[str, Any]] = {str(seed): {group: {} for group in State._fields} for seed in self.seeds}
        for key, leaf in snapshot.tensors.items():
            owner, group, name = key.split("/", 2)
            trees[owner][group][name] = leaf
        fresh = zip(self.seeds, self._fresh(stage), strict=True)
        with large_leaves_in(self._cache_dir):
            self.states = [trees_like(like, trees[str(seed)]) for seed, like in fresh]
        self.round, self._held, self.totals = (
            int(meta["round"]),
            stage,
            [{"vain": 0, **total} for total in meta["totals"]],
        )

    def _fresh(self, stage: int) -> list[State]:
        """Initial states of stage number `stage`, used for leaf names and shapes."""
        states = None
        for method in self._methods[: stage + 1]:
            states = self._begin(method, states)
        assert states is not None
        return states
