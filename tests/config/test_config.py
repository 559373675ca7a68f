"""Configuration: what is composed, what is refused and how, and what a cell's identity is made of."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import hydra
import pytest
from hydra import version
from hydra.core.global_hydra import GlobalHydra

from fpl_tune import config, methods
from fpl_tune.config import compose_run, compose_study, identity, tuned_row
from fpl_tune.config.fields import no_field
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import digest
from fpl_tune.core.paths import list_studies
from fpl_tune.methods.fedlora import FedLoRA
from fpl_tune.methods.fedpgp import FedPGP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.methods.zeroshot import ZeroShot
from fpl_tune.study.grid import expand


def test_defaults_and_overrides() -> None:
    run = compose_run(["method=promptfl", "method.n_ctx=4", "optim.lr=0.5", "protocol=quick"])
    assert run.method == PromptFL(n_ctx=4)
    assert (run.optim.lr, run.protocol.rounds) == (0.5, 3)
    assert run.partition.name == "disjoint", "auto is resolved to the data set's natural partition"


def test_a_users_study_builds_on_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.yaml").write_text("defaults: [lambda_sweep, _self_]\nseeds: 7\n")
    spec = config.compose_study("mine")
    theirs = config.compose_study("lambda_sweep")
    assert (spec.name, spec.seeds) == ("mine", 7)
    assert spec.node == {**theirs.node, "name": "mine", "seeds": 7}


def test_composing_leaves_the_hydra_of_an_application_as_it_was(tmp_path: Path) -> None:
    """Its configuration, version base, and the name of its job, which a sweep composes into every further job."""
    (tmp_path / "app.yaml").write_text("a: 1\n")
    (tmp_path / "wrong.yaml").write_text("defaults: [/study, {/protocol: nowhere}, _self_]\n")
    (tmp_path / "mine.yaml").write_text("defaults: [lambda_sweep, _self_]\n")
    with hydra.initialize_config_dir(str(tmp_path), job_name="theirs", version_base="1.2"):
        opened = GlobalHydra.instance().hydra
        compose_study(str(tmp_path / "mine.yaml"))
        with pytest.raises(ConfigError):
            compose_study(str(tmp_path / "wrong.yaml"))
        assert GlobalHydra.instance().hydra is opened
        assert hydra.compose("app", return_hydra_config=True).hydra.job.name == "theirs"
        assert hydra.compose("app") == {"a": 1}
        assert str(version.getbase()) == "1.2"
    compose_study(str(tmp_path / "mine.yaml"))
    assert not GlobalHydra.instance().is_initialized()


def test_the_first_composition_of_a_process_needs_no_version_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [lambda_sweep, _self_]\n")
    monkeypatch.setattr(version.VersionBase.instance(), "version_base", object())
    assert compose_study(str(tmp_path / "mine.yaml")).title == compose_study("lambda_sweep").title


@pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.system), False])
def test_defaults_that_are_merged_once_give_what_hydra_merges_with_each_study(every: bool, tmp_path: Path) -> None:
    """Beside an option of one's own, all is left to Hydra."""
    (tmp_path / "clip").mkdir()
    studies = list_studies()
    for name in studies if every else ("lambda_sweep", "trade_off", "fedmgp_t1", "zoo2026"):
        shutil.copy(studies[name], tmp_path)
        assert compose_study(str(tmp_path / studies[name].name)) == compose_study(name), name


def test_an_option_beside_a_study_is_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: [/study, {override /protocol: brief}, _self_]\n")
    with pytest.raises(ConfigError, match="brief"):
        compose_study(str(path))
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "brief.yaml").write_text("rounds: 3\n")
    assert compose_study(str(path)).protocol.rounds == 3


def test_seeds_are_taken_from_a_runs_overrides() -> None:
    given = ["optim.lr=0.5", "seeds=3", "seeds=[7,9]", "data.shots=2"]
    others, seeds = config.take_seeds(given)
    assert ([override.text for override in others], seeds) == (["optim.lr=0.5", "data.shots=2"], [7, 9])
    assert config.take_seeds(given[:2])[1] == [1, 2, 3]
    assert config.take_seeds([])[1] == [1]
    with pytest.raises(ConfigError, match="a run has one"):
        config.take_seeds(["seeds=until_decided"])


def test_a_leaf_has_its_own_rate_or_that_of_its_group_or_the_one_of_all() -> None:
    optim = OptimSpec(lr=0.1, groups={"gate": 1.0, "gate.bias": 2.0})
    rates = {leaf: optim.rate(leaf) for leaf in ("gate", "gate.bias", "gate.weight", "context.gate", "context")}
    assert rates == {"gate": 1.0, "gate.bias": 2.0, "gate.weight": 1.0, "context.gate": 0.1, "context": 0.1}


@pytest.mark.parametrize(
    ("overrides", "leaf", "rate"),
    [
        (["method=pfedmoap"], "gate.weight", 0.01),
        (["method=pfedmoap", "optim=adamw", "optim.lr=0.5"], "gate.weight", 0.01),
        (["method=pfedmoap_dp", "optim.lr=0.5"], "gate.weight", 0.01),
        (["method=pfedmoap", "optim.groups.gate=0.3"], "gate.weight", 0.3),
        (["method=pfedmoap", "optim.groups.gate=null", "optim.lr=0.5"], "gate.weight", 0.5),
        (["method=pfedmoap", "optim.lr=0.5"], "prompt", 0.5),
        (["method=fedsept", "optim.lr=0.5"], "gate.weight", 0.5),
        (["method=fedsept", "optim=pfedmoap", "optim.lr=0.5"], "gate.weight", 0.5),
        (["method=fedsept_dp", "optim.lr=0.5"], "gate.v.weight", 0.5),
        (["method=fedpgp"], "u", 1.0),
        (["method=fedpgp", "optim=fedpgp", "optim.lr=0.5"], "u", 0.5),
        (["method=fedpgp", "optim.lr=0.5"], "v", 0.5),
        (["method=promptfl", "stages=[{method:{name:fedpgp},rounds:2}]"], "u", 1.0),
    ],
)
def test_a_group_has_the_given_rate_or_that_of_its_method_or_the_one_of_all(
    overrides: list[str], leaf: str, rate: float
) -> None:
    run = compose_run(overrides)
    assert run.optim.rate(leaf) == rate
    assert config.to_run(config.as_dict(run)) == run, "also once it is stored"


def test_a_group_at_the_rate_of_all_is_no_part_of_what_a_cell_is() -> None:
    assert compose_run(["method=promptfl", "optim=fedpgp"]).optim.groups == {}
    run = compose_run(["method=fedpgp", "optim=fedpgp"])
    assert run.optim.groups == {"u": None}
    assert identity(run) == identity(replace(run, optim=replace(run.optim, groups={})))


def test_a_group_at_the_rate_of_all_follows_the_shared_schedule() -> None:
    optim = OptimSpec(groups={"gate": None, "u": 1.0}, schedule="shared_cosine")
    assert {leaf: optim.follows(leaf) for leaf in ("gate.weight", "u", "v")} == {
        "gate.weight": True,
        "u": False,
        "v": True,
    }


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(ConfigError, match=r"There is no study 'lambda_swep'\. Did you mean 'lambda_sweep'"):
        compose_study("lambda_swep")


def test_own_studies_come_before_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "lambda_sweep.yaml").write_text("defaults: [/study, _self_]\ntitle: mine\n")
    assert compose_study("lambda_sweep").title == "mine"


def test_an_option_chosen_from_outside_wins_over_the_file() -> None:
    spec = compose_study("lambda_sweep", ["method=promptfl", "~axes.method", "protocol=quick", "protocol.epochs=4"])
    assert spec.method == PromptFL(), "the file's d_gating belongs to another method"
    assert (spec.protocol.rounds, spec.protocol.epochs) == (3, 4)


def test_identity_is_the_content() -> None:
    one = compose_run(["method.n_ctx=4"])
    assert identity(one) == identity(compose_run(["method=promptfl", "method.n_ctx=4"]))
    assert identity(one) != identity(compose_run(["method.n_ctx=5"]))
    elsewhere = compose_run(["method.n_ctx=4", "data.root=/somewhere/else"])
    assert identity(one) == identity(elsewhere), "where the data lies is no part of what a cell is"
    assert len(identity(one)) == 16


def test_results_of_before_a_field_came_or_went_are_found_again() -> None:
    run = compose_run(["method=promptfl"])
    node = config.as_dict(run)
    del node["data"]["root"], node["clients"]
    for group, former in (("clip", {"tf32": False}), ("data", {"split_seed": 1}), ("partition", {"balanced": True})):
        node[group] |= former
    newer = {
        "protocol": "unseen global_model own_classes cross validation",
        "data": "names content",
        "clip": "preprocess",
    }
    for group, names in newer.items():
        for name in names.split():
            del node[group][name]
    assert identity(run) == digest(json.dumps(node, sort_keys=True, separators=(",", ":")))
    for changed in ("protocol.unseen=0.5", "clip.preprocess=dfn5b"):
        assert identity(run) != identity(compose_run(["method=promptfl", changed]))


def test_seeds_may_be_left_to_the_comparisons() -> None:
    spec = compose_study("lambda_sweep", ["seeds=until_decided", "looks=[2,4]"])
    assert spec.seeds == "until_decided"
    assert (spec.declared_looks(), spec.seed_list()) == ([2, 4], [1, 2, 3, 4])


def test_an_unknown_method_is_looked_for_in_the_folders_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class _Base: ...\nclass First(_Base): ...\nclass Second(_Base): ...\n")
    for written in ("mine", "mine.py"):
        with pytest.raises(ConfigError, match=r"method=mine:First or method=mine:Second\."):
            compose_run([f"method={written}"])
    with pytest.raises(ConfigError, match="There is no method 'other'"):
        compose_run(["method=other"])


def test_fields_by_dotted_name() -> None:
    node = config.as_dict(compose_run())
    config.set_field(node, "optim.lr", 0.3)
    assert config.get_field(node, "optim.lr") == 0.3
    assert config.get_field(node, "optim.nothing", "none") == "none"
    config.set_field(node, "optim.groups.gate", 0.1)
    with pytest.raises(ConfigError, match=r"Did you mean 'optim\.momentum'"):
        config.set_field(node, "optim.momentun", 0.3)
    assert config.to_run(node).optim.groups["gate"] == 0.1


def test_a_class_of_another_package_is_a_method() -> None:
    run = compose_run(["method=fpl_tune.methods.coop:CoOp", "method.n_ctx=2"])
    assert run.method == compose_run(["method=coop", "method.n_ctx=2"]).method
    assert identity(run) == identity(compose_run(["method=coop", "method.n_ctx=2"])), "one class, one method"
    with pytest.raises(ConfigError, match="must be a dataclass derived from"):
        compose_run(["method=fpl_tune.methods:build"])


def test_tuned_takes_the_row_of_the_method_or_of_the_one_it_wraps() -> None:
    moap = compose_run(["method=pfedmoap", "optim=tuned"]).optim
    assert (moap.lr, moap.batch, moap.groups) == (0.005, 8, {"gate": 0.001})
    assert compose_run(["method=pfedmoap_dp", "optim=tuned"]).optim == moap
    assert compose_run(["method=pfedmoap", "optim=tuned", "optim.lr=0.3"]).optim == replace(moap, lr=0.3)
    assert compose_run(["method=feddpt", "optim=tuned"]).optim.name == "adamw"
    with pytest.raises(ConfigError, match=r"optim=tuned has no row of full_model, nor .* in a run optim\.lr=0\.02\."):
        compose_run(["method=full_model", "optim=tuned"])


@dataclass(frozen=True)
class Child(FedPGP):
    """A user's method, derived from a published one."""


@dataclass(frozen=True)
class Grandchild(Child):
    """Derived from that again."""


def test_tuned_takes_the_row_of_the_nearest_class_that_a_method_derives_from() -> None:
    published = compose_run(["method=fedpgp", "optim=tuned"]).optim
    assert published.groups, "a rate of its own, which the child has too"
    assert compose_run([f"method={__name__}:Grandchild", "optim=tuned"]).optim == published
    wrapped = f"{{name: proximal, inner: {{name: '{__name__}:Child'}}}}"
    assert compose_run([f"method={wrapped}", "optim=tuned"]).optim == published
    rows = [tuned_row(method, "compact", "shapes") for method in (FedPGP(), Child(), ZeroShot())]
    assert [row and row[:2] for row in rows] == [("fedpgp", False), ("fedpgp", True), None]


@pytest.mark.parametrize(
    ("clip", "data", "chosen_on"),
    [("compact", "shapes", "shapes"), ("natural", "pacs", "pacs"), ("natural", "caltech101", "caltech101"),
     ("natural", "office_caltech10", "pacs"), ("ViT-B-16", "pacs", "shapes")],
)  # fmt: skip
def test_tuned_takes_a_row_of_the_towers_and_of_the_data_set_if_there_is_one(clip, data, chosen_on) -> None:
    row = tuned_row(FedPGP(), clip, data)
    assert row is not None
    assert row.under["data"] == chosen_on
    assert row.under["clip"] == ("natural" if clip == "natural" else "compact")


def test_a_method_without_a_row_takes_the_rate_that_it_is_given_and_else_what_the_rows_have() -> None:
    given = compose_run(["method=full_model", "optim=tuned", "optim.lr=0.3"]).optim
    coop = compose_run(["method=coop", "optim=tuned"]).optim
    assert given == replace(coop, lr=0.3)


def test_tuned_in_a_study_follows_the_method_of_each_cell(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: [/study, {override /optim: tuned}, _self_]\naxes: {method: [zeroshot, coop, fedamp]}\n")
    cells = expand(compose_study(str(path)))
    assert [cell.run.optim.lr for cell in cells[1:]] == [0.02, 0.005]


@pytest.mark.parametrize(
    ("fields", "name"), [("optim.lr: 0.3", "sgd"), ("optim: adamw, optim.lr: 0.3", "adamw"),
                         ("optim.name: adam, optim.lr: 0.3", "adam")],
)  # fmt: skip
def test_a_variant_beside_tuned_ones_may_have_rates_of_its_own(fields: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "defaults: [/study, {override /optim: tuned}, _self_]\n"
        f"axes: {{variant: [{{label: a, method: coop}}, {{label: b, method: full_model, {fields}}}]}}\n"
    )
    tuned, given = (cell.run.optim for cell in expand(compose_study(str(path))))
    assert (tuned.lr, given.lr, given.name) == (0.02, 0.3, name)


def test_stages_take_what_they_leave_open_from_the_run() -> None:
    run = compose_run(["method=promptfl_ft", "method.inner.n_ctx=3", "protocol.rounds=7", "protocol.epochs=0.5"])
    first, second = run.stages
    assert (first.method, first.rounds, first.epochs) == (PromptFL(n_ctx=3), 7, 0.5)
    assert (second.method, second.rounds, second.epochs) == (run.method, 1, 10)
    (only,) = compose_run(["method=promptfl"]).stages
    assert (only.method, only.rounds, only.epochs) == (PromptFL(), 10, 5)


def test_runs_that_do_the_same_have_one_id() -> None:
    explicit = "stages=[{method:{name:promptfl,n_ctx:16},rounds:10,epochs:5},{method:null,rounds:1,epochs:10}]"
    assert identity(compose_run(["method=promptfl_ft", explicit])) == identity(compose_run(["method=promptfl_ft"]))
    one = identity(compose_run(["method=promptfl"]))
    assert identity(compose_run(["method=promptfl", "stages=[{rounds:10,epochs:5}]"])) == one
    assert identity(compose_run(["protocol.epochs=5.0"])) == one
    assert len({one, *(identity(compose_run([f"protocol.{f}"])) for f in ("sampling=domain", "epochs=0.5"))}) == 3


def test_a_stored_method_that_is_not_at_hand_can_be_read() -> None:
    node = config.as_dict(compose_run())
    node["method"] = {"name": "gone:Method", "lam": 0.5}
    run = config.to_run(node, stored=True)
    assert config.as_dict(run) == node
    assert methods.name_of(run.method) == "gone:Method"
    with pytest.raises(ConfigError, match="FPL_TUNE_PLUGINS=gone"):
        run.method.check(None)  # pyright: ignore[reportArgumentType]


def test_a_wrapped_method_is_written_on_the_command_line() -> None:
    wrapped = "method={name: proximal, mu: 0.5, inner: {name: promptfl}}"
    run = config.compose_run([wrapped, "method.inner.n_ctx=2"])
    assert methods.as_dict(run.method)["inner"] == {"name": "promptfl", "n_ctx": 2, "weights": "size"}
    spec = config.compose_study("lambda_sweep", [wrapped, "~axes.method", "references=[]"])
    assert spec.method == config.compose_run([wrapped]).method, "nothing of the study's own method is left"
    assert (spec.node["method"]["name"], spec.node["stages"]) == ("proximal", [])


def test_fields_that_methods_gained_change_no_id_until_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the method and of those of stages."""
    stages = "stages=[{rounds: 1, method: {rank: 3}}, {rounds: 2}]"
    usual = [identity(compose_run(["method=fedlora", *more])) for more in ([], [stages])]
    assert identity(compose_run(["method=fedlora", "method.shared=a"])) not in usual
    monkeypatch.setattr(FedLoRA, "newer", ())
    assert not {identity(compose_run(["method=fedlora", *more])) for more in ([], [stages])} & set(usual)


def test_a_name_without_its_group_is_completed() -> None:
    node = config.as_dict(compose_run())
    for name, meant in (("rounds", "'protocol.rounds'"), ("lr", "'optim.lr'"), ("lam", "'method.lam'")):
        assert f"There is no field {name!r}. Did you mean {meant}" in str(no_field(name, node))


def test_a_method_of_a_file_needs_a_rate_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has a colon, which a variant must quote."""
    monkeypatch.chdir(tmp_path)
    code = "from fpl_tune.methods.full_model import FullModel\n\nclass Mine(FullModel): ...\n"
    (tmp_path / "rateless.py").write_text(code)
    says = r"has no row of rateless:Mine, .* variant \{method: 'rateless:Mine', optim\.lr: 0\.02\}"
    with pytest.raises(ConfigError, match=says):
        compose_run(["method=rateless:Mine", "optim=tuned"])


@pytest.mark.parametrize("name", ["fpl", "{study}/{study}", "{other}"])
def test_each_study_has_an_experiment_of_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking.experiment has \{study\} once"):
        compose_study("lambda_sweep", [{"tracking.experiment": name}])
