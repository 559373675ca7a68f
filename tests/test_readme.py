"""The README says what is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

from fpl_tune import config
from fpl_tune.cli.common import app
from fpl_tune.core import paths
from fpl_tune.core.paths import list_studies
from fpl_tune.method import generator
from fpl_tune.methods.kgcoop import KgCoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.search.compose import compose
from fpl_tune.study.grid import expand
from fpl_tune.testing import assert_same, check_method, play, toy_task
from fpl_tune.wrappers.proximal import Proximal

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "docs").rglob("*.md")]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}


def test_the_methods_are_named_and_counted() -> None:
    table = README.split("<!-- methods:begin -->")[1].split("<!-- methods:end -->")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert named == {*config.options("method")} - {path.stem for path in (ROOT / "fpl_tune" / "wrappers").glob("*.py")}
    assert f"| methods on CLIP | {len(named)} |" in README


def test_every_link_leads_to_a_file() -> None:
    for page in FILES:
        for name in re.findall(r"\]\((?!https?:)([\w./]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), f"{page.name} links {name}"


BLOCKS = [
    (kind, text) for page in PAGES.values() for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", page, re.M | re.S)
]
PYTHON = [text for kind, text in BLOCKS if kind == "python" and not text.startswith(">>>")]
METHOD = next(text for text in PYTHON if "class ServerMomentum" in text)
CHECKED = next(text for text in PYTHON if "print(check_method(" in text)
EXTENDED = next(text for text in PYTHON if "class MarginPGP" in text)
LOSS = next(text for text in PYTHON if "class Anchored" in text)
SCHEDULED = next(text for text in PYTHON if "class Annealed" in text)
NOTEBOOK = next(text for text in PYTHON if "fpl_tune.load_study(" in text)
TRACES = next(text for text in PYTHON if "compare_trace(" in text)
MAPPING = next(text for text in PYTHON if text.startswith("overrides = {"))
ENCODER = next(text for text in PYTHON if "encode_prompts" in text)
COMMANDS = [
    re.split("[#>]", command)[0].strip()
    for kind, text in BLOCKS
    if kind == "bash"
    for command in re.split(r"[;\n]", text)
    if command.strip()
]
OURS = [command for command in COMMANDS if command.startswith("fpl-tune")]
PROSE = [
    re.sub(r"^```.*?^```", "", page, flags=re.M | re.S).replace("\n", " ")
    for name, page in PAGES.items()
    if name != "CHANGELOG.md"
]
INLINE = sorted({code for page in PROSE for code in re.findall(r"`([^`]+)`", page) if not re.search(r"[A-Z]{3}", code)})
COMPOSED = [code for code in INLINE if re.match(r"fpl-tune (?!cluster)\S+ [^|]+$", code)]
OVERRIDES = [
    code
    for code in INLINE
    if re.match(rf"({'|'.join(config.GROUPS)})(\.[\w.]+)?=.", code) and not re.search("=(my|package)", code)
]


ROWS = re.findall(r"^\| (`\w.*?) \| .* \| (.*?) \| .*? \| .*?\|$", PAGES["docs/reference/zoo.md"], re.M)


@pytest.mark.parametrize(("named", "defaults"), ROWS)
def test_the_defaults_beside_an_equation_are_those_of_a_method_in_its_row(named: str, defaults: str) -> None:
    runs = [config.compose_run([f"method={name}"]).method for name in re.findall(r"`(\w+)`", named)]
    for field, value in re.findall(r"`(\w+)` (\d[\d.e-]*)", defaults):
        assert float(value) in {float(getattr(method, field)) for method in runs}, f"{named}: {field}"


def test_the_makefile_has_what_is_named() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    texts = [text for page in PAGES.values() for text in re.findall(r"`make ([a-z -]+)`", page)]
    named = {word for text in texts for word in text.split()}
    named |= {command.split()[1] for command in COMMANDS if command.startswith("make")}
    assert {"study", "test"} <= named <= targets


@pytest.mark.parametrize("command", [*OURS, *COMPOSED])
def test_every_command_is_one(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verb and options exist; a study or a run that it names composes with the overrides it names."""
    monkeypatch.setattr(paths, "study_file", lambda name: None)  # the user's own studies
    program, *words = shlex.split(command)
    verb: Any = typer.main.get_command(app)
    while hasattr(verb, "commands"):
        verb = verb.commands[words.pop(0)]
    given = verb.make_context(program, words).params
    overrides, name = given.get("overrides") or [], given.get("name") or given.get("study")
    if "server_momentum" in command or "mine:Mine" in command:
        return
    if name in list_studies():
        spec = config.compose_study(name, overrides)
        assert spec.name == name
        assert expand(spec)
    elif name is None and overrides:
        config.compose_run(config.take_seeds(overrides)[0])


@pytest.mark.parametrize("words", OVERRIDES)
def test_every_override_in_the_text_composes(words: str) -> None:
    """As the shell would pass it if it were quoted where it needs to be."""
    overrides = re.findall(r"[\w.]+=(?:\{.*\}|\[.*\]|\S+)", words)
    assert overrides, "the text names none"
    config.compose_run(overrides)


LISTED = [*(ROOT / "studies").glob("*.yaml"), *(ROOT / "fpl_tune" / "config" / "conf" / "method").glob("*.yaml")]


@pytest.mark.parametrize("path", LISTED, ids=lambda path: path.stem)
def test_the_line_that_is_listed_is_a_sentence(path: Path) -> None:
    """`fpl-tune ls` prints the first line of a file's comment."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package"))
    assert next(lines)[-1] in ".?)"


def test_every_study_has_a_row() -> None:
    table = PAGES["docs/reference/studies.md"].split("<!-- studies:begin -->")[1].split("<!-- studies:end -->")[0]
    named = set()
    for cell in re.findall(r"^\| (.*?) \|", table, re.M):
        stem = re.match(r"`(\w+_)`: (.*)", cell)
        named |= {stem.group(1) + part for part in stem.group(2).split()} if stem else set(re.findall(r"`(\w+)`", cell))
    assert named == {path.stem for path in (ROOT / "studies").glob("*.yaml")}


@pytest.mark.system
def test_the_trace_in_the_text_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(TRACES, {})
    assert capsys.readouterr().out.startswith("True  ComparedArray(name='accuracy/1', verdict='equal', difference=0.0")


def test_the_notebook_in_the_text_runs(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(name="lambda_sweep")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(store.root))
    seen: dict[str, Any] = {}
    small = (
        '{"data": {"train_per_class": 8, "test_per_class": 2, "domains": ["clipart"]}, "protocol.epochs": 1}, seeds=2'
    )
    exec(NOTEBOOK.replace("seeds=2", small), seen)
    assert seen["study"].answer
    assert seen["rounds"]["round"].tolist() == [1, 2, 1, 2]
    assert len(seen["study"].summary()) == 4


def test_the_overrides_in_the_text_make_a_run() -> None:
    seen: dict[str, Any] = {}
    exec(MAPPING, seen)
    run = config.compose_run([seen["overrides"]])
    assert (run.data.domains, run.optim.groups["gate"]) == (["clipart"], 0.01)


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    small = '"data.train_per_class": 8, "data.test_per_class": 2, "data.domains": ["clipart"], "protocol.epochs": 1'
    text = text.replace('"axes.', f'"execution.executor": "inline", "seeds": 2, {small}, "axes.')
    text = text.replace('"method":', f'{small}, "method":').replace("seeds=3", "seeds=2")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path))
    exec(text, {})
    answer, *table = capsys.readouterr().out.splitlines()
    assert "λ" in answer
    assert sum(line.strip("* ").startswith("lam=") for line in table) == 2


def test_the_encoder_example_runs() -> None:
    seen: dict[str, Any] = {}
    exec(ENCODER, seen)
    towers = seen["towers"]
    assert seen["text"].shape == (10, 3, towers.embed_dim)
    plain = towers.encode_prompts(seen["context"], towers.sentences(seen["names"], seen["start"].shape[0]), plain=True)
    torch.testing.assert_close(seen["text"], plain, rtol=1e-4, atol=1e-5)
    assert (seen["context"].grad.flatten(1).norm(dim=1) > 0).all(), "a gradient for every client"


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 800


def test_the_pages_of_the_docstrings_are_current() -> None:
    """In a process of its own: Ray adds a parameter to the methods of actors when it starts."""
    tool = [sys.executable, str(ROOT / "docs" / "site" / "document.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def brought(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the code in the text, as the user's file would be."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(text, module.__dict__)
    return module


STUDIES = {
    (found[1] if (found := re.match(r"# (?:studies/)?(\w+)", text)) else "unnamed"): text
    for kind, text in BLOCKS
    if kind == "yaml" and "defaults: [/study" in text
}
CELLS = {"momentum": 3 * 2 + 1, "table": 6 * 2, "gate": 5 * 2 + 2 * 2, "shots": 2 * 2 * 2 + 2, "unnamed": 4 * 3 + 3}
"""References once in each cell of the other axes, those that do not train once for all settings of training."""


@pytest.mark.parametrize("name", STUDIES)
def test_the_studies_in_the_text_compose(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / f"{name}.yaml").write_text(STUDIES[name])
    (tmp_path / "server_momentum.py").write_text(METHOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    brought("server_momentum", METHOD, monkeypatch)
    study = compose(name, [])
    assert len(study.cells) == CELLS.get(name, len(study.cells))
    assert name in CELLS or study.search is not None, "a search has no cells beforehand, or references alone"


def test_the_method_in_the_text_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = brought("server_momentum", METHOD, monkeypatch)
    exec(CHECKED, {})
    assert "absent_clients_are_untouched" in capsys.readouterr().out
    config.compose_run(["method=server_momentum:ServerMomentum", "method.beta=0.5"])
    task = toy_task()
    plain, still = (play(m, [task])[-1][0] for m in (PromptFL(n_ctx=2), module.ServerMomentum(beta=0.0, n_ctx=2)))
    assert_same(still._replace(server={}), plain, tolerance=1e-12)


def test_the_extended_method_in_the_text_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin that no two cosines reach, every class adds a difference that gradients see."""
    module = brought("margin_pgp", EXTENDED, monkeypatch)
    method = module.MarginPGP(n_ctx=2, rank=1)
    check_method(method)
    run = config.compose_run(["method=margin_pgp:MarginPGP", "method.margin=0.1", "optim=tuned"])
    assert run.optim == config.compose_run(["method=fedpgp", "optim=tuned"]).optim
    one, other = torch.nn.functional.normalize(torch.randn(2, 3, 4), dim=-1)
    gap = (one * one).sum(-1) - (one * other).sum(-1)
    found = method.contrast(one, other, one)
    torch.testing.assert_close(found, (method.margin - gap).clamp(min=0) / method.temperature)


def test_the_loss_in_the_text_is_promptfl_without_its_terms_and_fedprox_and_kgcoop_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = brought("anchored", LOSS, monkeypatch)
    check_method(module.Anchored(n_ctx=2))
    task = toy_task()
    for terms, other in (
        ({"w": 0.0, "mu": 0.0}, PromptFL(n_ctx=2)),
        ({"w": 0.0, "mu": 0.5}, Proximal(PromptFL(n_ctx=2), mu=0.5)),
        ({"w": 3.0, "mu": 0.0}, KgCoOp(n_ctx=2, w=3.0, words="")),
    ):
        mine, theirs = (play(method, [task])[-1][0] for method in (module.Anchored(n_ctx=2, **terms), other))
        assert_same(mine, theirs, tolerance=1e-12)


def test_the_schedule_in_the_text_falls_to_one_and_is_over_when_models_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = brought("annealed", SCHEDULED, monkeypatch)
    method, task = module.Annealed(n_ctx=2, heat=3.0), toy_task()
    check_method(method)
    state, clients = method.init(task, generator("start")), torch.tensor([0, 1])
    heats = [method.start(task.during(r, 4, key=1), state, clients).buffers["heat"].flatten().tolist() for r in (1, 4)]
    assert heats == [[2.5, 2.5], [1.0, 1.0]]
    assert method.deploy(task, state, clients).buffers["heat"].flatten().tolist() == [1.0, 1.0]
