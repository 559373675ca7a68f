"""A method whose hooks are checked for what they return, so that a mistake is named by its class and hook."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from torch import Tensor

from fpl_tune.core.errors import FplTuneError
from fpl_tune.method import Local, Method, State, Traffic, same_leaves

_RETURNS: dict[str, type] = {
    "init": State,
    "start": Local,
    "deploy": Local,
    "newcomers": State,
    "logits": Tensor,
    "loss": tuple,
    "merge": State,
    "traffic": Traffic,
    "diagnose": dict,
    "metrics": dict,
}


class MethodError(FplTuneError):
    """A hook of a method returned what its interface does not allow."""


def checked(method: Method) -> Method:
    """The method, which refuses a result of another type or shape than `fpl_tune.method` declares.

    Types and shapes are read, values are not: a GPU is not waited for.
    """
    return cast(Method, _Checked(method))


class _Checked:
    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in _RETURNS else getattr(self._method, name)

    def _call(self, hook: str, *args: Any) -> Any:
        found, kind = getattr(self._method, hook)(*args), _RETURNS[hook]
        if not isinstance(found, kind):
            what = "None: a `return` is missing" if found is None else f"a {type(found).__name__}"
            fault = f"return a {kind.__name__}, but returned {what}"
        else:
            fault = _fault(hook, args, found)
        if fault:
            raise MethodError(f"{type(self._method).__name__}.{hook} must {fault}.")
        return found


def _fault(hook: str, args: tuple[Any, ...], found: Any) -> str:
    """What a result of the right type does not keep; "" if its shapes are right."""
    if hook == "merge" and not same_leaves(args[1], found):
        return f"keep the leaves of the state and their shapes {_shapes(args[1])}, but returned {_shapes(found)}"
    if hook in ("start", "deploy") and any(shape[:1] != (len(args[2]),) for shape in _shapes(found).values()):
        return f"return leaves with a row for each of the {len(args[2])} clients, but returned {_shapes(found)}"
    if hook == "logits" and found.shape != (wanted := (*args[2].label.shape, args[0].n_classes)):
        return f"return {wanted}, but returned {tuple(found.shape)}"
    if hook == "loss" and (len(found) != 2 or found[0].shape != (len(args[2].label),)):
        return f"return the losses ({len(args[2].label)},) and the buffers"
    return ""


def _shapes(trees: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for tree in trees for name, leaf in tree.items()}
