"""A simulated accelerator: in `simulated()`, tensors of a device compute on the CPU and are as strict as a GPU's.

    with simulated() as device, counting() as seen:
        step(model.to(device), batch)
    assert not seen.syncs and not seen.copies, seen

* An operation on tensors of both devices raises `DeviceMix`, with CUDA's exceptions: a CPU tensor without dimensions
  in a pointwise operation, and CPU indices into a tensor of the device (CUDA copies them, and waits).
* What makes a program wait for a GPU is counted by operation and line: values that are read (`item`, `bool`), shapes
  that depend on values (`nonzero`, `unique`, boolean indices), copies from and to the CPU.
* Operations that launch kernels are counted by name. The count is a lower bound; `_LAUNCHES` lists the operations
  that need more than one. Fused attention is one launch, its gradient two.
* `fpl_tune.simulation.graphs.capture` records graphs: what is recorded may neither wait nor copy, and a replay runs
  the recorded operations, as one launch, on the tensors that they had. `Graph.works` counts what each does.

The device is PyTorch's `meta`, whose tensors hold no numbers elsewhere; here they are `SimTensor`s, which do. Autograd,
`Module.to`, factories and checkpointing take the paths that they take for CUDA, but kernels and figures are the CPU's.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fpl_tune.simulation import graphs

DEVICE, CPU = torch.device("meta"), torch.device("cpu")

_TWICE = ("masked_fill", "index_copy", "index_put", "index_fill", "scatter", "constant_pad_nd", "topk")
_MORE = {"sort": 3, "nonzero": 4, "_unique2": 6, "unique_dim": 10}
_LAUNCHES = dict.fromkeys((*_TWICE, "nll_loss_backward"), 2) | _MORE
_READ = "_local_scalar_dense"  # item, bool, float
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", _READ}
_WAITS = {_READ, "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive"}
_COPIES = {"copy_", "_to_copy"}


class DeviceMix(RuntimeError):
    """Tensors of two devices in an operation that CUDA refuses."""


class CaptureError(RuntimeError):
    """An operation that waits or copies while a graph is recorded."""


class Work(NamedTuple):
    """What a kernel does."""

    name: str
    operations: int
    """A multiplication and an addition are two; of matrix products and attention alone."""
    moved: int
    """Bytes read and written."""


class _Kernel(NamedTuple):
    name: str
    func: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    out: Any

    def work(self) -> Work:
        products = {_attend: 2, _attend_backward: 5}.get(self.func, 0)
        operations = 2 * products * self.args[0].numel() * self.args[1].shape[-2] if products else 0
        if formula := flop_registry.get(getattr(self.func, "overloadpacket", self.func)):
            operations = formula(*self.args, **self.kwargs, out_val=self.out)
        seen = {id(x): x for x in _tensors([self.args, list(self.kwargs.values()), self.out])}
        return Work(self.name, operations, sum(map(_bytes, seen.values())))


class Graph:
    """A recorded series of kernels, as `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        """Nothing is recorded yet."""
        self.kernels: list[_Kernel] = []

    def replay(self) -> None:
        """Runs the kernels again on the memory that they had, as one launch; none while the device is idle."""
        _note("launches", "graph")
        for _, func, args, kwargs, out in self.kernels if not _idle else ():
            for now, then in zip(_tensors(func(*args, **kwargs)), _tensors(out), strict=True):
                if now is not then:
                    then.copy_(now)

    def works(self) -> list[Work]:
        """What each kernel does."""
        return [kernel.work() for kernel in self.kernels]


@dataclass
class Counts:
    """What happened on the device: `syncs` and `copies` by operation and line, `launches` by operation."""

    launches: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    graphs: list[Graph] = field(default_factory=list)
    """Those recorded."""

    @property
    def waits(self) -> int:
        """How often the program waited for the device: synchronisations and copies."""
        return self.syncs.total() + self.copies.total()


_open: list[Counts] = []
_recording: list[Graph] = []
_idle: list[bool] = []


@contextmanager
def simulated(*, idle: bool = False) -> Iterator[torch.device]:
    """The simulated device, until the block ends.

    Args:
        idle: matrix products and attention are counted and give zeros: true sizes in little time.
    """
    idle_calls = dict.fromkeys(("Stream", "current_stream", "empty_cache"), Mock)
    module = SimpleNamespace(CUDAGraph=Graph, graph=_record, stream=nullcontext, **idle_calls)
    _idle.extend([True] * idle)
    try:
        with patch.dict(graphs.MODULES, {DEVICE.type: module}), _Literals(), _Kernels():
            yield DEVICE
    finally:
        _idle.clear()


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what happens on the device until the block ends. May be nested."""
    _open.append(seen := Counts())
    try:
        yield seen
    finally:
        _open[:] = [other for other in _open if other is not seen]


@contextmanager
def _record(graph: Graph, stream: object = None) -> Iterator[None]:
    _recording.append(graph)
    try:
        yield
    finally:
        _recording.remove(graph)
    for seen in _open:
        seen.graphs.append(graph)


def _note(what: str, name: str, times: int = 1, *, waits: bool = False) -> None:
    """Counts an operation in all open blocks, with its line where it waits."""
    if waits and _recording:
        raise CaptureError(f"operation not permitted when stream is capturing: {name} at {_line()}")
    key = f"{name} at {_line()}" if waits and _open else name
    for seen in _open:
        getattr(seen, what)[key] += times


def _line() -> str:
    """The innermost line that belongs neither to this file nor to PyTorch."""
    for frame, number in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if file != __file__ and "/torch/" not in file and not file.endswith("traceback.py"):
            return f"{'/'.join(file.split('/')[-2:])}:{number}"
    return "autograd"


class SimTensor(Tensor):
    """A tensor of the device; `raw` is the CPU tensor that holds its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls: Any, raw: Tensor) -> Any:
        shape = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made = Tensor._make_wrapper_subclass(cls, raw.shape, device=DEVICE, **shape)
        made.raw = raw
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func is Tensor.__getitem__:
            args = args[0], _each(lambda x: torch.tensor(x) if isinstance(x, list) else x, args[1], tuple)
        return Tensor.__torch_function__(func, (), args, kwargs)  # Tensor's own: results stay of the type that they are

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()  # the size and identity that a device's storage would have

    def __repr__(self, **_: object) -> str:
        return f"SimTensor({tuple(self.shape)}, {self.dtype})"


class _Kernels(TorchDispatchMode):
    """Factories and copies to the device, which no tensor leads to `SimTensor`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Tensors of Python's numbers: PyTorch would make meta tensors of them, and lose the numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor)
        if numbers and torch.device(kwargs.get("device") or CPU) == DEVICE:
            return func(*args, **{**kwargs, "device": CPU}).to(DEVICE)
        return func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation; one that has a tensor of the device among its arguments, or that makes one, is counted."""
    tensors = _tensors([args, list(kwargs.values())])
    made = {id(x.raw): x for x in tensors if isinstance(x, SimTensor)}
    assert not any(x.device == DEVICE for x in tensors if not isinstance(x, SimTensor)), func
    device = torch.device(kwargs.get("device") or (DEVICE if made else CPU))
    if not made and device != DEVICE:
        return func(*args, **kwargs)
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in _COPIES:
        source, to = (args[0], device) if name == "_to_copy" else (args[1], args[0].device)
        within = source.device == to or (name == "copy_" and to == DEVICE and not source.dim())
        _note("launches" if within else "copies", name, waits=not within)
        device = to
    else:
        if not func.is_view and name not in _FREE:
            _note("launches", name, _LAUNCHES.get(name.rstrip("_"), 1))
        strangers = _indexed(name, args, [x for x in tensors if not isinstance(x, SimTensor)])
        if any(x.dim() or torch.Tag.pointwise not in func.tags for x in strangers):
            shapes = [tuple(x.shape) for x in strangers]
            raise DeviceMix(f"{name} of tensors on the device and of {shapes} on cpu, at {_line()}")
    raws, options = _each(_raw, args), {key: _each(_raw, value) for key, value in kwargs.items()}
    if "device" in options:
        options["device"] = CPU
    idle = _idle and func.overloadpacket in flop_registry
    out = _zeros(func, raws, options) if idle else func(*raws, **options)
    if not func.is_view and name not in _FREE:
        _ran(name, func, raws, options, out)
    return _wrapped(out, made) if device == DEVICE else out


def _indexed(name: str, args: Any, strangers: list[Tensor]) -> list[Tensor]:
    """CPU tensors that CUDA refuses: not those that index one of the device, which are copied to it."""
    index = [x for x in args[1] if x is not None] if "index" in name and isinstance(args[1], list | tuple) else []
    if name in _WAITS or any(x.dtype == torch.bool for x in index):
        _note("syncs", name, waits=True)
    copied = {id(x) for x in index if not isinstance(x, SimTensor)} if isinstance(args[0], SimTensor) else set()
    for _ in copied:
        _note("copies", name, waits=True)
    return [x for x in strangers if id(x) not in copied]


def _zeros(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Zeros in the shape of a product; what it would write into stays as it is."""
    if "out" in kwargs:
        return kwargs["out"]
    shape = func(*_each(lambda x: x.to("meta") if isinstance(x, Tensor) else x, args), **kwargs)
    return torch.zeros(shape.shape, dtype=shape.dtype)


def _ran(name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """A kernel has run: a graph that records keeps it."""
    for graph in _recording:
        graph.kernels.append(_Kernel(name, func, args, kwargs, out))


def _each(action: Callable[[Any], Any], value: Any, nested: Any = (list, tuple)) -> Any:
    """`action` of every value in nested lists and tuples."""
    return type(value)([_each(action, x, nested) for x in value]) if isinstance(value, nested) else action(value)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    found: list[Tensor] = []
    _each(lambda x: found.append(x) if isinstance(x, Tensor) else None, value)
    return found


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, SimTensor) else value


def _wrapped(value: Any, made: dict[int, SimTensor] | None = None) -> Any:
    """Tensors of the device; in-place operations return the very tensor that they were given, one of `made`."""
    made = made or {}
    return _each(lambda x: made[id(x)] if id(x) in made else SimTensor(x) if isinstance(x, Tensor) else x, value)


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
    if any(isinstance(x, Tensor) and not isinstance(x, SimTensor) for x in inputs):
        raise DeviceMix(f"{name} of tensors on two devices, at {_line()}")
    _note("launches", name, launches)
    raws = _each(_raw, tuple(inputs))
    with torch.no_grad():
        zeros = [_heads_inside(torch.zeros_like(x)) for x in raws[:3]] if _idle else []
        out = func(*raws) if not _idle else tuple(zeros) if func is _attend_backward else zeros[0]
    _ran(name, func, raws, {}, out)
    return _wrapped(out)


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
