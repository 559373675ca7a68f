"""Another machine to plan for, and what its GPUs take for a step and an image: estimates from what an H200 took.

The figures of an H200 are in docs/explanation/speed.md; other GPUs are compared by their published rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.formatting import counted

_FLOAT32, _BFLOAT16 = "float32", "bfloat16"
GPUS: dict[str, tuple[float, dict[str, float]]] = {
    "h200": (140, {_FLOAT32: 67, _BFLOAT16: 989}),
    "h100": (80, {_FLOAT32: 67, _BFLOAT16: 989}),
    "a100": (80, {_FLOAT32: 19.5, _BFLOAT16: 312}),
    "a100-40gb": (40, {_FLOAT32: 19.5, _BFLOAT16: 312}),
    "l40s": (45, {_FLOAT32: 91.6, _BFLOAT16: 362}),
    "a10g": (22, {_FLOAT32: 35, _BFLOAT16: 70}),
    "l4": (22, {_FLOAT32: 30.3, _BFLOAT16: 121}),
}
"""GPUs by name: memory in GiB and dense matrix rates in teraflops, as published by NVIDIA."""
REFERENCE = "h200"
STEP = 2e-3
"""Seconds of a replayed step of a cohort on an H200, however small (2.1 ms for 10 classes in bfloat16)."""
PER_BYTE = {_FLOAT32: 2e-11, _BFLOAT16: 5e-12}
"""Further seconds of a step on an H200 per byte that is kept for gradients. In bfloat16, from a step of 100 classes and
ten clients (4.3 ms); in float32, its operations at 60 % of the matrix rate, as rounds on pixels reach."""
TWO_ON_ONE = 1.5
"""Work of trials that share a GPU, over that of one: 1.3 to 1.7 were measured for two, and nothing for more."""
PIXELS = {_FLOAT32: 0.6, _BFLOAT16: 0.2}
"""Share of the matrix rate that encoding images reaches."""
CORES = 8
"""Cores that read images beside a GPU."""


@dataclass(frozen=True)
class Machine:
    """Nodes with equal GPUs."""

    gpu: str
    """Name in `GPUS`."""
    gpus: int = 1
    """GPUs of a node."""
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.gpu not in GPUS:
            raise unknown("GPU", self.gpu, GPUS)
        if min(self.gpus, self.nodes) < 1:
            raise ConfigError(f"A machine has one GPU or more, but --gpus is {self.gpus} and --nodes {self.nodes}.")

    @property
    def memory(self) -> int:
        """Bytes of a GPU."""
        return int(GPUS[self.gpu][0] * (1 << 30))

    def slower(self, dtype: str) -> float:
        """How many times as long as an H200 a GPU takes for a matrix product."""
        return GPUS[REFERENCE][1][_rated(dtype)] / GPUS[self.gpu][1][_rated(dtype)]

    def step_seconds(self, cohort_steps: float, client_steps: float, kept: int, dtype: str) -> float:
        """Seconds of the steps of a round: of cohorts, and of their clients, each of which keeps so many bytes."""
        return STEP * cohort_steps + PER_BYTE[_rated(dtype)] * kept * client_steps * self.slower(dtype)

    def image_seconds(self, operations: float, dtype: str) -> float:
        """Seconds of an image tower's pass over one image."""
        kind = _rated(dtype)
        return operations / (PIXELS[kind] * GPUS[self.gpu][1][kind] * 1e12)

    def note(self, at_once: int) -> str:
        """A sentence on how many trials run at once, and on what the plan's times rest."""
        return (
            f"An estimate for {counted(self.nodes, 'node')} with {counted(self.gpus, 'GPU')} ({self.gpu}) each, "
            f"{counted(at_once, 'trial')} on a GPU at a time. Times are those of steps on an H200 "
            f"(docs/explanation/speed.md){'' if self.gpu == REFERENCE else ', scaled by published matrix rates'}; "
            f"trials that share a GPU do {TWO_ON_ONE:g} times the work of one. Errors of a factor of two are common."
        )


def _rated(dtype: str) -> str:
    return _FLOAT32 if dtype == _FLOAT32 else _BFLOAT16
