"""Prints the oldest version of every package that pyproject.toml allows, as constraints of pip. PyTorch is left out:
its oldest builds for a machine are chosen as always, `make test-oldest TORCH=torch==2.6.0`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LISTED: list[str] = sum(EXTRAS.values(), PROJECT["dependencies"])
"""Every requirement, as pyproject.toml writes it."""


def oldest() -> list[str]:
    """`name==version` of each requirement with a lower bound."""
    found = [re.match(r"([\w.-]+)(?:\[[a-z]+\])?>=([0-9.]+)", text) for text in LISTED]
    return [f"{bound[1]}=={bound[2]}" for bound in found if bound and bound[1] not in ("torch", "hatchling")]


if __name__ == "__main__":
    print("\n".join(oldest()))
