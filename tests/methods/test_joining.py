"""A method is added by its file, its search space, one line of the contract's list and a test of its own.

Checked on a copy of the repository, where all tests with a list of methods run.
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
TEST = """from fpl_tune.methods.server_momentum import ServerMomentum


def test_it_has_a_context() -> None:
    assert ServerMomentum().n_ctx
"""


def test_file_space_line_and_own_test_are_enough(tmp_path: Path) -> None:
    for folder in ("fpl_tune", "search_spaces", "studies", "tests/methods", ".github"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "Makefile", "tests/conftest.py", "tests/test_rooms.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("tests/test_readme.py", "tests/test_studies.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    blocks = (ROOT / ".github" / "docs" / "methods.md").read_text(encoding="utf-8").split("```python\n")[1:]
    (example,) = (block.split("```")[0] for block in blocks if "(Method):" in block)
    (tmp_path / "fpl_tune" / "methods" / "server_momentum.py").write_text(example, encoding="utf-8")
    (tmp_path / "search_spaces" / "server_momentum.yaml").write_text(SPACE, encoding="utf-8")
    contract = (ROOT / "tests" / "methods" / "test_contract.py").read_text(encoding="utf-8")
    first = '    ("zeroshot", {}),\n'
    assert contract.count(first) == 1
    listed = tmp_path / "tests" / "methods" / "test_contract.py"
    listed.unlink()  # a link to the original
    listed.write_text(contract.replace(first, first + '    ("server_momentum", {"n_ctx": 2}),\n'), encoding="utf-8")
    (tmp_path / "tests" / "methods" / "test_server_momentum.py").write_text(TEST, encoding="utf-8")
    files = ["tests/methods/test_contract.py", "tests/test_readme.py", "tests/test_studies.py", "tests/test_rooms.py"]
    chosen = "is_in_the_list or server_momentum or cites or of_its_own or every_test_of_a_method"
    chosen += " or every_row or zoo_labels or no_method_is"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rpartition(" passed")[0].rpartition("\n")[2].split()[-1])
    assert passed >= len(CONTRACT) + 9, done.stdout
