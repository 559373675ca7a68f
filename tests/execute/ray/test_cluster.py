"""Studies over several Ray nodes: the cases of `cluster_cases.py`, one after the other on one cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_cases_of_a_cluster() -> None:
    cases = Path(__file__).with_name("cluster_cases.py")
    options = "-q -p no:xdist -p no:cacheprovider --tb=short --show-capture=no".split()
    words = [sys.executable, "-m", "pytest", *options, str(cases)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env={**alone, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
