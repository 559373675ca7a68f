"""Each file of a store empty, missing or another's: one line names it.

The next run of the study makes it anew. It trains one seed again if the file was a seed's, and none otherwise.
"""

import io
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import cli
from fpl_tune.study.store import Store

pytestmark = pytest.mark.timeout(60)

AXES = {"tiny": "axes: {optim: {lr: [0.1]}}\n", "other": "axes: {optim: {lr: [0.2, 0.3]}}\n"}
OVERRIDES = ["protocol.rounds=1", "tracking.enabled=false"]
OF_SEED = ["seed=1/result.json", "seed=1/metrics.jsonl", "seed=1/prompts.safetensors"]
READ = ["study.yaml", "cells.json", "cell.json", "marks.json", *OF_SEED]
"""Files that are read; those of a cell without its folder."""

Damage = Callable[[Path], None]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_other_cell(path: Path) -> None:
    """The same file of the study `other`, or of its first cell."""
    tiny = next(above for above in path.parents if above.name == "tiny")
    parts = list(path.relative_to(tiny).parts)
    if parts[0] == "cells":
        parts[1] = Store(tiny.parent, "other").cells()[0].id
    shutil.copyfile(tiny.with_name("other").joinpath(*parts), path)


def of_other_seed(path: Path) -> None:
    shutil.copyfile(path.parent.with_name("seed=2") / path.name, path)


SAYS: dict[Damage, str] = {
    empty: "",
    of_other_cell: r"it (belongs to (cell|study 'other', but)|is not the history that)|none of its cells is in",
    of_other_seed: r"it (belongs to cell \w+, seed=2|is not the history that)",
}
CASES = [
    *((name, damage) for name in READ for damage in (empty, of_other_cell)),
    *((name, of_other_seed) for name in OF_SEED),
]


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    """The stores of the studies `tiny` and `other`, which have run once for this module."""
    return {}


@pytest.fixture
def root(
    finished: dict[str, Path], head: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> Path:
    """An output folder of its own with both."""
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    for name, axes in AXES.items():
        (tmp_path / f"{name}.yaml").write_text(head + axes)
    if not finished:
        monkeypatch.setenv("FPL_TUNE_OUTPUT", str(whole := tmp_path_factory.mktemp("finished")))
        for name in AXES:
            assert call("study", str(tmp_path / f"{name}.yaml"), "--quiet", *OVERRIDES) == (0, [])
        finished["root"] = whole
    shutil.copytree(finished["root"], tmp_path / "out")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "out"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def call(*words: str) -> tuple[int, list[str]]:
    """The exit code of a command, and its lines on standard error."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.getvalue().splitlines()


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """What a study left, without marks.json, which says which seeds ran last."""
    return {path: content for path, content in found.items() if not path.endswith("marks.json")}


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_file_costs_its_seed(
    root: Path, finished: dict[str, Path], left: Callable[..., Any], name: str, damage: Damage
) -> None:
    place = root / "tiny" / "cells" / Store(root, "tiny").cells()[0].id
    path = root / "tiny" / name if name in ("study.yaml", "cells.json") else place / name
    results = {seed: (place / f"seed={seed}/result.json").read_bytes() for seed in (1, 2)}
    damage(path)
    told = rf"fpl-tune: {re.escape(str(path))} is damaged: .*({SAYS[damage]}).*\. Run the study again to recreate .*\."

    assert call("status")[0] == 0
    for verb in ("status", "show"):
        code, lines = call(verb, "tiny")
        assert code == (2 if name in ("study.yaml", "cells.json") else 0)
        assert len(lines) == (name not in ("seed=1/metrics.jsonl", "seed=1/prompts.safetensors"))
        assert all(re.fullmatch(told, line) for line in lines)
    code, (line,) = call("study", "tiny.yaml", "--quiet", *OVERRIDES)
    assert code == 0
    assert re.fullmatch(told, line)

    assert figures(left(root)) == figures(left(finished["root"]))
    assert Store.open(root, "tiny").check() == []
    assert call("status", "tiny") == (0, [])
    again = {seed for seed in (1, 2) if (place / f"seed={seed}/result.json").read_bytes() != results[seed]}
    assert again == ({1} if name.startswith("seed") else set())
