"""Devices as PyTorch reports them, monkeypatched: no GPU is needed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fpl_tune.core import device
from fpl_tune.core.errors import ConfigError, EnvironmentProblem

GB = 1 << 30


def _fake(monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]]) -> None:
    """GPUs of (free, total) bytes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(sizes))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: sizes[i])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU number {i}")

    def properties(which: Any) -> SimpleNamespace:
        return SimpleNamespace(total_memory=sizes[getattr(which, "index", which)][1])

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


def _refuse(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def init() -> None:
        raise problem

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(torch.cuda, "init", init)


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, [(GB, 2 * GB)])
    assert [device.resolve(wanted) for wanted in device.WANTED] == ["cuda", "cpu", "cuda"]
    _fake(monkeypatch, [])
    assert [device.resolve(wanted) for wanted in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="must be auto, cpu or cuda, but is 'gpu'"):
        device.resolve("gpu")


def test_without_a_usable_gpu_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The NVIDIA driver on your system is too old (found version 11040). Please update it."
    _refuse(monkeypatch, RuntimeError(text))
    said = r"none \(The NVIDIA driver on your system is too old \(found version 11040\)\)\. Use execution.device=cpu"
    with pytest.raises(EnvironmentProblem, match=said) as found:
        device.resolve("cuda")
    assert "\n" not in str(found.value)
    assert device.resolve("auto") == "cpu"
    assert device.gpus() == []


def test_sizes_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice reports its own size; what other programs hold is not free."""
    _fake(monkeypatch, [(9 * GB, 10 * GB), (GB, 80 * GB)])
    assert device.gpus() == [(0, "GPU number 0", 10 * GB, 9 * GB), (1, "GPU number 1", 80 * GB, GB)]


def test_blocks_follow_the_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, [(GB, 80 * GB)])
    where = torch.device("cuda", 0)
    assert device.activation_bytes(torch.device("cpu"), cpu=7, share=0.2) == 7
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
    assert device.activation_bytes(where, cpu=7, share=0.25) == 20 * GB
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 0.5)
    assert device.activation_bytes(where, cpu=7, share=0.25) == 10 * GB


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        device.OutOfMemory("one client does not fit"),
    ],
)
def test_memory_has_many_errors(error: Exception) -> None:
    assert device.is_out_of_memory(error)
    assert not device.is_poisoned(error)
    wrapped = ValueError("the round failed")
    wrapped.__cause__ = error
    assert device.is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_some_errors_end_the_context(text: str) -> None:
    assert device.is_poisoned(RuntimeError(text))
    assert not device.is_out_of_memory(RuntimeError(text))


def test_a_block_has_settings_of_its_own_and_leaves_its_callers() -> None:
    """Also where it fails."""
    threads = torch.get_num_threads()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        with torch.no_grad(), pytest.raises(ZeroDivisionError), device.fixed_settings(threads + 1) as changed:  # noqa: PT012
            inside = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
            assert inside == (torch.float32, threads + 1, "highest")
            assert torch.is_grad_enabled()
            raise ZeroDivisionError
        assert changed == []
        left = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
        assert left == (torch.float64, threads, "high")
        with torch.no_grad():
            with device.fixed_settings(1):
                torch.set_num_threads(2)
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)


def test_settings_that_a_block_changes_are_named_and_set_back() -> None:
    with device.fixed_settings(threads=1) as changed:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
    assert sorted(changed) == ["default_device", "default_dtype", "grad_enabled"]
    assert torch.ones(1, requires_grad=True).sin().requires_grad
    assert torch.equal(torch.ones(1), torch.ones(1, dtype=torch.float32, device="cpu"))
