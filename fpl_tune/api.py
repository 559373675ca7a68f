"""The Python API: simulations, studies, their results, and the prompted text encoder."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from fpl_tune import config
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.formatting import duration, time_left
from fpl_tune.core.metrics import SUCCESS, TEST, VAL, check_reported, check_rule
from fpl_tune.core.paths import output_folder, output_root, usable_cache
from fpl_tune.simulation.simulation import Record, Simulation

if TYPE_CHECKING:
    from torch import Tensor

    from fpl_tune.clip import Towers
    from fpl_tune.clip.sentences import Position
    from fpl_tune.execute.callback import Callback, Outcome
    from fpl_tune.report.notebook import Summary
    from fpl_tune.search.compose import ComposedStudy
    from fpl_tune.search.optuna_study import OptunaStudy
    from fpl_tune.study.store import Store


def encode_prompts(towers: Towers, names: Sequence[str], context: Tensor, *, position: Position = "end") -> Tensor:
    """Encodes every class name under every context by the frozen text tower, differentiable in the contexts.

    The context runs through the tower once per prompt and each class's own tokens once per class, packed by length.
    `fpl-tune bench text` measures this against open_clip's own modules on whole sentences, in the same run.

    Args:
        towers: from `fpl_tune.load_towers`, such as `load_towers("RN50", "openai")`.
        names: the K class names.
        context: [..., l, d] context vectors with any number of leading axes, such as clients or prompts; d is
            `towers.text_width`. `towers.words("a photo of a")` gives [l, d] to start from.
        position: where the class name stands: "end", "middle" or "front".

    Returns:
        [..., K, D] text features, not normalised; D is `towers.embed_dim`.

    Raises:
        ConfigError: a context of another width, or a sentence longer than the text tower reads.

    Example:
        >>> import torch, fpl_tune
        >>> towers = fpl_tune.load_towers("compact")
        >>> context = torch.zeros(10, 4, towers.text_width, requires_grad=True)
        >>> text = fpl_tune.encode_prompts(towers, ["circle", "star"], context)
        >>> text.shape == (10, 2, towers.embed_dim)
        True
        >>> text.sum().backward()
    """
    return towers.encode_prompts(context, towers.sentences(names, context.shape[-2], position=position))


def run(
    *overrides: str | Mapping[str, Any],
    seeds: int | Sequence[int] | None = None,
    callback: Callable[[Sequence[Record]], None] | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Runs one federated simulation.

    Args:
        overrides: a mapping of dotted field names to Python values: numbers, strings, bools, None, lists, mappings, and
            NumPy scalars and arrays; or strings `"key=value"`, in the syntax of the command line.
        seeds: a number of seeds (1 to n), or a list of seeds; the same as the override `seeds`. Default: one seed, 1.
        callback: called after every round with one record per seed: a dict of round, seed and all metrics.
        progress: True to show a line with the round, accuracies and time left on standard error. Default: in a notebook
            and on a terminal.

    Returns:
        A row per seed and round with all metrics; accuracies are shares, bytes and seconds are running totals.

    Raises:
        ConfigError: an unknown key, or an invalid value.
        EnvironmentProblem: data, weights or a device are missing.

    Example:
        >>> import fpl_tune
        >>> rounds = fpl_tune.run({"method": "promptfl", "optim.lr": 0.01, "protocol.rounds": 2}, seeds=2,
        ...                       callback=lambda records: print("round", records[0]["round"]))
        round 1
        round 2
        >>> len(rounds)
        4
        >>> rounds.groupby("round")["test/acc_mean"].mean().plot()  # doctest: +SKIP
    """
    from fpl_tune.execute.line import Line

    given, chosen = config.take_seeds(_with_seeds(overrides, seeds))
    spec = config.compose_run(given)
    trial = Simulation(spec, chosen, cache_dir=usable_cache(), device=resolve("auto"))
    history: list[Record] = []
    talks = _talks(progress)
    with closing(Line()) as line:
        while not trial.done:
            records = trial.step()
            history += records
            if talks:
                write = line.end if trial.done else line.show
                write(round_line(records, trial))
            if callback is not None:
                callback(records)
    return pd.DataFrame(sorted(history, key=lambda record: chosen.index(record["seed"])))


def _with_seeds(
    overrides: Iterable[str | Mapping[str, Any]], seeds: int | Sequence[int] | str | None
) -> list[str | Mapping[str, Any]]:
    return [*overrides, *([] if seeds is None else [{"seeds": seeds}])]


def _talks(progress: bool | None) -> bool:
    """True if progress is shown: as requested, else in a notebook and on a terminal."""
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__") if progress is None else progress


def round_line(records: Sequence[Record], trial: Simulation) -> str:
    """Describes a round in one line: accuracies averaged over seeds if it was evaluated, time spent, and time left."""
    text = f"round {trial.round}/{trial.rounds}"
    for name, title in ((VAL, "validation"), (TEST, "test"), (SUCCESS, "attack")):
        if all(name in record for record in records):
            text += f"  {title} {100 * sum(r[name] for r in records) / len(records):.1f} %"
    spent = sum(record["time/seconds"] for record in records)
    left = spent / trial.round * (trial.rounds - trial.round)
    return f"{text}  {duration(spent)}{f', {time_left(left)}' if left > 2 else ''}"


@dataclass(frozen=True, repr=False)
class StudyResults:
    """A study's results: its answer in a sentence, and pandas data frames.

    A notebook shows the answer, the main chart and the table of cells; `print` shows the answer and the table. All are
    the same as on the study's report page.
    """

    store: Store

    @property
    def answer(self) -> str:
        """The answer of the study, in the sentence of its report page."""
        return self._summary(pictured=False).sentence

    @property
    def results(self) -> pd.DataFrame:
        """A row per cell and seed, under the study's reporting rule: the content of results.csv."""
        return self.store.table().frame()

    @property
    def rounds(self) -> pd.DataFrame:
        """A row per cell, seed and round with all metrics."""
        return pd.DataFrame(
            [
                {"cell": key, "label": row.cell.label, **record}
                for key, row in self.store.table().rows.items()
                for seed in row.results
                for record in row.history(seed)
            ]
        )

    def summary(self, rule: str = "final", metric: str = "test/acc_mean") -> pd.DataFrame:
        """Summarises a metric over seeds.

        Args:
            rule: the reporting rule: final, best_val, best_test or mean_last5.
            metric: the metric, such as "test/acc_worst10".

        Returns:
            A row per cell: mean, std, sem, n, min and max. In a study with searches in the cells of its axes, the table
            of tuned methods by settings: a row per method and, for each setting, mean, std, seeds, letters and best.

        Raises:
            ConfigError: there is no such rule or metric.
        """
        check_rule(rule)
        try:
            check_reported(metric, "metric")
        except ConfigError:  # stored rounds may have metrics of a method that is not loaded
            if metric not in self.rounds:
                raise
        table = self.store.table()
        if any(row.cell.searched for row in table.rows.values()):
            from fpl_tune.findings.findings import Findings
            from fpl_tune.report import tuned

            findings = Findings(self.store.spec(), table, metric=metric, rule=rule)
            if findings.tuned_table is not None:
                return tuned.frame(findings)
        return pd.DataFrame(table.summary(rule, metric))

    def optuna(self, part: str = "") -> OptunaStudy:
        """The trials of a search as a study of Optuna in memory, for its importance, plots and samplers.

        Args:
            part: with several searches, the label of the search's cell of the axes, such as "pfedmoap".

        Raises:
            ConfigError: the study has no search, or several and none with that label.
        """
        from fpl_tune.search.optuna_study import optuna_studies

        studies = {study.study_name.removeprefix(f"{self.store.name}, "): study for study in optuna_studies(self.store)}
        if len(studies) == 1 and not part:
            return next(iter(studies.values()))
        if part not in studies:
            raise unknown("search", part, [*studies])
        return studies[part]

    def __repr__(self) -> str:
        """The answer, and the table of cells as text."""
        return self._summary(pictured=False).text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The form that notebooks show."""
        summary = self._summary()
        return {"text/html": summary.html(), "text/plain": summary.text()}

    def _summary(self, *, pictured: bool = True) -> Summary:
        from fpl_tune import report

        return report.summary(self.store, pictured=pictured)


def run_study(
    name: str,
    *overrides: str | Mapping[str, Any],
    seeds: int | Sequence[int] | Literal["until_decided"] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
) -> StudyResults:
    """Runs or continues a study as `fpl-tune study` does, without its terminal output and without MLflow.

    Args:
        name: a study in `studies/`, a shipped or a stored one, or the path of a YAML file.
        overrides: a mapping of dotted names to Python values, as in `run`; an axis takes a list of values. Or strings
            `"key=value"`, in the syntax of the command line.
        seeds: a number of seeds (1 to n), a list of seeds, or `until_decided`; the same as the override `seeds`.
            Default: the study's.
        callbacks: receive the study's events; see `fpl_tune.execute.callback.Callback`.
        progress: True to show a line with the cells, rounds, time left and the best cell so far on standard error.
            Default: in a notebook and on a terminal.

    Returns:
        The study's results, which a notebook shows with the answer, a chart and a table.

    Raises:
        ConfigError: the study is invalid or infeasible; nothing was started.
        EnvironmentProblem: data, weights or a device are missing; finished results are stored.

    Example:
        >>> import fpl_tune
        >>> small = {"axes.method.lam": [0, 0.5], "references": [], "protocol": "quick", "execution.executor": "inline"}
        >>> study = fpl_tune.run_study("lambda_sweep", small, seeds=2)
        >>> print(study.answer)
        2 seeds are too few to separate the values of λ (... %).
        >>> study.summary()[["label", "n"]]
             label  n
        0    lam=0  2
        1  lam=0.5  2
    """
    from fpl_tune.execute.line import ProgressLine
    from fpl_tune.search.compose import compose

    study = compose(name, _with_seeds(overrides, seeds))
    shown = [ProgressLine()] if _talks(progress) else []
    start_study(study, root=output_root(), callbacks=[*shown, *callbacks])
    return load_study(study.spec.name)


def start_study(
    study: ComposedStudy, *, root: Path, callbacks: Iterable[Callback] = (), retry: bool = False
) -> Outcome:
    """Runs or continues a composed study with the executor that it names; see `runner.run_study`.

    Raises:
        ConfigError: the study is invalid or infeasible; nothing was started.
        EnvironmentProblem: the machine lacks something; finished results are stored.
    """
    from fpl_tune.execute.runner import run_study

    if study.spec.execution.executor == "inline":
        from fpl_tune.execute.inline import execute
    else:
        from fpl_tune.execute.ray import execute
    return run_study(study, root=root, executor=execute, callbacks=callbacks, retry=retry)


def load_study(name: str) -> StudyResults:
    """Loads the results of a study in `outputs/` (or FPL_TUNE_OUTPUT).

    Args:
        name: the study's name.

    Returns:
        The results, finished or not.

    Raises:
        ConfigError: there is no such study.

    Example:
        >>> import fpl_tune
        >>> study = fpl_tune.load_study("lambda_sweep")
        >>> best = study.summary(rule="best_val").sort_values("val/acc_mean").iloc[-1]
        >>> best["label"]
        'lam=0.5'
    """
    from fpl_tune.study.store import Store

    return StudyResults(Store.open(output_folder(), name))
