"""Study files and overrides that cannot be: each is refused in one line, soon, whatever is wrong with it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fpl_tune.config import RunSpec, StudySpec, as_dict, compose_run, compose_study, identity, to_run
from fpl_tune.core.errors import ConfigError
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import expand

HEAD = "defaults: [/study, _self_]\n"
SECONDS = 5.0


def outcome(call: Callable[[], Any]) -> str:
    """The message that a call is refused with, "" where it is not; any other exception fails the test."""
    began = time.process_time()
    try:
        call()
        said = ""
    except ConfigError as problem:
        said = str(problem)
    assert "\n" not in said
    assert len(said) < 2_000
    assert time.process_time() - began < SECONDS
    return said


FILES: dict[str, tuple[bytes | str, str]] = {
    "utf_16": (HEAD.encode("utf-16"), "YAML in UTF-8"),
    "utf_32": (HEAD.encode("utf-32"), "YAML in UTF-8"),
    "utf_16_without_mark": (HEAD.encode("utf-16-le"), "YAML in UTF-8"),
    "latin": (b"defaults: [/study]\ntitle: \xff\xfe", "YAML in UTF-8"),
    "empty": ("", "is empty"),
    "scalar": ("5", "holds 5"),
    "bare": ("seeds: 3", "does not say what it builds on"),
    "no_data": (HEAD + "data: null", "data cannot be null"),
    "optim_5": (HEAD + "optim: 5", "optim must be a mapping"),
    "itself": ("defaults: [/study, itself]", "builds on itself: itself.yaml -> itself.yaml"),
    "absent": ("defaults: [/study, lamda_sweep]", "Did you mean 'lambda_sweep'"),
    "twice": ("defaults: [/study, /study]", "more than once"),
    "defaults_5": ("defaults: 5", "must be a list"),
    "option": ("defaults: [/study, {override /method: promtfl}]", "Did you mean 'promptfl'"),
    "group": (
        "defaults: [/study, {override /metod: promptfl}]",
        "group.yaml: There is no group of options 'metod'. Did you mean 'method'",
    ),
    "alias_in_itself": (HEAD + "let: &a {x: *a}", "is not: "),
    "circle": (HEAD + "let: {a: '${let.b}', b: '${let.a}'}", "cannot be composed"),
    "python": (HEAD + "title: !!python/object/apply:os.system [ls]", "constructor"),
    "tab": ("defaults:\t[/study]\n\tx: 1", "in line 2"),
    "environment": (HEAD + "title: ${oc.env:HOME}", r"\$\{oc.env:HOME\}"),
    "environment_nested": (HEAD + "title: '${let.${oc.env:HOME}}'", "only references"),
    "reference": (HEAD + "title: ${let.nothing}", r"refers to \$\{let.nothing\}, but has no such field"),
    "key_twice": (HEAD + "seeds: 3\nseeds: 4", "gives 'seeds' a second time in line 3"),
    "dotted": (HEAD + "optim.lr: 0.1", r"has the key 'optim.lr'.* Write optim: \{lr: ...\}\."),
    "dotted_deep": (HEAD + "optim.groups.u: 1", r"Write optim: \{groups: \{u: ...\}\}\."),
    "dotted_too": (HEAD + "optim: {lr: 0.1}\noptim.lr: 0.2", "gives optim.lr two values, 0.1 and 0.2. Remove one"),
    "axis_twice": (
        HEAD + "axes: {method: {n_ctx: [2]}, method.n_ctx: [4]}",
        r"gives axes.method.n_ctx two values, \[2\] and \[4\]",
    ),
    "variant_two_values": (
        HEAD + "axes: {v: [{label: a, optim.lr: 1, optim: {lr: 2}}]}",
        "gives optim.lr two values, 1 and 2",
    ),
    "reference_two_values": (
        HEAD + "references: [{optim.lr: 1, optim: {lr: 1}}]",
        "gives optim.lr two values, 1 and 1",
    ),
    "range_twice": (
        HEAD + "search: {space: {optim.lr: {low: 1, high: 2}, optim: {lr: {low: 0, high: 2}}}}",
        "search.space.optim.lr.low two values",
    ),
    "base_two_values": (
        "defaults: [base, _self_]\naxes: {method.n_ctx: [4]}",
        "base_two_values.yaml gives axes.method",
    ),
    "base_unread": ("defaults: [base, _self_]\ntitle: 'no'\nname: on", "has `on` in line 3"),
    "claim_two_values": (
        HEAD + "report: {claims: {a: {says: a, cells: {method.n_ctx: 2, method: {n_ctx: 4}}, versus: {x: 1}}}}",
        "report.claims.a.cells.method.n_ctx two values",
    ),
    "deep_key_twice": (
        HEAD + "references:\n  - optim.lr: 1\n    optim.lr: 2",
        "gives 'optim.lr' a second time in line 4",
    ),
    "number_key_twice": (HEAD + "let: {1: 2, 1: 3}", "gives '1' a second time in line 2"),
    "quoted_key_twice": (HEAD + "let: {a: 2, 'a': 3}", "gives 'a' a second time in line 2"),
    "merge_twice": (HEAD + "let: {x: &x {a: 1}, <<: *x, <<: *x}", "gives '<<' a second time"),
    "anchor_twice": (HEAD + "let: {x: &a 1, y: &a 2}", "duplicate anchor"),
    "documents": (HEAD + "---\nseeds: 4", "single document"),
    "list_of_words": (HEAD + "axes: {optim.lr: 0.1, 0.2}", "An axis is a list"),
    "decimal_comma": (HEAD + "optim: {lr: 0,1}", "no field 'optim.1'"),
    "colon": (HEAD + "title: a: b", "mapping values are not allowed"),
    "truth_text": (HEAD + "partition: {vary: 'on'}", "partition.vary must be true or false, but is 'on'"),
    "truth_number": (HEAD + "partition: {vary: 1}", "partition.vary must be true or false, but is 1"),
    "truth_letter": (HEAD + "partition: {vary: y}", "partition.vary must be true or false, but is 'y'"),
    "literal_number": (HEAD + "clip: {quick_gelu: 1}", "clip.quick_gelu must be true or false, but is 1"),
    "auto_number": (HEAD + "execution: {graphs: 1.0}", "execution.graphs must be true or false, but is 1.0"),
    "number_text": (HEAD + "optim: {lr: '0.1'}", "optim.lr must be a number, but is '0.1'"),
    "number_truth": (HEAD + "optim: {lr: true}", "optim.lr must be a number, but is True"),
    "whole_truth": (HEAD + "data: {shots: true}", "data.shots must be an integer, but is True"),
    "in_a_list": (HEAD + "optim: {betas: [0.9, '0.99']}", "optim.betas.1 must be a number, but is '0.99'"),
    "in_a_mapping": (HEAD + "optim: {groups: {u: '1'}}", "optim.groups.u must be a number, but is '1'"),
    "of_a_method": (HEAD + "method: {n_ctx: '4'}", "method.n_ctx must be an integer, but is '4'"),
    "of_a_stage": (HEAD + "stages: [{rounds: '4'}]", "stages.0.rounds must be an integer, but is '4'"),
    "of_a_claim": (
        HEAD + "report: {claims: {a: {says: a, cells: {x: 1}, versus: {x: 2}, margin: '1'}}}",
        "report.claims.a.margin must be a number, but is '1'",
    ),
    "seeds_text": (HEAD + "seeds: '3'", "seeds must be a number from 1 to 10000.*, but is '3'"),
    "text_number": (HEAD + "title: 1.10", "title must be a string, but is 1.1. Quote it"),
    "name_number": (HEAD + "name: 1.10", "name .*, but is 1.1. Quote it"),
    "none": (HEAD + "data: {shots: None}", "data.shots must be an integer, but is 'None'. Write null"),
    "none_of_a_text": (HEAD + "data: {root: None}", "data.root is the string 'None'. Write null"),
    "none_in_an_axis": (HEAD + "axes: {data.shots: [4, None]}", "axes.data.shots.1 is the string 'None'. Write null"),
    "nan": (HEAD + "axes: {optim.lr: [.nan]}", "optim.lr must be a finite number, but is nan"),
    "infinite": (HEAD + "optim: {lr: 1e400}", "optim.lr must be a finite number, but is inf"),
    "wide_digits": (HEAD + "optim: {lr: １}", "optim.lr must be a number, but is '１'"),
    "axis_of_a_study": (
        HEAD + "axes: {execution: {parallel: [1, 2]}}",
        r"execution.parallel holds for a whole study and cannot vary between its cells\. Set execution.parallel=VALUE",
    ),
    "unknown": (HEAD + "sedes: 3", "Did you mean 'seeds'"),
    "seeds": (HEAD + "seeds: 1000000000", "seeds must be a number from 1 to 10000"),
    "seeds_twice": (HEAD + "seeds: [1, 1]", "different seeds"),
    "partition_by_name": (HEAD + "partition: shared", "under 'defaults:'"),
    "method_by_name": (HEAD + "method: coop", "'- override /method: coop'"),
    "axes_many": (HEAD + "axes: {" + ", ".join(f"let.a{i}: [1, 2, 3, 4]" for i in range(12)) + "}", "at most 100,000"),
    "reference_5": (HEAD + "references: [5]", "A reference is a mapping"),
    "paper": (HEAD + "scale: paper\npaper_scale: [5]", "is not an override"),
    "stages": (HEAD + "stages: [[1]]", "A stage is a mapping"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_study_file_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    content, says = FILES[name]
    path = tmp_path / f"{name}.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "second.yaml").write_text("defaults: [first]")
    (tmp_path / "base.yaml").write_text(HEAD + "axes: {method: {n_ctx: [2]}}")
    said = outcome(lambda: expand(compose_study(str(path))))
    with pytest.raises(ConfigError, match=says):
        raise ConfigError(said)


OVERRIDES = {
    "lam=0.5": "Did you mean 'method.lam'",
    "method=promtfl": "There is no method 'promtfl'. Did you mean 'promptfl'",
    "optim.lrr=1": "There is no field 'optim.lrr'. Did you mean 'optim.lr'",
    "method.nctx=3": "promptfl has no field 'nctx'. Did you mean 'n_ctx'",
    "optim.lr=abc": "optim.lr must be a number, but is 'abc'",
    "protocol.rounds=2.5": "protocol.rounds must be an integer, but is 2.5",
    "protocol.participation=0": "protocol.participation must be > 0",
    "protocol.sampling=domains": "There is no protocol.sampling 'domains'. Did you mean 'domain'",
    "stages=[{method: inner}]": r"A stage's method is `inner` \(of a method that wraps another\)",
    "stages=[{method: coop}]": "Write {name: coop} for another method",
    "clip.template=photo": "clip.template must be 'generic', 'dataset' or a string with {}",
    "method.lam=0.5": "promptfl has no field 'lam'.*method=pfedmoap",
    "optim.groups={u:1.0": "is not an override. Close all brackets; in a shell, put quotes",
    "optim.lr=0.1,0.2": r"To compare them in a study: axes\.optim\.lr=\[0\.1,0\.2\]",
    "=1": "does not name a field",
    "optim@x=sgd": "does not name a field",
    "method=./file.py:Class": "must have the form package.module:Name",
    "method=fpl_tune.methods.promptfl:Prompt": "no class 'Prompt'. Did you mean 'PromptFL'",
    "clip=ViT-L-14": "clip.name=ViT-L-14 clip.pretrained=openai",
    "~method.lam": "promptfl has no field 'lam'",
    "~optim": "Choose one: optim=NAME",
    "~optim.lr=1": "Write '~optim.lr'",
    "data=null": "There is no data",
    "+foo=1": "no field 'foo'",
    "a.b.c.d=1": "no field 'a'",
    "optim.lr.x=1": "optim.lr must be a number",
    "optim.lr=null": "optim.lr cannot be null",
    "optim.lr=${oc.env:HOME}": r"optim.lr has \$\{oc.env:HOME\}",
    "method._target_=os.system": "no field '_target_'",
    "method.inner.mu=1": "no field 'inner'",
    "stages=5": "stages must be a list",
    "data.root=a\0b": "is a line of printable",
    "axes.optim.lr=[1]": "a field of studies",
    "optim.lr=on": "optim.lr must be a number, but is 'on'",
    "optim.lr=true": "optim.lr must be a number, but is True",
    "optim.lr='0.5'": "optim.lr must be a number, but is '0.5'",
    "optim.lr=1e400": "optim.lr must be a finite number",
    "partition.vary=yes": "partition.vary must be true or false, but is 'yes'",
    "partition.vary=1": "partition.vary must be true or false, but is 1",
    "partition.vary='true'": "partition.vary must be true or false, but is 'true'",
    "data.shots=010": "data.shots must be an integer, but is '010'",
    "data.shots=0x10": "data.shots must be an integer, but is '0x10'",
    "data.shots=None": "data.shots must be an integer, but is 'None'. Write null",
    "data.shots=": "data.shots must be an integer, but is ''",
    "data.root=None": "data.root is the string 'None'. Write null",
    "data.classes=1.10": "data.classes must be a string, but is 1.1. Quote it",
    "data.domains=[1,2.50]": "data.domains.1 must be a string, but is 2.5. Quote it",
    "optim.groups={u:'1'}": "optim.groups.u must be a number, but is '1'",
    "stages=[{rounds:true}]": "stages.0.rounds must be an integer, but is True",
}


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:30].replace("\0", "0"))
def test_an_override_that_cannot_be_is_refused(override: str) -> None:
    said = outcome(lambda: compose_run([override]))
    with pytest.raises(ConfigError, match=OVERRIDES[override]):
        raise ConfigError(said)


OF_STUDIES = {
    "execution.threads=1e9": "execution.threads must be <= 1024",
    "execution.executor=rey": "Did you mean 'ray'",
    "scale=big": "no scale 'big'",
    "name=../escape": "A study's name has letters",
    "report.rule=best": "no report.rule 'best'. Did you mean 'best_",
    "title=1.10": "title must be a string, but is 1.1. Quote it",
    "name=1.10": "name .*, but is 1.1. Quote it",
    "seeds=010": "seeds must be a number .*, but is '010'",
    "search.trials='3'": "search.trials must be an integer, but is '3'",
    "axes.v=[{label: a, optim.lr: 1, optim: {lr: 2}}]": "gives optim.lr two values, 1 and 2",
    "axes.method=[promptfl]": "would replace axes.method.lam. Remove it before: '~axes.method'",
}


@pytest.mark.parametrize("override", OF_STUDIES)
def test_an_override_of_a_study_that_cannot_be_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=OF_STUDIES[override]):
        raise ConfigError(outcome(lambda: compose_study("lambda_sweep", [override])))


def test_rates_by_leaf_may_be_given_as_one_mapping_or_one_by_one() -> None:
    together, apart = compose_run(["optim.groups={u:1.0,v:2.0}"]), compose_run(["optim.groups.u=1", "optim.groups.v=2"])
    assert together == apart
    assert together.optim.groups == {"u": 1.0, "v": 2.0}
    assert compose_run(["optim.groups={}"]).optim.groups == {}
    assert compose_run(["optim=adamw", "optim.groups={}", "optim.groups.u=2"]).optim.groups == {"u": 2.0}


def test_the_last_override_of_a_field_counts_and_a_field_over_its_groups_option() -> None:
    assert compose_run(["optim.lr=1", "optim.lr=2"]).optim.lr == 2
    assert compose_run(["optim.lr=2", "optim=adamw"]).optim.lr == 2
    assert compose_run(["method=promptfl", "method=zeroshot"]).method == compose_run(["method=zeroshot"]).method


@pytest.mark.parametrize(
    "axes", ["{method.n_ctx: [2]}", "{method: {n_ctx: [2]}}", "{method: {weights: [size]}, method.n_ctx: [2]}"]
)
def test_an_axis_on_the_command_line_replaces_the_files_however_it_is_spelled(tmp_path: Path, axes: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEAD}axes: {axes}")
    given = ["axes.method.n_ctx=[4]", "axes.method.n_ctx=[8]"]
    assert [cell.run.method for cell in expand(compose_study(str(path), given))] == [PromptFL(n_ctx=8)]


def test_a_study_ends_in_yaml(tmp_path: Path) -> None:
    """Hydra would compose another study of that name, such as the shipped one."""
    path = tmp_path / "lambda_sweep.yml"
    path.write_text(HEAD)
    with pytest.raises(ConfigError, match=r"end in \.yaml, but the study is lambda_sweep\.yml\. Rename it"):
        compose_study(str(path))


MARK = "\ufeff"


@pytest.mark.parametrize("marked", ["mine", "base", "both"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_study_is_read_as_any_editor_saves_it(marked: str, ends: str, tmp_path: Path) -> None:
    texts = {"base": f"# A base\n{HEAD}seeds: 2\n", "mine": "# Mine\ndefaults: [base, _self_]\ntitle: é\n"}
    for name, text in texts.items():
        mark = MARK if marked in (name, "both") else ""
        (tmp_path / f"{name}.yaml").write_bytes((mark + text).replace("\n", ends).encode())
    spec = compose_study(str(tmp_path / "mine.yaml"))
    assert (spec.name, spec.title, spec.seeds) == ("mine", "é", 2)


SEVERAL = {
    "seeds=1,2": "seeds=[1,2]",
    "seeds=range(1,4)": "seeds=[1,2,3]",
    "++seeds=4,5": "seeds=[4,5]",
    "data.domains=photo,sketch": "data.domains=[photo,sketch]",
    "optim.betas=0.9,0.99": "optim.betas=[0.9,0.99]",
    "optim.lr=choice(0.1,0.2)": "axes.optim.lr=[0.1,0.2]",
    "optim.groups.u=1,2": "axes.optim.groups.u=[1,2]",
    "data.shots=2,null": "axes.data.shots=[2,null]",
    "data.names={0: a},{1: b}": "axes.data.names=[{0:a},{1:b}]",
    "method=promptfl,coop": "axes.method=[promptfl,coop]",
    "partition=iid,disjoint": "axes.partition=[iid,disjoint]",
    "axes.data.shots=range(2,5)": "axes.data.shots=[2,3,4]",
    "let.a.b=x,y": "let.a.b=[x,y]",
    "search.only=method.lam,method.n_ctx": "search.only=[method.lam,method.n_ctx]",
    "title=one, two and three": "title='one, two and three'",
    "clip.template='a {}.','one {}.'": "axes.clip.template=['a {}.','one {}.']",
    "data.root=/a,b": "data.root='/a,b'",
}


@pytest.mark.parametrize("override", SEVERAL)
def test_the_remedy_for_several_values_works(override: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEAD}let: {{a: {{b: z}}}}\n")
    said = outcome(lambda: compose_study(str(path), [override]))
    assert f"gives {override.partition('=')[0].lstrip('+')} several values" in said
    assert SEVERAL[override] in said
    compose_study(str(path), [SEVERAL[override]])


@pytest.mark.parametrize("values", ["interval(0,1)", "range(1,100000)"])
def test_the_remedy_does_not_list_many_values(values: str) -> None:
    with pytest.raises(ConfigError, match=r"axes.optim.lr=\[...\]\."):
        raise ConfigError(outcome(lambda: compose_study("lambda_sweep", [f"optim.lr={values}"])))


@pytest.mark.parametrize("template", ["a {photo} of {}", "{} {}", "{0}", "{", "}", "a {} {", "{}}", "{:>9}", "{!r}",
                                      "{} {0}", "{{}}", "a {{}} of it", "", "generic {"])  # fmt: skip
@pytest.mark.parametrize("field", ["clip.template", "method.templates"])
def test_a_template_has_one_place_and_no_other_braces(field: str, template: str) -> None:
    node = as_dict(compose_run(["method=promptsrc"]))
    group, _, name = field.partition(".")
    node[group][name] = template if name == "template" else ["a {}", template]
    said = outcome(lambda: to_run(node))
    assert said.startswith(field)
    assert "a string with {} once for the class name, and no other braces" in said
    assert said.endswith(f"but is {template!r}.")


@pytest.mark.parametrize(
    "template", ["generic", "dataset", "{}", "a {}.", "a photo of a {}, a type of 'pet'", "{{x}} {}"]
)
def test_a_template_is_a_text_with_a_place(template: str) -> None:
    node = as_dict(compose_run())
    node["clip"]["template"] = template
    assert to_run(node).clip.template == template


def test_references_to_own_fields_resolve(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + "let: {n: 3}\nseeds: ${let.n}\ntitle: '${let.n} seeds at ${optim.lr}'\noptim: {lr: 0.5}")
    spec = compose_study(str(path))
    assert (spec.seeds, spec.title) == (3, "3 seeds at 0.5")


KEYS = st.sampled_from("optim.lr optim.groups data.domains method method.n_ctx stages data let".split())
SIGNS = st.text("ab.=+~[]{}'\",:$*\\@!0 -", max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a${}:.\n\t é", max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc._", max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from("clip data optim protocol method stages seeds axes references search report let title".split())
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@given(st.sampled_from(["", "+", "++", "~"]), KEYS, SIGNS)
@QUICK
def test_any_override_is_taken_or_refused(prefix: str, key: str, rest: str) -> None:
    made: list[RunSpec] = []
    said = outcome(lambda: made.append(compose_run([f"{prefix}{key}{rest}"])))
    assert said or identity(to_run(as_dict(made[0]))) == identity(made[0]), "what is taken is a run"


@given(st.dictionaries(FIELDS, VALUES, max_size=3))
@settings(QUICK, max_examples=15)
def test_any_study_is_taken_or_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(HEAD + (yaml.safe_dump(fields, allow_unicode=True) if fields else ""), encoding="utf-8")
    cells: list[Cell] = []
    said = outcome(lambda: cells.extend(expand(compose_study(str(path)))))
    assert bool(said) != bool(cells), "what is taken has cells"


@given(st.binary(max_size=60))
@QUICK
def test_any_bytes_are_a_study_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(HEAD.encode() + content)
    made: list[StudySpec] = []
    said = outcome(lambda: made.append(compose_study(str(path))))
    assert said or made[0].name == "any", "what is taken is the study"
