"""A simulated accelerator: a torch device `sim` that computes on the CPU and is as strict as a GPU beside it.

    device = sim_device()
    with counting() as seen:
        step(model.to(device), batch)
    assert not seen.syncs and not seen.copies, seen

* An operation on tensors of both devices raises `DeviceMix`, with CUDA's exceptions: a CPU tensor without dimensions
  in a pointwise operation, and CPU indices into a tensor of the device (CUDA copies them, and waits).
* What makes a program wait for a GPU is counted by operation and line: values that are read (`item`, `bool`), shapes
  that depend on values (`nonzero`, `unique`, boolean indices), copies from and to the CPU.
* Operations that launch kernels are counted by name. The count is a lower bound; `_LAUNCHES` lists the operations
  that need more than one. Fused attention is one launch, its gradient two.
* `torch.sim.CUDAGraph` and `torch.sim.graph` are those of `torch.cuda`: what is recorded may neither wait nor copy, and
  a replay runs the recorded operations, as one launch, on the tensors that they had. `recorded_work` counts what
  each does.

Autograd, `Module.to`, factories and checkpointing take the paths that they take for CUDA, but `device.type == "cuda"`
is False, and kernels and figures are the CPU's. PyTorch has no public way to write a device in Python: this file alone
uses its experimental one (`_setup_privateuseone_for_python_backend`, torch >= 2.11).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import backend_registration
from torch.utils.flop_counter import flop_registry

from fpl_tune.testing.counts import (
    GRAPHS,
    IDLE,
    WORKS,
    CaptureError,
    Counts,
    Work,
    counting,
    idle,
    line_of,
    note,
    recorded_work,
)
from fpl_tune.testing.device_module import Module

__all__ = [
    "CaptureError",
    "Counts",
    "DeviceMix",
    "Work",
    "counting",
    "idle",
    "recorded_work",
    "registered",
    "sim_device",
    "why_not",
]

NAME = "sim"

_TWICE = ("masked_fill", "index_copy", "index_put", "index_fill", "scatter", "constant_pad_nd", "topk")
_LAUNCHES = dict.fromkeys((*_TWICE, "nll_loss_backward"), 2) | {
    "sort": 3,
    "nonzero": 4,
    "_unique2": 6,
    "unique_dim": 10,
}
_READ = "_local_scalar_dense"  # item, bool, float
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", _READ}
_WAITS = {_READ, "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive"}
_COPIES = {"copy_", "_to_copy"}
_EMPTY = ("empty.memory_format", "empty_strided")
_FACTORIES = (*_EMPTY, "arange", "arange.start", "arange.start_step", "eye", "eye.m", "randperm", "randperm.generator")


class DeviceMix(RuntimeError):
    """Tensors of two devices in an operation that CUDA refuses."""


_registered: list[torch.library.Library] = []


class SimTensor(Tensor):
    """A tensor of the device; `raw` is the CPU tensor that holds its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls: Any, raw: Tensor) -> Any:
        shape = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made = Tensor._make_wrapper_subclass(cls, raw.shape, device=torch.device(NAME, 0), **shape)
        made.raw = raw
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage] - as PyTorch's documentation does
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()  # the size and identity that a device's storage would have

    def __repr__(self, **_: object) -> str:
        return f"SimTensor({tuple(self.shape)}, {self.dtype})"


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation that has a tensor of the device among its arguments, or that makes one."""
    name = func.name().removeprefix("aten::").partition(".")[0]
    made: dict[int, SimTensor] = {}
    strangers: list[Tensor] = []

    def raw(value: Any) -> Any:
        if isinstance(value, SimTensor):
            made[id(value.raw)] = value
            return value.raw
        if isinstance(value, Tensor):
            strangers.append(value)
        return value

    raws, options = _each(raw, args), {key: _each(raw, value) for key, value in kwargs.items()}
    ours = torch.device(kwargs.get("device") or NAME).type == NAME  # whether the result is on the device
    if name in _COPIES:
        source = args[0] if name == "_to_copy" else args[1]
        ours = ours if name == "_to_copy" else isinstance(args[0], SimTensor)
        within = isinstance(source, SimTensor) == ours or (name == "copy_" and ours and not source.dim())
        note("launches", name) if within else note("copies", name, line=True)
    else:
        if not func.is_view and name not in _FREE:
            note("launches", name, _LAUNCHES.get(name.rstrip("_"), 1))
        strangers = _indexed(name, args, strangers)
        if any(x.dim() or torch.Tag.pointwise not in func.tags for x in strangers):
            shapes = [tuple(x.shape) for x in strangers]
            raise DeviceMix(f"{name} of tensors on {NAME} and of {shapes} on cpu, at {line_of()}")
    if "device" in options:
        options["device"] = torch.device("cpu")
    out = _zeros(func, raws, options) if IDLE and func.overloadpacket in flop_registry else func(*raws, **options)
    if not func.is_view and name not in _FREE:
        _ran(name, func, raws, options, out)
    return _each(partial(_wrapped, made), out) if ours else out


def _zeros(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Zeros in the shape of a product; what it would write into stays as it is."""
    if "out" in kwargs:
        return kwargs["out"]
    shape = func(*_each(_meta, args), **kwargs)
    return torch.zeros(shape.shape, dtype=shape.dtype)


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _ran(name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """A kernel has run: a graph that records keeps it."""
    for graph in GRAPHS:
        graph.kernels.append((func, args, kwargs, out))
    if not GRAPHS or not WORKS:
        return
    formula = flop_registry.get(getattr(func, "overloadpacket", func))
    operations = formula(*args, **kwargs, out_val=out) if formula else _attention_operations(func, args)
    found: list[Tensor] = []
    _each(lambda x: found.append(x) if isinstance(x, Tensor) else None, [args, list(kwargs.values()), out])
    for works in WORKS:
        works.append(Work(name, operations, sum({id(x): _bytes(x) for x in found}.values())))


def _attention_operations(func: Callable[..., Any], args: Any) -> int:
    """Two products forward, five backward; 0 of anything else."""
    products = {_attend: 2, _attend_backward: 5}.get(func, 0)
    return 2 * products * args[0].numel() * args[1].shape[-2] if products else 0


def _bytes(x: Tensor) -> int:
    """Of the numbers that a tensor holds, those of an expanded axis once."""
    return x.element_size() * math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    return _Attention.apply(query, key, value, attn_mask)


class _Attention(torch.autograd.Function):
    """PyTorch's fused attention: one kernel, and two for its gradient, as the memory-efficient one needs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs)
        return _fused("scaled_dot_product_attention", 1, _attend, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inputs = (*ctx.saved_tensors, grads[0])
        return *_fused("scaled_dot_product_attention_backward", 2, _attend_backward, inputs), None


def _fused(name: str, launches: int, func: Callable[..., Any], inputs: Any) -> Any:
    raws = _each(_raw, tuple(inputs))
    if any(isinstance(x, Tensor) and not isinstance(x, SimTensor) for x in inputs):
        raise DeviceMix(f"{name} of tensors on two devices, at {line_of()}")
    note("launches", name, launches)
    with torch.no_grad():
        zeros = [_heads_inside(torch.zeros_like(x)) for x in raws[:3]] if IDLE else []
        out = func(*raws) if not IDLE else tuple(zeros) if func is _attend_backward else zeros[0]
    _ran(name, func, raws, {}, out)
    return _each(partial(_wrapped, {}), out)


def _attend(*inputs: Any) -> Tensor:
    query, key, value, mask = inputs
    return _heads_inside(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))


def _attend_backward(*inputs: Any) -> tuple[Tensor, ...]:
    *leaves, mask, grad = inputs
    with torch.enable_grad():
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        return tuple(map(_heads_inside, torch.autograd.grad(_attend(*leaves, mask), leaves, grad)))


def _heads_inside(x: Tensor) -> Tensor:
    """[n, H, s, w], in memory as CUDA's kernels write it: heads side by side."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _indexed(name: str, args: Any, strangers: list[Tensor]) -> list[Tensor]:
    """Counts what an operation waits for; returns the CPU tensors that are not indices."""
    index = [x for x in args[1] if x is not None] if "index" in name and isinstance(args[1], list | tuple) else []
    if name in _WAITS or any(x.dtype == torch.bool for x in index):
        note("syncs", name, line=True)
    copied = {id(x) for x in index if not isinstance(x, SimTensor)} if isinstance(args[0], SimTensor) else set()
    for _ in copied:
        note("copies", name, line=True)
    return [x for x in strangers if id(x) not in copied]


def _each(action: Callable[[Any], Any], value: Any) -> Any:
    """`action` of every value in nested lists and tuples."""
    return type(value)([_each(action, x) for x in value]) if isinstance(value, (list, tuple)) else action(value)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, SimTensor) else value


def _wrapped(made: dict[int, SimTensor], value: Any) -> Any:
    """In-place operations return the very tensor that they were given."""
    if id(value) in made:
        return made[id(value)]
    return SimTensor(value) if isinstance(value, Tensor) else value


def why_not() -> str:
    """Why this PyTorch cannot simulate a device; empty where it can."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"a device in Python needs torch >= 2.11, this is {torch.__version__}"
    other = torch.device("privateuseone").type
    return "" if other in ("privateuseone", NAME) else f"PyTorch has room for one such device, and there is {other!r}"


def registered() -> bool:
    """Whether this process has called `sim_device`."""
    return bool(_registered)


def sim_device() -> torch.device:
    """The device, registered by the first call, which must come before the process's first backward pass.

    Raises:
        RuntimeError: this PyTorch cannot simulate one.
    """
    if not _registered:
        if reason := why_not():
            raise RuntimeError(reason)
        backend_registration._setup_privateuseone_for_python_backend(NAME, Module())  # pyright: ignore[reportPrivateUsage]
        library = torch.library.Library("aten", "IMPL")
        library.impl("_copy_from", lambda x, to, _=False: _run(torch.ops.aten.copy_.default, to, x), "PrivateUse1")
        for name in _FACTORIES:  # no tensor argument leads to `SimTensor`
            base, _, overload = name.partition(".")
            factory = getattr(getattr(torch.ops.aten, base), overload or "default")
            library.impl(factory, partial(_run, factory), "PrivateUse1")
        _registered.append(library)
    return torch.device(NAME, 0)
