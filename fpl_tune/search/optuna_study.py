"""The trials of a study's searches as studies of Optuna, for optuna-dashboard and programs that read them."""

from __future__ import annotations

import datetime

import optuna
from optuna.exceptions import DuplicatedStudyError

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import check_sqlite
from fpl_tune.search.ask import trials_of
from fpl_tune.search.components import quiet
from fpl_tune.search.samplers import directions_of
from fpl_tune.search.search import stored_searches
from fpl_tune.study.cells import label
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store

OptunaStudy = optuna.Study


def optuna_studies(store: Store, url: str | None = None) -> list[optuna.Study]:
    """Writes the trials of each search of a study as a study of Optuna.

    Trials have the numbers and values of the study's tables. Trials that diverged or failed, and numbers whose
    suggestion was rejected or repeated, become failed trials.

    Args:
        store: the study.
        url: an Optuna storage, such as sqlite:///trials.db; None: in memory.

    Returns:
        One study for each cell of the axes; if there are several, each is named after the study and the cell.

    Raises:
        ConfigError: the study has no search, or the storage cannot be opened or already has a study of that name.
    """
    spec, table = store.spec(), store.table()
    if spec.search.sampler is None:
        raise ConfigError(f"{store.name} has no search, and so no trials. Export one of its cells: --cell.")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    check_sqlite(url or "", "The storage of Optuna")
    try:
        storage = None if url is None else optuna.storages.get_storage(url)
    except Exception as problem:  # of SQLAlchemy or a driver that is missing
        reason = " ".join(str(problem).split())[:200]
        raise ConfigError(
            f"{url} cannot be opened as a storage of Optuna ({reason}). Try sqlite:///trials.db."
        ) from None
    studies = list[optuna.Study]()
    for search in stored_searches(spec, table.effective):
        if search.settings and search.settings[0] is not search:
            continue
        rows = [row for row in table.rows.values() if search.shares(row.cell)]
        common = {n: v for n, v in search.varied.items() if all(other.varied[n] == v for other in search.settings)}
        name = f"{store.name}, {label(common)}" if common else store.name
        with quiet():
            try:
                study = optuna.create_study(storage=storage, study_name=name, directions=directions_of(spec.search))
            except DuplicatedStudyError:
                raise ConfigError(f"{url} already has a study {name!r}. Delete it, or name another storage.") from None
            study.set_metric_names(list(spec.search.objectives))
            finished = {row.cell.trial_number: _finished(row) for row in rows}
            for trial in trials_of(search, rows, diverged_as_worst=False):
                number = len(study.get_trials(deepcopy=False))
                begin, end = finished.get(number) or (_now(), _now())
                trial.datetime_start = begin
                trial.datetime_complete = end if trial.state.is_finished() else None
                study.add_trial(trial)
        studies.append(study)
    return studies


def _finished(row: Row) -> tuple[datetime.datetime, datetime.datetime] | None:
    """The times at which a trial started to train and its last seed ended; None without results."""
    runs = row.results.values()
    if not runs:
        return None
    end = max(datetime.datetime.fromisoformat(run.finished) for run in runs).astimezone().replace(tzinfo=None)
    return end - datetime.timedelta(seconds=sum(float(run.costs["time/seconds"]) for run in runs)), end


def _now() -> datetime.datetime:
    return datetime.datetime.now()
