"""A package of somebody else brings a method, a data set and towers by entry points; the platform takes them all."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fpl_tune
from fpl_tune import config, data, methods
from fpl_tune.clip import load_towers
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError
from fpl_tune.testing import check_dataset, check_towers

METHODS = Path(__file__).resolve().parents[2] / "docs" / "guides" / "method.md"

BROUGHT = '''

import numpy as np

from fpl_tune.data.pool import ArrayPool, Dataset
from fpl_tune.data.sources import Source
from fpl_tune.data.spec import PartitionSpec
from fpl_tune.testing import toy_towers


def images():
    """Two classes that differ in colour, thirty images each."""
    pictures = np.random.default_rng(0).integers(0, 80, (60, 32, 32, 3), dtype=np.uint8)
    pictures[::2, :, :, 0] += 150
    return pictures


def colours(spec):
    def pool(key, rows):
        named = tuple(f"{row}.png" for row in rows)
        zero = np.zeros(len(rows), np.int64)
        return ArrayPool(f"colours-{key}", named, rows % 2, zero, "clip", images, "1", rows)

    rows = np.arange(60)
    train, test = pool("train", rows[:40]), pool("test", rows[40:])
    return Dataset("colours", ("grey star", "red star"), ("drawn",), "a drawing of a {}.", train, test)


source = Source("red and grey noise", colours, PartitionSpec("iid", n_clients=2), "nothing", "drawn")


def towers(pretrained, *, device="cpu", dtype=None, seed=0):
    return toy_towers(dtype=dtype, seed=seed)
'''

ENTRIES = """
[fpl_tune.methods]
own_momentum = brought:ServerMomentum
[fpl_tune.data]
colours = brought:source
broken = brought:nothing
raising = raising:source
[fpl_tune.towers]
tiny = brought:towers
"""


def _method_of_the_readme() -> str:
    (text,) = (t for t in METHODS.read_text().split("```python\n") if "class ServerMomentum" in t)
    return text.split("```")[0]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as pip would leave it: the documented method, a data set and towers."""
    (tmp_path / "brought.py").write_text(_method_of_the_readme() + BROUGHT)
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "cache"))
    methods.catalogue.cache_clear()
    yield
    methods.catalogue.cache_clear()
    sys.modules.pop("raising", None)


def test_a_run_of_a_method_on_data_and_towers_that_are_all_brought() -> None:
    rounds: list[list[int]] = []
    frame = fpl_tune.run(
        "method=own_momentum", "method.beta=0.5", "method.n_ctx=2", "data.name=colours", "data.shots=4",
        "clip.name=tiny", "clip.pretrained=null", "protocol.rounds=2", "protocol.epochs=1", seeds=2,
        callback=lambda records: rounds.append([record["round"] for record in records]),
    )  # fmt: skip
    assert rounds == [[1, 1], [2, 2]]
    assert frame["round"].tolist() == [1, 2, 1, 2]
    assert frame["test/acc_mean"].between(0, 1).all()


def test_data_and_towers_keep_their_contracts() -> None:
    check_dataset(data.load(data.DataSpec("colours")))
    check_towers(load_towers("tiny"))


def test_they_are_known_by_name() -> None:
    assert "own_momentum" in config.options("method")
    with pytest.raises(ConfigError, match="Did you mean 'colours'"):
        data.load(data.DataSpec("colurs"))


def test_one_that_cannot_be_imported_names_its_package() -> None:
    with pytest.raises(ConfigError, match=r"'broken' of the package brought cannot be imported from brought:nothing"):
        plugins.load("data", "broken")


RAISING = """
from dataclasses import dataclass
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Proud(PromptFL):
    low: int = 1
    high: int = 2

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low is above high")

def helper():
    return 1 / 0

def call():
    helper()
"""


def _line(text: str) -> int:
    return next(number for number, line in enumerate(RAISING.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("\ncall()\n", "ZeroDivisionError: division by zero ({file}:{line})"),
        ("\nimport not_there\n", "ModuleNotFoundError: No module named 'not_there' ({file}:{last})"),
        ("\nx = = 1\n", "SyntaxError: invalid syntax ({file}:{last})"),
    ],
    ids=["raises", "imports", "syntax"],
)
@pytest.mark.parametrize("way", ["module", "entry point"])
def test_what_an_import_raises_is_told_with_file_and_line(more, why, way, tmp_path, monkeypatch) -> None:
    file = tmp_path / "raising.py"
    file.write_text(RAISING + more)
    if way == "module":
        monkeypatch.setenv(plugins.VARIABLE, "raising")
    with pytest.raises(ConfigError) as found:
        methods.find("raising:Proud") if way == "module" else plugins.load("data", "raising")
    last = len(RAISING.splitlines()) + 2
    assert why.format(file=file, line=_line("1 / 0"), last=last) in str(found.value)
    assert "\n" not in str(found.value)
    assert found.value.__cause__ is not None, "FPL_TUNE_FULL_ERROR shows the rest"


def test_options_that_a_plug_in_refuses_are_told_with_file_and_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    monkeypatch.setenv(plugins.VARIABLE, "raising")
    with pytest.raises(
        ConfigError, match=r"rejects its options: ValueError: low is above high \(.*raising.py:"
    ) as refused:
        methods.build({"name": "raising:Proud", "low": 3})
    assert f"raising.py:{_line('low is above high')})" in str(refused.value)


def test_a_module_of_another_folder_is_missed_here_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the outputs, which FPL_TUNE_OUTPUT names, it is found."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    (home / "mymethod.py").touch()
    monkeypatch.chdir(here)
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    with pytest.raises(ConfigError, match=r"mymethod\.py is not in this folder\. Run the command in the folder that"):
        plugins.module_of("mymethod:X", "method")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(home / "outputs"))
    for named in ("", "mymethod"):
        monkeypatch.setenv("FPL_TUNE_PLUGINS", named)
        with pytest.raises(ConfigError) as raised:
            plugins.module_of("mymethod:X", "method")
        assert f"mymethod.py is not in this folder. Run the command in {home}." in str(raised.value)
        assert ("FPL_TUNE_PLUGINS=mymethod" in str(raised.value)) == (not named)


def test_a_class_of_a_file_in_this_folder_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("import nothing_here\nclass Mine: pass\nclass _Own: pass\ndef made(): pass\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "mine.py"):
        with pytest.raises(ConfigError, match=r"mine\.py is in this folder\. Write method=mine:Mine\.$"):
            config.compose_run([f"method={name}"])
    (tmp_path / "mine.py").write_text("class Mine:")
    with pytest.raises(ConfigError, match=r"There is no method 'mine'\. Known: "):
        config.compose_run(["method=mine"])


def test_modules_that_an_override_names_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "first")
    plugins.trust(["method=own.module:Method", "data.name=other:source", "optim.lr=0.1", "run.time=10:30", "x=a.b"])
    assert plugins.trusted() == ["first", "own", "other"]
    assert {"first", "own", "other"} <= plugins.modules()


def test_a_file_is_no_module() -> None:
    with pytest.raises(ConfigError, match="method names a module, not a file: write method=own:Method"):
        plugins.module_of("own.py:Method", "method")


def test_the_current_folder_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of it hides a library."""
    (here := tmp_path / "here").mkdir()
    (here / "only_here.py").write_text("value = 7")
    monkeypatch.chdir(here)
    before = [*sys.path]
    monkeypatch.setattr(sys, "path", [*before])
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    for _ in range(2):
        assert plugins.module_of("only_here:value", "method").value == 7
    assert sys.path == [*before, str(here)]
    assert plugins.trusted() == ["only_here"]
