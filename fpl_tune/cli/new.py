"""`fpl-tune new`: a method, a study or a data set of your own, as a file that runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fpl_tune.cli import common
from fpl_tune.cli.common import app, method_names
from fpl_tune.core.files import write_text

if TYPE_CHECKING:
    from fpl_tune.method import Method

_NEXT = {
    "method": ["run method={name}:{kind}", "new study NAME --method {name}:{kind}"],
    "study": ["plan {name}", "study {name}"],
    "data": ["data show data.name={name}:source", "run data.name={name}:source"],
}


@app.command(epilog="Example: fpl-tune new method server_momentum", rich_help_panel="Set up")
def new(
    kind: Annotated[Literal["method", "study", "data"], typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new file, without its ending.")],
    method: Annotated[
        str,
        typer.Option(
            help="Of a study: its method, a name or module:Class of a file in this folder.", autocompletion=method_names
        ),
    ] = "promptfl",
    parent: Annotated[
        str | None,
        typer.Option("--from", help="Of a method: the one that it derives from.", autocompletion=method_names),
    ] = None,
) -> None:
    """Write a method or data set to NAME.py, or a study to studies/NAME.yaml, and print the commands that run it."""
    path, text = render(kind, name, method, parent)
    write_text(path, text)
    print(path)
    for line in _NEXT[kind]:
        print(f"next: fpl-tune {line.format(name=name, kind=class_name(name))}", file=sys.stderr)


def render(kind: str, name: str, method: str = "promptfl", parent: str | None = None) -> tuple[Path, str]:
    """Renders the file that `new` writes.

    Args:
        kind: method, study or data.
        name: its name, a Python identifier.
        method: the method of a study.
        parent: the method that a new one derives from; None: it derives from none.

    Returns:
        Its path, relative to the current folder, and its content.

    Raises:
        ConfigError: the name cannot be used, or a method does not exist or is no parent.
    """
    from importlib.util import find_spec

    from fpl_tune.core.errors import ConfigError
    from fpl_tune.core.paths import list_studies

    if not (name.isascii() and name.isidentifier() and len(name) <= 60):
        raise ConfigError(f"NAME consists of letters, digits and '_', 60 at most, but is {name!r}.")
    path = Path("studies", f"{name}.yaml") if kind == "study" else Path(f"{name}.py")
    if path.exists():
        raise ConfigError(f"{path} exists. Choose another name.")
    if kind == "study":
        from fpl_tune import methods
        from fpl_tune.core import plugins

        plugins.trust([method])
        methods.find(method)
        if name in list_studies():
            raise ConfigError(f"{name} is a shipped study, which the new one would hide. Choose another name.")
    elif find_spec(name) is not None:
        raise ConfigError(f"{name} is the name of an installed module. Choose another name.")
    if parent is not None and kind != "method":
        raise ConfigError(f"--from names the parent of a method, but {name} is to be a {kind}. Remove --from.")
    if parent is not None:
        base = _parent(parent)
        values = {"kind": class_name(name), "parent": base.__name__, "module": base.__module__}
        return path, common.render("submethod.py.j2", **values)
    return path, common.render(f"{kind}{path.suffix}.j2", name=name, kind=class_name(name), method=method)


def _parent(name: str) -> type[Method]:
    """The class of a method by its name in a configuration.

    Raises:
        ConfigError: it does not exist, or wraps another method.
    """
    from fpl_tune import methods
    from fpl_tune.config import choose, options
    from fpl_tune.core import plugins
    from fpl_tune.core.errors import ConfigError

    plugins.trust([name])
    composed: dict[str, Any] = choose("method", name)["method"] if name in options("method") else {"name": name}
    if "inner" in composed:
        inner = composed["inner"]["name"]
        raise ConfigError(
            f"{name} wraps {inner}. Derive from {inner} and wrap your class: method={name} "
            "method.inner.name=MODULE:CLASS."
        )
    return methods.find(composed["name"])


def class_name(name: str) -> str:
    """The class of a method's file: `server_momentum` holds `ServerMomentum`."""
    return "".join(part.capitalize() for part in name.split("_"))
