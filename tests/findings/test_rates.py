"""Where the rates of a study's methods come from, as a plan and a table say it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from fpl_tune import config, report
from fpl_tune.config import compose_study
from fpl_tune.core.paths import shipped
from fpl_tune.findings import rates
from fpl_tune.methods.fedpgp import FedPGP
from fpl_tune.study.grid import expand

from ..conftest import Asked, Compose, make_plan


@dataclass(frozen=True)
class Child(FedPGP):
    """A user's method, derived from a published one."""


MIXED = f"""
axes:
  variant:
    - {{label: A, method: promptfl}}
    - {{label: B, method: fedpgp}}
    - {{label: Child, method: "{__name__}:Child"}}
    - {{label: Given, method: full_model, optim.lr: 0.1}}
    - {{label: Usual, method: coop, optim: adamw}}
  partition: [disjoint, domain]
references: [{{method: zeroshot}}]
"""
SAID = (
    "Learning rates come from different sources (A, B: their rows in optim=tuned; Child: the row of the parent class "
    "fedpgp in optim=tuned; Given: given in the study; Usual: the default of optim=adamw)."
)
AS_TUNED = "protocol.rounds=20", "protocol.epochs=1"
"""The schedule under which most rows of optim=tuned were chosen."""


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "tests")


def test_a_plan_names_the_cells_of_each_source(compose: Compose, tmp_path: Path) -> None:
    plan = make_plan(compose(MIXED, "optim=tuned", *AS_TUNED), root=tmp_path)
    assert plan.sentence().endswith(SAID), plan.sentence()
    assert plan.totals()["rates"] == SAID


def test_six_cells_of_a_source_are_named_and_the_others_counted(compose: Compose) -> None:
    given = ", ".join(f"{{label: G{i}, method: promptfl, optim.lr: 0.{i}}}" for i in range(1, 9))
    spec = compose(f"axes: {{variant: [{given}, {{label: Usual, method: coop, optim: adamw}}]}}")
    said = "G1, G2, G3, G4, G5, G6 and 2 more: given in the study; Usual: the default of optim=adamw"
    assert rates.note(spec, expand(spec)) == f"Learning rates come from different sources ({said})."


ROWS = "axes: {method: [promptfl, fedmgp]}\nreferences: [{method: coop, optim.lr: 0.1}, {method: zeroshot}]"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (AS_TUNED, "(fedmgp: 5 rounds of 4 epochs, here 20 rounds of 1 epoch)"),
        (("protocol.rounds=5", "protocol.epochs=2"),
         "(promptfl: 20 rounds of 1 epoch, here 5 rounds of 2 epochs; fedmgp: 5 rounds of 4 epochs, here 5 rounds of 2 "
         "epochs)"),
        ((*AS_TUNED, "data=dtd", "axes.method=[promptfl,fedpgp]"),
         "(20 rounds of 1 epoch on shapes with compact, here 20 rounds of 1 epoch on dtd with compact)"),
    ],
    ids=["some", "all, differently", "other data"],
)  # fmt: skip
def test_the_note_says_where_rows_were_chosen_under_another_protocol(given, said, compose: Compose) -> None:
    spec = compose(ROWS, "optim=tuned", *given)
    what = "Rows of optim=tuned were chosen under another protocol"
    assert f"{what} {said}: other rates may be better." in rates.note(spec, expand(spec))
    assert what not in rates.note(compose(ROWS), expand(compose(ROWS))), "of no row"


def test_rows_name_the_protocol_of_the_study_that_chose_them() -> None:
    tables = config.read_mapping(shipped("conf", "tuned.yaml"), "The table of rates")
    for name, table in tables.items():
        study, _, setting = name.partition(", ")
        spec = compose_study(study)
        settings = ((cell.varied.get("setting", {}).get("label", ""), cell.run) for cell in expand(spec))
        run = next(run for label, run in settings if setting in ("", label))
        schedule = {"rounds": run.protocol.rounds, "epochs": run.protocol.epochs}
        assert table["under"] == {"data": run.data.name, "clip": run.clip.name, **schedule}
        assert table["rows"].keys() <= {variant["method"] for variant in spec.axes["variant"]}


def test_tables_say_it_in_their_note(make_store) -> None:
    store = make_store(["optim=tuned", *AS_TUNED], body=f"{MIXED}seeds: 2\n")
    page = report.build(store)
    assert SAID in page.read_text(encoding="utf-8")
    assert SAID in (store.folder / "table.md").read_text(encoding="utf-8")
    assert SAID in (store.folder / "table.tex").read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize(
    "body",
    [
        "axes: {method: [promptfl, fedpgp, zeroshot], optim.lr: [0.1, 0.2]}",
        "axes: {variant: [{label: slow, optim.lr: 0.1}, {label: usual}]}",
        "axes: {method: [promptfl, fedpgp]}\nreferences: [{method: fedprox}]",
    ],
    ids=["one axis for all", "one method", "one default"],
)
def test_nothing_is_said_where_all_methods_have_one_source(body: str, compose: Compose) -> None:
    spec = compose(body)
    assert rates.note(spec, expand(spec)) == ""


def test_a_search_of_the_rate_is_the_source_of_all(compose: Compose, tmp_path: Path) -> None:
    axes = "axes: {variant: [{label: A, method: promptfl}, {label: B, method: coop, optim: adamw}]}"
    search = "search: {sampler: random, trials: 2, space: {optim.lr: {low: 0.01, high: 0.1}}, only: [%s]}"
    said = [make_plan(compose(f"{axes}\n{search % only}"), root=tmp_path).rates != ""
            for only in ("optim.lr", "method.n_ctx")]  # fmt: skip
    assert said == [False, True]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("axes: {variant: [{label: A, method: promptfl}, {label: Given, method: full_model, optim.lr: 0.1}]}",
         "(A: their rows in optim=tuned; Given: given in the study)"),
        ("axes: {method: [promptfl, fedpgp], partition: [iid, dirichlet]}\nreferences: [{method: coop, optim: adamw}]",
         "(promptfl, fedpgp: their rows in optim=tuned; coop adamw: the default of optim=adamw)"),
        ("axes: {}\nreferences: [{method: coop, optim: adamw}]",
         "(the trials: their rows in optim=tuned; coop adamw: the default of optim=adamw)"),
    ],
    ids=["variants", "methods and partitions", "no axes"],
)  # fmt: skip
def test_a_search_s_note_names_parts_of_the_axes_and_no_trials(axes: str, said: str, compose: Compose) -> None:
    space = "{protocol.participation: {low: 0.25, high: 1.0}, protocol.epochs: [1, 2, 3]}"
    only = "[protocol.participation, protocol.epochs]"
    spec = compose(f"{axes}\nsearch: {{sampler: random, trials: 5, space: {space}, only: {only}}}", "optim=tuned")
    trials, references = Asked(spec).all(), [cell for cell in expand(spec) if cell.is_reference]
    assert len(trials) >= 5
    text = rates.note(spec, [*trials, *references])
    assert said in text
    assert "participation" not in text, "nothing that is searched"
