"""Prints the oldest version of every package that pyproject.toml allows, as constraints of pip. PyTorch is left out:
its oldest builds for a machine are chosen as always, `make test-oldest TORCH=torch==2.6.0`."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")


def oldest() -> list[str]:
    """`name==version` of each requirement with a lower bound."""
    found = re.findall(r'^ *"([A-Za-z0-9_.-]+)(?:\[[a-z]+\])?>=([0-9.]+)', TEXT, re.MULTILINE)
    return [f"{name}=={version}" for name, version in found if name not in ("torch", "hatchling")]


if __name__ == "__main__":
    print("\n".join(oldest()))
