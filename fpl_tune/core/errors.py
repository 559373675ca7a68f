"""Errors that the user can correct, each with the exit code of the command line.

Every message states the rule, the value found and the remedy, in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

_LISTED = 40
"""Known names that a message lists."""


class FplTuneError(Exception):
    """Base of all errors that are reported without a trace. `exit_code` is the process's."""

    exit_code = 1


class ConfigError(FplTuneError):
    """Usage, configuration or an infeasible plan: nothing was started."""

    exit_code = 2


class EnvironmentProblem(FplTuneError):
    """The machine lacks something: data, a writable folder, Ray, a tracking server, a GPU."""

    exit_code = 3


class Notice(UserWarning):
    """A warning for the user of a study: the command line prints it as one line."""


def did_you_mean(name: str, known: Iterable[str], first: Sequence[str] = (), listing: str = "") -> str:
    """A sentence that ends an error message: `first`, else the nearest known names, else all, or what lists them."""
    known = sorted(known)
    near = first[:3] or nearest(name, known)
    if near:
        return f"Did you mean {' or '.join(repr(n) for n in near)}?"
    if listing:
        return f"See {listing}."
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"Known: {', '.join(known[:_LISTED])}{more}." if known else "There is none."


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most three names that are like one, and nearly as like it as the nearest."""
    found = get_close_matches(name, list(known), n=3, cutoff=0.5)
    like = [SequenceMatcher(None, each, name).ratio() for each in found]
    return [each for each, ratio in zip(found, like, strict=True) if ratio > like[0] - 0.15]


def unknown(kind: str, name: str, known: Iterable[str], listing: str = "") -> ConfigError:
    """`ConfigError` for a name that is not among the known ones; `listing` names all, where they are many."""
    return ConfigError(f"There is no {kind} {name!r}. {did_you_mean(name, known, listing=listing)}")
