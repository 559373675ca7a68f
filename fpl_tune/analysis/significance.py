"""Tests of a mean difference over seeds, and their correction for several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from fpl_tune.analysis.tables import Floats

EXACT_TO = 16
"""Seeds up to which all signs are enumerated; beyond, signs are drawn."""

_DRAWS = 100_000


class SignFlip(NamedTuple):
    """Result of the sign-flip test."""

    p: float
    least: float
    """Smallest p that this number of seeds can reach."""


def sign_flip(differences: Sequence[float] | Floats) -> SignFlip:
    """Two-sided sign-flip (Fisher randomisation) test that paired differences are symmetric around 0.

    The p value is the share of the 2^n assignments of signs whose mean is at least as far from 0 as the observed one.
    It needs no normality. With n seeds it is at least 2 / 2^n: 0.25 for 3 seeds.

    Args:
        differences: one per seed, NaN counts as missing.

    Returns:
        p and the smallest reachable p; both NaN without a difference.
    """
    seen = np.asarray(differences, float)
    seen = seen[~np.isnan(seen)]
    n = len(seen)
    if n == 0:
        return SignFlip(math.nan, math.nan)
    least = 2.0 ** (1 - n)
    observed = abs(seen.sum())
    tolerance = 1e-12 * np.abs(seen).sum()
    if n <= EXACT_TO:
        signs = 1 - 2 * ((np.arange(2 ** (n - 1))[:, None] >> np.arange(n)) & 1)  # the last sign is +: by symmetry
        return SignFlip(float(np.mean(np.abs(signs @ seen) >= observed - tolerance)), least)
    signs = np.random.default_rng(0).integers(2, size=(_DRAWS, n)) * 2 - 1
    extreme = int(np.sum(np.abs(signs @ seen) >= observed - tolerance))
    return SignFlip((1 + extreme) / (1 + _DRAWS), least)


def paired_t(differences: Sequence[float] | Floats) -> float:
    """Two-sided p value of a paired t test; NaN for one difference, and 0 or 1 where all differences are equal."""
    seen = np.asarray(differences, float)
    if len(seen) < 2:
        return math.nan
    if np.ptp(seen) == 0:
        return 1.0 if seen[0] == 0 else 0.0
    return 2 * float(special.stdtr(len(seen) - 1, -abs(seen.mean()) / (seen.std(ddof=1) / math.sqrt(len(seen)))))


def equivalence(differences: Sequence[float] | Floats, rope: float) -> float:
    """p value of the two one-sided t tests (Schuirmann 1987) that the mean difference lies outside [-rope, rope]."""
    seen = np.asarray(differences, float)
    if len(seen) < 2:
        return math.nan
    mean, error = abs(float(seen.mean())), float(seen.std(ddof=1)) / math.sqrt(len(seen))
    if error == 0:
        return 0.0 if mean < rope else 1.0
    return float(special.stdtr(len(seen) - 1, (mean - rope) / error))


def holm(p: Sequence[float] | Floats) -> Floats:
    """Holm's step-down correction (1979) of a family of p values; NaN (no test possible) stays and is not counted."""
    values = np.asarray(p, float)
    corrected = np.full_like(values, math.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
