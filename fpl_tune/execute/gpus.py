"""The GPUs of this machine, seen from a child process: asking PyTorch opens a CUDA context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress

SECONDS = 60.0
"""Time limit: PyTorch is imported, perhaps over a network."""
_ASK = (
    "import json; from fpl_tune.core.device import gpus; print(json.dumps([(gpu.total, gpu.free) for gpu in gpus()]))"
)


def gpus_here() -> tuple[tuple[int, int], ...]:
    """Total and free bytes of each GPU that PyTorch sees here; empty if it does not answer."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        output = subprocess.check_output(
            [sys.executable, "-P", "-c", _ASK], env=environment, stderr=subprocess.DEVNULL, timeout=SECONDS
        )
        return tuple((int(total), int(free)) for total, free in json.loads(output))
    return ()
