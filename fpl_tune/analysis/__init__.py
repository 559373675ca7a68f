"""Statistics of studies with few seeds, as functions on data frames.

A data frame has a row per value and the columns `cell`, `seed`, `value` and, where known, `client` and `split`; any
table of that form works. Values are shares (0.01 is one point) wherever a region of practical equivalence is used.
The room imports numpy, scipy and pandas only. Open `compare.py` first; `tables.py` says how a frame is read.
"""

from fpl_tune.analysis.claims import ClaimResult, ClaimStatus, Contrast, judge
from fpl_tune.analysis.compare import Advice, advise, compare
from fpl_tune.analysis.datasets import Ranks, mean_ranks
from fpl_tune.analysis.explain import omega_squared, one_way, partial_dependence
from fpl_tune.analysis.intervals import Interval, interval, t_half_width
from fpl_tune.analysis.selection import RULES, Overtuning, overtuning, scores, select
from fpl_tune.analysis.significance import level_of_look, seeds_needed
from fpl_tune.analysis.tables import Table, read
from fpl_tune.analysis.variance import variance_split

__all__ = [
    "RULES",
    "Advice",
    "ClaimResult",
    "ClaimStatus",
    "Contrast",
    "Interval",
    "Overtuning",
    "Ranks",
    "Table",
    "advise",
    "compare",
    "interval",
    "judge",
    "level_of_look",
    "mean_ranks",
    "omega_squared",
    "one_way",
    "overtuning",
    "partial_dependence",
    "read",
    "scores",
    "seeds_needed",
    "select",
    "t_half_width",
    "variance_split",
]
