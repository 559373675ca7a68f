"""The privacy of Gaussian noise on clients' uploads, by the accountants of Google's `dp-accounting`.

The unit is a client: neighbouring runs differ in the participation of one client, so an upload with an l2 norm of at
most S has the sensitivity S. Noise is given in units of S.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_STEPS = 1000
"""Steps of the numerical accountant per unit of ε. Its result is an upper bound with any number of steps."""


def classical_noise(epsilon: float, delta: float) -> float:
    """√(2 ln(1.25/δ)) / ε: enough for one upload if ε < 1, but too little for larger ε (Dwork, Roth, 2014, App. A)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@cache
def smallest_noise(epsilon: float, delta: float, rounds: int = 1, sampling: float = 1.0) -> float:
    """The smallest noise with which `rounds` rounds are (ε, δ)-private.

    A client uploads in a share `sampling` of the rounds, which are drawn at random and kept secret, or in all of them
    if the share is 1. Without sampling, the result is exact: T uploads are like one with noise √T times as small
    (Balle, Wang, ICML 2018, Theorem 8; Dong, Roth, Su, JRSS-B 2022). With sampling, it is a numerical upper bound.
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
    """ε at δ after `rounds` rounds, the inverse of `smallest_noise`; infinite without noise, and 0 without rounds."""
    from dp_accounting import get_epsilon_gaussian

    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    always = float(get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    if sampling == 1 or always == 0:
        return always
    epsilon = always
    for _ in range(2):  # the second time with steps that suit the smaller ε with sampling
        accountant = _accountant(epsilon)
        accountant.compose(_uploads(noise, rounds, sampling))
        epsilon = float(accountant.get_epsilon(delta))
    return epsilon


def _accountant(epsilon: float) -> PLDAccountant:
    """An accountant by distributions of the privacy loss, in steps that suit an ε of this size."""
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=max(epsilon, 0.01) / _STEPS)


def _uploads(noise: float, rounds: int, sampling: float):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(PoissonSampledDpEvent(sampling, GaussianDpEvent(noise)), rounds)
