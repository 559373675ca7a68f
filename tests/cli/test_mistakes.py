"""The most likely mistakes: each is one line that says the rule, the value and the remedy, and starts nothing."""

import os
import warnings
from pathlib import Path

import pytest

from fpl_tune.study.lock import locked

from .conftest import Command

SWEEP = "study lambda_sweep execution.executor=inline"
MISTAKES = [
    # names
    ("stduy lambda_sweep", 2, "No such command 'stduy'. Did you mean 'study'?"),
    ("study", 2, "Missing argument 'STUDY'. See fpl-tune study -h."),
    ("ls method", 2, "'method' is not one of 'methods', 'data'"),
    (f"{SWEEP} method=promptfl", 2, "promptfl has no field 'lam'. Known: n_ctx, weights."),
    ("plan lambda_sweep prune.rule=halvng", 2, "halvng"),
    ("data show --seed=-1", 2, "Invalid value for '--seed'"),
    ("study here.yaml", 2, "There is no file 'here.yaml'. A study is a name (fpl-tune ls studies) or a YAML file"),
    (
        "run method=nomodule:Thing",
        2,
        "method 'nomodule:Thing' cannot be imported: nomodule.py is not in this folder. Run the command in the folder "
        "that holds it.",
    ),
    ("run method=nomodule.py:Thing", 2, "method names a module, not a file: write method=nomodule:Thing."),
    ("run promptfl", 2, "'promptfl' is not an override. Write FIELD=VALUE. For the method, method=promptfl."),
    ("study lambda_sweep seed=3", 2, "There is no field 'seed'. Did you mean 'seeds' or "),
    (
        "study lambda_sweep report.refernce=x",
        2,
        "There is no field 'report.refernce'. Did you mean 'report.reference'?",
    ),
    ("run protocol.round=1", 2, "There is no field 'protocol.round'. Did you mean 'protocol.rounds'?"),
    (
        "run clip=vitb16",
        2,
        "There is no clip 'vitb16'. Did you mean 'vit_b16'? Other models of open_clip are "
        "named by fields: clip.name=ViT-L-14 clip.pretrained=openai.",
    ),
    ("show nothing", 2, "There is no study with results 'nothing'. Known: newer."),
    # values
    ("ui --port 99999", 2, "Invalid value for '--port'"),
    (
        "plan lambda_sweep axes.method.lam=[0,0.5",
        2,
        "'axes.method.lam=[0,0.5' is not an override. Close all brackets",
    ),
    ("run data.domains=[photo)", 2, "in a shell, put quotes around an override with brackets"),
    # values that do not go together
    ("run method.n_ctx=100", 2, "has 104 tokens (100 of them context), but the text tower reads at most 40"),
    # overrides without effect
    ("study fedpgp_t9 method=promptfl", 2, "method=promptfl has no effect: the study sweeps variant."),
    # files
    ("study broken", 2, "did not find expected ',' or ']' in line 2, column 29"),
    ("show newer", 2, "outputs/newer has layout 999, but this version of fpl-tune reads"),
    ("run clip=rn50 clip.pretrained=nowhere.pt", 2, "pretrained='nowhere.pt' is neither a file nor a tag of RN50"),
    # the machine
    (f"{SWEEP} data=pacs data.root=nowhere", 3, "data.root=nowhere is not a folder. It should hold PACS/"),
    (f"{SWEEP} execution.device=cuda", 3, "execution.device=cuda asks for a GPU, but PyTorch sees none"),
]


@pytest.fixture(autouse=True)
def _folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that is no YAML, and one that a later release wrote."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (here / "studies").mkdir()
    (here / "studies" / "broken.yaml").write_text("defaults: [/study, _self_]\naxes: {method: {n_ctx: [1, 2}\n")
    (here / "outputs" / "newer").mkdir(parents=True)
    (here / "outputs" / "newer" / "study.yaml").write_text("schema: 999\nname: newer\n")


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_is_one_line_and_starts_nothing(
    words: str, code: int, message: str, command: Command, here: Path
) -> None:
    done = command(*words.split())
    (line,) = done.err.splitlines()
    assert (done.code, line.startswith("fpl-tune: ")) == (code, True), line
    assert message in line
    assert "\x1b[" not in line
    assert not list((here / "outputs").glob("*/cells/*/seed=*")), "nothing was started"


def test_a_study_that_is_run_elsewhere_names_its_process(command: Command, here: Path) -> None:
    with locked(here / "outputs" / "lambda_sweep"):
        done = command(*SWEEP.split())
    assert done.code == 2
    assert f"process {os.getpid()}" in done.err
    assert "fpl-tune stop lambda_sweep" in done.err


def test_an_output_folder_that_cannot_be_written(command: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").touch()
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(here / "file" / "outputs"))
    done = command(*SWEEP.split())
    assert done.code == 3
    assert "Name another one in FPL_TUNE_OUTPUT" in done.err


@pytest.mark.parametrize("words", [SWEEP, "plan lambda_sweep", "run", "data prepare"])
def test_a_cache_that_cannot_be_written(
    words: str, command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").touch()
    for name in ("FPL_TUNE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(here / "file"))
    before = set(here.rglob("*"))
    done = command(*words.split())
    (line,) = done.err.splitlines()
    assert done.code == 3
    assert line.endswith("(Not a directory). Name another folder in FPL_TUNE_CACHE.")
    assert set(here.rglob("*")) == before


@pytest.mark.parametrize(
    "words", ["study nosuch", f"{SWEEP} optim.lr=x", f"{SWEEP} method.n_ctx=100", "plan lambda_sweep", "show x", "ui"]
)
def test_what_starts_nothing_makes_no_folder(
    words: str, command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(here / "new" / "outputs"))
    assert command(*words.split()).code == (3 if words == "ui" else 0 if words.startswith("plan") else 2)
    assert not (here / "new").exists()


def test_a_warning_is_a_line_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpl_tune.cli.common.__version__", "1")

    def warn(*_: object, **__: object) -> int:
        warnings.simplefilter("default")
        warnings.warn("RN50 has random weights.", UserWarning, stacklevel=1)
        warnings.warn("a library's notice to programmers", FutureWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("fpl_tune.cli.app", warn)
    assert command("ls").err == "fpl-tune: RN50 has random weights.\n"


RAISING = """
from dataclasses import dataclass
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Raising(PromptFL):
    def init(self, task, rng, before=None):
        raise KeyError("of somebody else")
"""


def test_what_a_plug_in_raises_is_a_line_with_its_place_and_on_request_all_calls(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "raising.py").write_text(RAISING)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "raising")
    small = "method=raising:Raising data.train_per_class=12 data.test_per_class=3 data.shots=4 data.domains=[clipart]"
    study = f"{SWEEP} -q {small} ~axes.method +axes.optim.lr=[0.1] references=[] seeds=1 tracking.enabled=false"
    for words in (f"run {small}", study):
        done = command(*words.split())
        (line,) = done.err.splitlines()
        assert done.code == 1
        assert f"KeyError: 'of somebody else' ({here}/raising.py:8)" in line
    monkeypatch.setenv("FPL_TUNE_FULL_ERROR", "1")
    with pytest.raises(KeyError):
        command("run", *small.split())
    assert "Traceback" in command(*study.split(), "name=again").err
