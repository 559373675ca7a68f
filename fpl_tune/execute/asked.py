"""What a study asks for: its cells, and what each of them is.

The driver runs what is asked for, and writes it to cells.json, from which readers have it: nobody else finds out
whether a cell is a trial, of which search, inside the space, published, or a reference. Configurations on disk that are
not asked for stay there, in no table, until the study asks for them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.execute.decide import confirming, trials_left
from fpl_tune.search import halving
from fpl_tune.search.ablation import ablation_cells
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import Fingerprints
from fpl_tune.study.results import Status
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch


class Asked:
    """The cells that a study asks for today, with their stored runs.

    It follows from the study's file, the suggestions of the past, and the results: the cells that the file names, the
    stored suggestions that are trials of today's searches, the steps of an ablation, and the cells that confirm the
    searches which are over. Writes nothing.

    Args:
        store: the study's store.
        study: the study.
        retry: True if seeds run again that diverged; those that failed always do.
        planned: True if nothing is run, so that data may be missing.

    Raises:
        ConfigError: a seed that confirms a search was used by it, or an ablation has no finished search.
    """

    def __init__(self, store: Store, study: ComposedStudy, *, retry: bool = False, planned: bool = False) -> None:
        spec, search, self.study = study.spec, study.search, study
        self._store, self._fingerprints = store, Fingerprints(planned=planned)
        self._run_again = {Status.FAILED, Status.DIVERGED} if retry else {Status.FAILED}
        self.searches: Sequence[CellSearch] = search.parts if search is not None else []
        trials = search.restore(store.files()) if search is not None else []
        seen = {seed for cell in trials if cell.suggestion is not None for seed in cell.suggestion.seeds}
        self.table = StudyTable(StudyFile.of(spec), halving.design_of(spec, seen), folder=store.folder)
        self.prints = dict[str, dict[str, Any]]()
        """Fingerprints of the cells' runs, by id."""
        self.again: list[tuple[Cell, int]] = []
        """Seeds that run again; the table lacks their runs."""
        self.spaces = search.files if search is not None else {}
        """Contents of the files of the search spaces; see `Search.files`."""
        self.complete, exhausted = store.ended()
        """True if the last run left nothing to run."""
        self.exhausted = {*exhausted} & {str(search) for search in self.searches}
        """Searches whose sampler has no new point."""
        self.add([*study.fixed, *trials])
        if spec.ablate is not None:
            if ahead := sum(trials_left(self.table, each, {}, self.exhausted) for each in self.searches):
                raise ConfigError(
                    f"ablate=best needs a finished search, but {counted(ahead, 'trial')} of {spec.name} "
                    f"{'is' if ahead == 1 else 'are'} left. Run fpl-tune study {spec.name} without it first."
                )
            self.add(ablation_cells(spec, self.searches, self.table.rows))
        self.add(confirming(self.table, self.searches, {}, self.exhausted))

    def add(self, cells: Iterable[Cell]) -> list[Row]:
        """Adds cells with their stored runs, without the seeds that run again.

        Returns:
            The rows of these cells. One that is something else already, such as a reference, becomes both.
        """
        rows = list[Row]()
        for cell in cells:
            row = self.table.rows.get(cell.id)
            if row is None:
                row = self._row(cell)
                if row.rejected and cell.role == "trial":
                    self.table.rejected[cell.id] = row
                    continue
            elif cell.role == "ablation":
                row = replace(row, cell=replace(row.cell, step=True))
            elif cell.searched and not row.cell.searched:
                label, step = (row.cell.label, False) if row.cell.role == "reference" else ("", True)
                row = replace(row, cell=replace(cell, reference=label, step=step))
            self.table.rows[cell.id] = row
            rows.append(row)
        return rows

    def _row(self, cell: Cell) -> Row:
        """The row of a cell, with the seeds that run again set aside."""
        prints = self.prints[cell.id] = self._fingerprints(cell.run)
        row = self._store.row_under(self.table.design, cell, prints)
        again = [s for s in row.wanted if s in row.runs and row.runs[s].status in self._run_again]
        self.again += [(cell, seed) for seed in again]
        return replace(row, runs={seed: run for seed, run in row.runs.items() if seed not in again})
