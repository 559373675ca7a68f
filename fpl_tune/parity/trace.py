"""Traces: the numbers of a run of federated prompt learning, step by step, as named arrays in one `.npz` file.

Letters in shapes: K classes, N clients, T local steps of the whole run in their order, B images of the largest batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, did_you_mean
from fpl_tune.core.files import atomic_write

Trace = dict[str, np.ndarray]
"""Arrays with the names in `NAMES`, all of which are optional."""

NAMES: dict[str, tuple[str, str]] = {
    "classes": ("[K] text", "class names, in the order of the logits"),
    "tokens": ("[K, L]", "ids of the sentences under CLIP's own tokenizer, zeros after the end token"),
    "train/<client>": ("[n] text", "files of a client's training images"),
    "test/<client>": ("[n] text", "files of a client's test images"),
    "initial/<leaf>": (
        "as the leaf",
        "leaf before the first step, as in `fpl-tune ls methods NAME`; of a personal leaf [N, ...] or one for all",
    ),
    "steps": ("[T, 3]", "round (from 1), client (from 0) and local epoch (from 0) of each step"),
    "images": (
        "[T, B] text",
        "files of each step's images, '' after the last; or their places in `train/<client>`, -1",
    ),
    "labels": ("[T, B]", "their labels, -1 after the last"),
    "losses": ("[T]", "loss of each step"),
    "rates": ("[T]", "learning rate of each step"),
    "first/features": ("[B, D]", "image features of the first step, normalised or not"),
    "first/logits": ("[B, K]", "logits of the first step, temperature included"),
    "first/gradient/<leaf>": ("as the leaf", "gradient of the first step's loss"),
    "after/<round>/<leaf>": ("[N, ...]", "leaf with which each client is tested after a round; nan if it is not"),
    "server/<round>/<leaf>": ("as the leaf", "leaf of the server after a round"),
    "seconds": ("[R]", "wall-clock seconds of each round, its tests included"),
    "accuracy/<round>": (
        "[N]",
        "test accuracy of each client in %, nan if it is not tested; round 0 is before training",
    ),
}
"""Shape and meaning of every array."""

_PATTERNS = {
    name: re.compile(name.replace("<client>", r"\d+").replace("<round>", r"\d+").replace("<leaf>", r"[\w.]+"))
    for name in NAMES
}
_TEXT = ("classes", "train/<client>", "test/<client>")
_ONE = ("classes", "train/<client>", "test/<client>", "losses", "rates", "seconds", "accuracy/<round>")
_TWO = ("tokens", "steps", "images", "labels", "first/features", "first/logits")


def kind_of(name: str) -> str | None:
    """The entry of `NAMES` that an array's name belongs to."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(name)), None)


def write_trace(path: str | Path, trace: Mapping[str, Any]) -> Path:
    """Writes a trace, atomically.

    Args:
        path: path of the `.npz` file.
        trace: arrays, tensors or lists, with the names in `NAMES`.

    Raises:
        ConfigError: a name or a shape is not in `NAMES`.
        EnvironmentProblem: the file cannot be written.
    """
    arrays = {name: np.asarray(value) for name, value in trace.items()}
    _check(arrays, "The trace")
    try:
        with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType] - its stub takes a flag there
    except OSError as error:
        raise EnvironmentProblem(f"Cannot write the trace to {path}: {error.strerror}.") from None
    return Path(path)


def read_trace(path: str | Path) -> Trace:
    """Reads a trace.

    Raises:
        ConfigError: the file is not a trace, or has an array with another name or shape.
        EnvironmentProblem: the file does not exist or cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise EnvironmentProblem(
            f"Cannot read {path} ({error.strerror or error}). Name a trace, an .npz file."
        ) from None
    except (ValueError, BadZipFile, EOFError, AttributeError) as error:
        why = "it holds objects instead of numbers and text" if "pickle" in str(error) else str(error)
        raise ConfigError(f"{path} is not a trace ({why}). Write it with numpy.savez or fpl_world.Recorder.") from None
    _check(arrays, str(path))
    return arrays


def _check(arrays: Trace, what: str) -> None:
    for name, array in arrays.items():
        kind = kind_of(name)
        if kind is None:
            raise ConfigError(f"{what} has an array {name!r}. {did_you_mean(name, NAMES)}")
        axes = 1 if kind in _ONE else 2 if kind in _TWO else array.ndim
        if array.ndim != axes or (kind == "steps" and array.shape[1:] != (3,)):
            raise ConfigError(f"{name} of {what} must be {NAMES[kind][0]}, but its shape is {list(array.shape)}.")
        fits = array.dtype.kind in ("U" if kind in _TEXT else "Uiu" if kind == "images" else "fiub")
        if not fits:
            wanted = "text" if kind in _TEXT else "numbers"
            raise ConfigError(f"{name} of {what} must contain {wanted}, but contains {array.dtype}.")
    lengths = {name: len(arrays[name]) for name in ("steps", "images", "labels", "losses", "rates") if name in arrays}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ConfigError(f"The arrays of steps in {what} must be equally long, but are: {listed}.")
    if ("images" in arrays) != ("steps" in arrays):
        raise ConfigError(f"{what} needs both `steps` and `images`, the clients and images of the local steps.")
