"""Statistics of studies with few seeds, as functions on data frames.

A data frame has a row per value and the columns `cell`, `seed`, `value` and, where known, `client` and `split`; any
table of that form works. Values are shares (0.01 is one point) wherever a region of practical equivalence is used.
The room imports numpy, scipy and pandas only. Open `compare.py` first; `tables.py` says how a frame is read.
"""

from fpl_tune.analysis.claims import ClaimResult, ClaimStatus, Contrast, judge
from fpl_tune.analysis.compare import compare
from fpl_tune.analysis.datasets import LEAST as LEAST_DATASETS
from fpl_tune.analysis.datasets import Ranks, mean_ranks
from fpl_tune.analysis.explain import importance, noise_of
from fpl_tune.analysis.groups import letters
from fpl_tune.analysis.sweep import Sweep, mean_over, sweep
from fpl_tune.analysis.tables import Values, read, t_half_width

__all__ = [
    "LEAST_DATASETS",
    "ClaimResult",
    "ClaimStatus",
    "Contrast",
    "Ranks",
    "Sweep",
    "Values",
    "compare",
    "importance",
    "judge",
    "letters",
    "mean_over",
    "mean_ranks",
    "noise_of",
    "read",
    "sweep",
    "t_half_width",
]
