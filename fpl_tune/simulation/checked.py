"""A method whose hooks are checked for what they return, so that a mistake is named by its class and hook."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from fpl_tune.core.errors import FplTuneError
from fpl_tune.method import Local, Method, State, Traffic, same_leaves

_RETURNS: dict[str, type] = {
    "check": object,
    "init": State,
    "start": Local,
    "deploy": Local,
    "newcomers": State,
    "logits": Tensor,
    "loss": tuple,
    "merge": State,
    "traffic": Traffic,
    "diagnose": dict,
    "certainty": Tensor,
    "metrics": dict,
}


class MethodError(FplTuneError):
    """A hook of a method returned what its interface does not allow, or tried to end the process."""


def checked(method: Method) -> Method:
    """The method, which refuses a result of another type or shape than `fpl_tune.method` declares.

    Types and shapes are read, and values that lie in main memory: there is no GPU sync.
    """
    return cast(Method, _Checked(method))


class _Checked:
    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in _RETURNS else getattr(self._method, name)

    def _call(self, hook: str, *args: Any) -> Any:
        kind = _RETURNS[hook]
        try:
            result = getattr(self._method, hook)(*args)
        except SystemExit as problem:
            if type(problem) is not SystemExit:  # a signal's, which ends the process
                raise
            raise MethodError(f"{type(self._method).__name__}.{hook} called sys.exit({problem.code!r}).") from problem
        except (AttributeError, IndexError, TypeError, ValueError):  # not the device's
            if hook == "loss":  # most often of the logits, whose fault it may be
                self._call("logits", *args)
            raise
        if not isinstance(result, kind):
            what = "None: a `return` is missing" if result is None else f"a {type(result).__name__}"
            fault = f"return a {kind.__name__}, but returned {what}"
        else:
            fault = _fault(hook, args, result)
        if fault:
            raise MethodError(f"{type(self._method).__name__}.{hook} must {fault}.")
        return result


def _fault(hook: str, args: tuple[Any, ...], result: Any) -> str:
    """The rule that a result of the right type breaks; "" if its shapes are right."""
    if hook == "merge" and not same_leaves(args[1], result):
        return f"keep the leaves of the state and their shapes {_shapes(args[1])}, but returned {_shapes(result)}"
    if hook in ("start", "deploy") and any(shape[:1] != (len(args[2]),) for shape in _shapes(result).values()):
        return f"return leaves with a row for each of the {len(args[2])} clients, but returned {_shapes(result)}"
    if hook == "certainty" and result.shape != args[2].label.shape:
        return f"return {tuple(args[2].label.shape)}, but returned {tuple(result.shape)}"
    if hook == "logits":
        wanted = (*args[2].label.shape, args[0].n_classes)
        if result.shape[:-1] != wanted[:-1] or result.shape[-1:] < wanted[-1:]:
            return f"return {wanted}, or more columns behind the classes, but returned {tuple(result.shape)}"
    if hook == "loss" and (len(result) != 2 or result[0].shape != (len(args[2].label),)):
        return f"return the losses ({len(args[2].label)},) and the buffers"
    if hook == "traffic" and not all(_is_count(value, len(args[2])) for tree in result for value in tree.values()):
        return f"count scalars by an int >= 0, or int64 [{len(args[2])}], but returned {tuple(result)}"
    if hook == "diagnose" and not all(isinstance(value, Tensor) and value.ndim == 2 for value in result.values()):
        return f"return [C, n] shares by name, but returned {result}"
    if hook == "metrics" and not all(isinstance(value, (int, float)) for value in result.values()):
        return f"return numbers by name, but returned {result}"
    return ""


def _is_count(value: Any, clients: int) -> bool:
    """True for a number of scalars that holds for every client, or one number for each."""
    if isinstance(value, Tensor):
        return value.dtype == torch.int64 and value.shape == (clients,) and (value.is_cuda or bool((value >= 0).all()))
    return isinstance(value, int) and value >= 0


def _shapes(trees: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for tree in trees for name, leaf in tree.items()}
