"""A method joins by its file, its search space and one line of the contract's list, as the README's page says.

Done to a copy of the tree. What else a method of this repository wants - a test of its own, a row in the README, a
place in the study `zoo` - other tests ask for by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fpl_tune.testing import CONTRACT

ROOT = Path(__file__).resolve().parents[2]
SPACE = """space:
  method.beta: {low: 0.0, high: 0.99}
published:
  - {method.beta: 0.9}
"""


def test_file_space_and_one_line_are_enough_for_the_contract(tmp_path: Path) -> None:
    for folder in ("fpl_tune", "search_spaces", "tests/methods"):
        left = shutil.ignore_patterns("__pycache__", "test_*.py")
        shutil.copytree(ROOT / folder, tmp_path / folder, copy_function=os.link, ignore=left)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    blocks = (ROOT / ".github" / "docs" / "methods.md").read_text(encoding="utf-8").split("```python\n")[1:]
    (example,) = (block.split("```")[0] for block in blocks if "(Method):" in block)
    (tmp_path / "fpl_tune" / "methods" / "promptfedavgm.py").write_text(example, encoding="utf-8")
    (tmp_path / "search_spaces" / "promptfedavgm.yaml").write_text(SPACE, encoding="utf-8")
    contract = (ROOT / "tests" / "methods" / "test_contract.py").read_text(encoding="utf-8")
    first = '    ("zeroshot", {}),\n'
    assert contract.count(first) == 1
    joined = contract.replace(first, first + '    ("promptfedavgm", {"n_ctx": 2}),\n')
    (tmp_path / "tests" / "methods" / "test_contract.py").write_text(joined, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/methods/test_contract.py"]
    chosen = "is_in_the_list or (promptfedavgm and not test_of_its_own)"
    done = subprocess.run(
        [*command, "-k", chosen],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = f"{len(CONTRACT) + 5} passed"  # the contract, both wrappers, the list, the search space, the composition
    assert wanted in done.stdout
