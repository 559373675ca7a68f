"""Errors that the user can correct, each with an exit code of the command line.

Every message states the rule, the value and the remedy in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

_LISTED = 40
"""Maximum number of names that a message lists."""


class FplTuneError(Exception):
    """Base class of errors that are reported without a traceback. `exit_code` is that of the process."""

    exit_code = 1


class ConfigError(FplTuneError):
    """A wrong option, a wrong configuration or an infeasible plan. Nothing was started."""

    exit_code = 2


class EnvironmentProblem(FplTuneError):
    """The machine lacks something, such as data, a writable folder, Ray, a tracking server or a GPU."""

    exit_code = 3


class MissingData(EnvironmentProblem):
    """The files of a data set are not on this machine."""


class Notice(UserWarning):
    """A warning for the user of a study. The command line prints it as one line."""


def did_you_mean(name: str, options: Iterable[str], first: Sequence[str] = (), listing: str = "") -> str:
    """A sentence that ends an error message: a suggestion, or the valid names.

    Args:
        name: the unknown name.
        options: the valid names.
        first: suggestions; by default the valid names that are most like `name`.
        listing: command that lists the valid names, for the message if nothing is suggested.
    """
    options = sorted(options)
    similar = first[:3] or nearest(name, options)
    if similar:
        return f"Did you mean {' or '.join(repr(n) for n in similar)}?"
    if listing:
        return f"See {listing}."
    more = f" and {len(options) - _LISTED} more" if len(options) > _LISTED else ""
    return f"Known: {', '.join(options[:_LISTED])}{more}." if options else "There is none."


def nearest(name: str, options: Iterable[str]) -> list[str]:
    """At most three of the options that are similar to a name: the most similar one, and those nearly as similar.

    Case does not count, nor what stands before the last dot of a field, unless it differs.
    """
    name = name.lower()

    def likeness(option: str) -> float:
        inside, _, field = option.lower().rpartition(".")
        if not option.replace(".", "").isidentifier():
            return SequenceMatcher(None, option.lower(), name).ratio()
        if inside and name.startswith(f"{inside}."):
            return SequenceMatcher(None, field, name.removeprefix(f"{inside}.")).ratio()
        return max(SequenceMatcher(None, form, name).ratio() for form in (option.lower(), field))

    ratios = {option: likeness(option) for option in options}
    least = max([0.6, *(ratio - 0.15 for ratio in ratios.values())])
    return [option for ratio, option in sorted(((r, o) for o, r in ratios.items()), reverse=True) if ratio >= least][:3]


def unknown(kind: str, name: str, options: Iterable[str], listing: str = "") -> ConfigError:
    """The `ConfigError` for an unknown name; see `did_you_mean`."""
    return ConfigError(f"There is no {kind} {name!r}. {did_you_mean(name, options, listing=listing)}")
