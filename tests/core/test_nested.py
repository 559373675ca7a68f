"""Nested mappings by dotted names."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.core.nested import flatten, get_field

KEYS = st.text("abc", min_size=1, max_size=2)
NODES: Any = st.recursive(
    st.integers(), lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3), max_leaves=8
).filter(lambda node: isinstance(node, dict))


@given(NODES)
def test_a_field_has_the_value_that_its_dotted_name_has_in_the_flat_mapping(node: dict[str, Any]) -> None:
    for dotted, value in flatten(node).items():
        assert get_field(node, dotted) == value
        assert get_field(node, f"{dotted}.more", "default") == "default", "a value has no fields"
    assert get_field(node, "d", "default") == get_field(node, f"{next(iter(node))}.d", "default") == "default"


def test_mappings_may_be_kept_whole() -> None:
    node = {"a": {"b": {"c": 1}, "d": {}}, "e": [{"f": 2}]}
    assert flatten(node) == {"a.b.c": 1, "e": [{"f": 2}]}
    assert flatten(node, "x.", whole=lambda name, value: name == "x.a.b") == {"x.a.b": {"c": 1}, "x.e": [{"f": 2}]}
