"""`fpl-tune new`: what it writes runs, from the folder it is written to."""

import sys
from pathlib import Path

import pytest

from fpl_tune import data, methods
from fpl_tune.cli.new import class_name, render
from fpl_tune.config import compose_study
from fpl_tune.method import Method
from fpl_tune.study.grid import expand
from fpl_tune.testing import check_dataset

from .conftest import Command

SMALL = "data.train_per_class=12 data.test_per_class=3 data.shots=4 data.domains=[clipart] protocol.epochs=1"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "guides" / "method.md"


@pytest.fixture(autouse=True)
def _no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the current folder are imported as in a new process."""
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_method", "own_child", "own_data"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_method_runs(command: Command) -> None:
    done = command("new", "method", "own_method")
    assert (done.code, done.out) == (0, "own_method.py\n")
    assert "next: fpl-tune run method=own_method:OwnMethod" in done.err
    done = command("run", "method=own_method:OwnMethod", "method.beta=0.5", *SMALL.split(), "protocol.rounds=1")
    assert done.code == 0, done.err


def test_a_method_that_derives_from_another_differs_in_one_function(command: Command) -> None:
    assert command("new", "method", "own_child", "--from", "pfedmoap").code == 0
    done = command("run", "method=own_child:OwnChild", "method.softness=3", *SMALL.split(), "protocol.rounds=1")
    assert done.code == 0, done.err


def test_every_method_that_wraps_no_other_is_a_parent() -> None:
    for name, kind in methods.catalogue().items():
        if "inner" in {field.name for field in methods.hyper_parameters(kind)}:
            continue
        module: dict[str, type[Method]] = {}
        exec(render("method", "own_method", parent=name)[1], module)
        own = module["OwnMethod"]()
        assert isinstance(own, kind)
        assert {**vars(own), "softness": 0} == {**vars(kind()), "softness": 0}


def test_a_study_of_a_method_in_the_folder_runs(command: Command, here: Path) -> None:
    for words in ("new method own_method", "new study own --method own_method:OwnMethod"):
        assert command(*words.split()).code == 0
    spec = compose_study("own")
    assert methods.name_of(spec.method) == "own_method:OwnMethod"
    (here / "studies" / "other.yaml").write_text(
        "defaults: [/study, _self_]\nmethod: {name: 'own_method:OwnMethod', n_ctx: 2}\n"
        "references: [{method: 'own_method:OwnMethod'}]\naxes: {method: {beta: [0.0]}}\n"
    )
    assert len(expand(compose_study("other"))) == 2
    assert len(expand(spec)) == 3, "two learning rates, and a reference that trains nothing and so has none"
    quick = f"{SMALL} execution.executor=inline tracking.enabled=false protocol.rounds=1 seeds=1"
    done = command("study", "own", *quick.split(), "method.n_ctx=2")
    assert done.code == 0, done.err


def test_data_keep_the_contract_and_run(command: Command) -> None:
    assert command("new", "data", "own_data").code == 0
    check_dataset(data.load(data.DataSpec("own_data:source")))
    done = command("run", "data.name=own_data:source", "protocol.rounds=1", "protocol.epochs=1", "seeds=2")
    assert done.code == 0, done.err
    done = command("run", "data.name=own_data:images")
    assert "must name a fpl_tune.data.sources.Source" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("new method torch", "torch is the name of an installed module. Choose another name."),
        ("new study zoo", "zoo is a shipped study, which the new one would hide."),
        ("new study own --method promtfl", "There is no method 'promtfl'. Did you mean 'promptfl'"),
        ("new data ../own", "NAME consists of letters, digits and '_', 60 at most, but is '../own'."),
        ("new method taken", "taken.py exists. Choose another name."),
        ("new method own --from promtfl", "There is no method 'promtfl'. Did you mean 'promptfl'"),
        ("new method own --from fedprox", "fedprox wraps promptfl. Derive from promptfl and wrap your class"),
        ("new study own --from promptfl", "--from names the parent of a method, but own is to be a study."),
    ],
)
def test_a_name_that_cannot_be_is_refused(words: str, message: str, command: Command, here: Path) -> None:
    (here / "taken.py").touch()
    done = command(*words.split())
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert sorted(path.name for path in here.iterdir()) == ["taken.py"]


def test_the_documented_method_is_the_written_one(here: Path) -> None:
    """Which keeps the contract, as the test of the documents says."""
    name = "server_momentum"
    assert class_name(name) == "ServerMomentum"
    assert f"```python\n{render('method', name)[1]}```" in DOCS.read_text(encoding="utf-8")
