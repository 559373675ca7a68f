"""From configurations to methods and back, and what is said about fields and classes that do not exist."""

from typing import Any

import pytest
from method_cases import METHODS, node

from fpl_tune import methods
from fpl_tune.core.errors import ConfigError
from fpl_tune.methods.dpfpl import DPFPL
from fpl_tune.methods.promptfl import PromptFL


def test_every_method_is_built_again_from_what_is_stored_of_it() -> None:
    """With all of its fields, those of wrapped methods too, and without the newer ones that say nothing."""
    for name, how in METHODS:
        configured = node(name, how)
        method = methods.build(configured)
        whole, short = methods.as_dict(method), methods.as_dict(method, newer=False)
        assert methods.build(whole) == methods.build(short) == methods.stored(whole) == method
        assert methods.name_of(method) == whole["name"] == configured["name"]
        assert whole.keys() == configured.keys()
        assert whole.keys() - {"name", "inner"} == methods.defaults(type(method)).keys() - {"inner"}
        usual = methods.defaults(type(method))
        assert short.keys() == whole.keys() - {
            field for field in method.newer if getattr(method, field) == usual[field]
        }


def test_a_newer_field_is_stored_where_it_is_not_its_default() -> None:
    """Ids of runs that were stored before the field came stay what they were."""
    inner = DPFPL(n_ctx=3, rank=2)
    assert "weights" not in methods.as_dict(inner, newer=False)
    changed = DPFPL(n_ctx=3, rank=2, weights="size" if inner.weights != "size" else "uniform")
    assert methods.as_dict(changed, newer=False)["weights"] == changed.weights
    wrapped = methods.build({"name": "finetuned", "inner": methods.as_dict(inner)})
    assert methods.as_dict(wrapped, newer=False)["inner"] == methods.as_dict(inner, newer=False)


def test_a_class_has_the_name_of_its_file_or_of_its_module() -> None:
    assert methods.find("fpl_tune.methods.promptfl:PromptFL") is methods.find("promptfl") is PromptFL
    assert methods.name_of(PromptFL()) == "promptfl"
    mine = type("Mine", (PromptFL,), {"__module__": "mine"})
    assert methods.name_of(mine()) == "mine:Mine"


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("promptfl", "method must be a mapping with a name, such as {name: promptfl}, but is 'promptfl'"),
        ({"name": "promptf"}, "no method 'promptf'.* Did you mean 'promptfl'"),
        ({"name": "fpl_tune.methods.promptfl:Promptfl"}, "has no class 'Promptfl'. Did you mean 'PromptFL'"),
        ({"name": "fpl_tune.methods:build"}, "must be a dataclass derived from fpl_tune.method.Method"),
        ({"name": "fpl_tune.method:Local"}, "must be a dataclass derived from fpl_tune.method.Method"),
        ({"name": "fpl_tune.config.specs:OptimSpec"}, "must be a dataclass derived from fpl_tune.method.Method"),
        ({"name": "promptfl", "nctx": 2}, "promptfl has no field 'nctx'. Did you mean 'n_ctx'"),
        ({"name": "promptfl", "shrink": 0.5}, "no field 'shrink'. Known: n_ctx, weights. Methods .* it: method=tofa.$"),
        ({"name": "zeroshot", "shrink": 0.5}, "zeroshot has no field 'shrink'. Known: none. Methods that"),
        ({"name": "promptfl", "xyzzy": 1}, "promptfl has no field 'xyzzy'"),
        ({"name": "finetuned", "inner": {"name": "promptfl", "n_ctx": 0}}, "method.inner.n_ctx must be >= 1"),
        ({"name": "finetuned", "inner": {"name": "coop", "nctx": 2}}, "coop has no field 'nctx'"),
        ({"name": "promptfl", "n_ctx": 100_001}, "method.n_ctx must be <= 100000, but is 100001"),
        ({"name": "promptfl", "n_ctx": "2"}, "n_ctx"),
    ],
)
def test_what_is_no_method_is_refused_with_what_was_meant(given: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        methods.build(given)


def test_a_field_of_many_methods_is_said_to_be_in_some_of_them() -> None:
    owners = methods.owners("n_ctx")
    assert {"promptfl", "coop"} <= set(owners)
    assert "finetuned" not in owners
    with pytest.raises(ConfigError) as refused:
        methods.build({"name": "finetuned", "inner": {"name": "zeroshot"}, "n_ctx": 2})
    assert str(refused.value).endswith(f"it: {', '.join(f'method={name}' for name in owners[:5])}.")


def test_sizes_up_to_the_largest_are_built() -> None:
    assert methods.build({"name": "promptfl", "n_ctx": methods.LARGEST}) == PromptFL(n_ctx=methods.LARGEST)


@pytest.mark.parametrize("given", [{"name": "gone", "n_ctx": 2}, {"name": "promptfl", "gone": 1}])
def test_a_stored_method_that_is_gone_can_be_read_and_not_run(given: dict[str, Any]) -> None:
    absent: Any = methods.stored(given)
    assert methods.as_dict(absent) == given
    assert methods.name_of(absent) == given["name"]
    with pytest.raises(ConfigError, match="gone"):
        absent.check(None)
