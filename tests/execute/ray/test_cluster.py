"""Studies over several Ray nodes: the cases of `cluster_cases.py`, one after the other on one cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path


def digest(output: str) -> str:
    """What pytest printed, with the short summary and the errors of the first failure first."""
    report, _, summary = output.partition("short test summary info")
    first = re.split(r"^_{3,} .* _{3,}$", report, flags=re.MULTILINE)[1:2]
    errors = [line for line in "".join(first).splitlines() if line.startswith("E ")]
    return "\n".join([summary.strip("= \n"), *errors, *first]) if first else output[-6000:]


def test_the_cases_of_a_cluster() -> None:
    cases = Path(__file__).with_name("cluster_cases.py")
    options = "-q -p no:xdist -p no:cacheprovider --tb=short --show-capture=no".split()
    words = [sys.executable, "-m", "pytest", *options, str(cases)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=2400, env={**alone, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, digest(done.stdout) + done.stderr[-2000:]
