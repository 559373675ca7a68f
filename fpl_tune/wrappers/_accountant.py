"""The privacy that Gaussian noise on clients' uploads gives, by the accountants of Google's `dp-accounting`.

The unit is a client: neighbouring runs differ in one client's participation, so that one upload of l2 norm at most S
has sensitivity S. Noise is given in units of S.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_STEPS = 1000
"""Steps of the numerical accountant per unit of ε found; what it gives is an upper bound at any number."""


def classical_noise(epsilon: float, delta: float) -> float:
    """√(2 ln(1.25/δ)) / ε: enough for one upload where ε < 1, too little above (Dwork, Roth, 2014, App. A)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@cache
def smallest_noise(epsilon: float, delta: float, rounds: int = 1, sampling: float = 1.0) -> float:
    """The smallest noise that makes `rounds` rounds (ε, δ)-private for a client that uploads in a share `sampling` of
    them, drawn at random and kept secret; with a share of 1 it uploads in all.

    Without sampling it is exact: T uploads are one with noise √T times as small (Balle, Wang, ICML 2018, Theorem 8;
    Dong, Roth, Su, JRSS-B 2022). With sampling it is found numerically, from above.
    """
    from dp_accounting import LowerEndpointAndGuess, calibrate_dp_mechanism, get_sigma_gaussian

    always = math.sqrt(rounds) * float(get_sigma_gaussian(epsilon, delta))
    if sampling == 1:
        return always
    return float(
        calibrate_dp_mechanism(
            lambda: _accountant(epsilon),
            lambda noise: _uploads(noise, rounds, sampling),
            epsilon,
            delta,
            bracket_interval=LowerEndpointAndGuess(0.0, always),
            tol=1e-4 * always * sampling,
        )
    )


@cache
def spent(noise: float, delta: float, rounds: int, sampling: float = 1.0) -> float:
    """ε at δ after so many rounds; the inverse of `smallest_noise`. Infinite without noise, 0 before the first."""
    from dp_accounting import get_epsilon_gaussian

    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    always = float(get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    if sampling == 1 or always == 0:
        return always
    found = always
    for _ in range(2):  # the second time with steps that suit what sampling leaves of it
        accountant = _accountant(found)
        accountant.compose(_uploads(noise, rounds, sampling))
        found = float(accountant.get_epsilon(delta))
    return found


def _accountant(epsilon: float) -> PLDAccountant:
    """By distributions of the privacy loss, in steps that suit an ε of this size."""
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=max(epsilon, 0.01) / _STEPS)


def _uploads(noise: float, rounds: int, sampling: float):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(PoissonSampledDpEvent(sampling, GaussianDpEvent(noise)), rounds)
