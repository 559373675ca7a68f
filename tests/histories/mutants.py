"""Tries the small wrong edits of the package in `mutants.yaml`: `python tests/histories/run.py --mutants`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import yaml

REPOSITORY = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A text that occurs once in a file of the package, and what takes its place."""

    file: str
    old: str
    new: str


MUTANTS = {
    name: Mutant(**it) for name, it in yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text()).items()
}


def check(name: str, folder: Path, minutes: float, seed: int, kept: bool) -> tuple[bool, float, str]:
    """Whether histories find a mutant; the seconds that they took, and the last line that they printed."""
    copy = folder / name
    for part in ("fpl_tune", "search_spaces", "studies", "tests/histories"):
        shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    mutant = MUTANTS[name]
    path = copy / "fpl_tune" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{name}: its text occurs {text.count(mutant.old)} times in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new))
    words = [sys.executable, "-B", copy / "tests/histories/run.py", "--first", "--jobs", "1"]
    words += ["--minutes", str(minutes), "--seed", str(seed), *(["--kept"] if kept else [])]
    began = time.monotonic()
    ran = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    shutil.rmtree(copy)
    lines = (ran.stdout + ran.stderr).strip().splitlines() or [""]
    found = ran.returncode == 1 and "kinds of faults" in ran.stdout
    return found, seconds, next((line for line in lines if line.startswith("  ")), lines[-1]).strip()


def check_all(folder: Path, minutes: float, seed: int, jobs: int, kept: bool, names: Collection[str] = ()) -> int:
    """Prints which mutants histories find. Returns the number of those that they do not.

    Args:
        folder: for copies of the package.
        minutes: in which histories are drawn, for each mutant.
        seed: of the first ones.
        jobs: mutants that are tried side by side.
        kept: whether the histories that once failed run before.
        names: of mutants; none: all.
    """
    missed = 0
    with ThreadPoolExecutor(jobs) as pool:
        chosen = [name for name in MUTANTS if not names or name in names]
        for name, (found, seconds, line) in zip(
            chosen, pool.map(lambda name: check(name, folder, minutes, seed, kept), chosen), strict=True
        ):
            missed += not found
            print(f"{name:30}{'found' if found else 'MISSED':8}{seconds:6.0f} s  {line[:150]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return missed
