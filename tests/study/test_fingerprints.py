"""What makes stored results stale."""

from __future__ import annotations

from fpl_tune.study.fingerprints import syntax

SOURCE = '''
"""A module."""


class Mine:
    """A class."""

    def f(self, x):
        """A function."""
        return [x]  # itself
'''
TREE = (
    "Module(body=[ClassDef(name='Mine', bases=[], keywords=[], body=[FunctionDef(name='f', args=arguments("
    "posonlyargs=[], args=[arg(arg='self'), arg(arg='x')], kwonlyargs=[], kw_defaults=[], defaults=[]), "
    "body=[Return(value=List(elts=[Name(id='x', ctx=Load())], ctx=Load()))], decorator_list=[])], decorator_list=[])], "
    "type_ignores=[])"
)


def test_a_source_is_its_syntax_under_every_python() -> None:
    """Python 3.12 has a field more, and 3.13 leaves empty ones out: results outlive such an update."""
    assert syntax(SOURCE) == TREE
    assert syntax("class Mine:\n  def f(self, x): return ([x])") == TREE
    assert syntax(SOURCE.replace("[x]", "[x, x]")) != TREE
