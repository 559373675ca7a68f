"""The allocator keeps what large tensors gave back, where that is glibc's and nobody set it otherwise."""

import platform
import resource
import subprocess
import sys

import pytest

from fpl_tune.clip import allocator

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")

_CHURN = """
import resource, sys, torch
from fpl_tune.clip.allocator import keep_freed_memory
told = keep_freed_memory() if sys.argv[1] == "keep" else None
def churn():
    for _ in range(50):
        torch.zeros(6 << 20, dtype=torch.uint8).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF)
first, second = churn(), churn()
print(told, second.ru_minflt - first.ru_minflt, second.ru_maxrss - first.ru_maxrss)
"""


def _churn(mode: str, **environment: str) -> tuple[str, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", _CHURN, mode], capture_output=True, text=True, check=True, env={**environment}
    )
    told, faults, growth = done.stdout.split()
    return told, int(faults), int(growth)


@glibc
def test_freed_blocks_are_reused_without_page_faults_and_without_growth() -> None:
    told, faults, growth = _churn("keep")
    assert told == "True"
    pages = 50 * (6 << 20) // resource.getpagesize()
    assert faults < pages / 50
    assert growth < 8 << 10  # kB: less than two of the tensors


_THREADS = """
import threading, psutil, torch
from fpl_tune.clip.allocator import keep_freed_memory, trim
keep_freed_memory()
started = threading.Barrier(4)
def work():
    started.wait()
    blocks = [torch.ones(1 << 20, dtype=torch.uint8) for _ in range(40)]
    started.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
before = psutil.Process().memory_info().rss
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
trim()
print(psutil.Process().memory_info().rss - before)
"""


@glibc
def test_memory_that_threads_free_returns_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True, env={})
    assert int(done.stdout) < 20 << 20  # of 160 MB


@glibc
@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_stand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "65536")
    assert not allocator.keep_freed_memory()
