"""The Typer application, and the arguments that several verbs share.

Imports nothing heavy: help and completion must be instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fpl_tune.core import paths, plugins
from fpl_tune.core.version import __version__

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

app = typer.Typer(
    name="fpl-tune",
    help="Hyper-parameter search and ablation studies for personalised federated prompt learning.",
    epilog="Example: fpl-tune study lambda_sweep seeds=5 'axes.method.lam=[0,0.5,1]'",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def method_files() -> dict[str, Path]:
    """Files of methods and wrappers by name, without importing them."""
    package = Path(__file__).resolve().parents[1]
    return {path.stem: path for room in ("methods", "wrappers") for path in sorted((package / room).glob("[!_]*.py"))}


def method_names() -> list[str]:
    """Names that `method=` accepts, for completion: methods, compositions in YAML, and plug-ins."""
    return sorted({*method_files(), *paths.option_files("method"), *plugins.names("methods")})


def _complete_method(ctx: typer.Context) -> list[str]:
    """`method=NAME` for every method, or only the names if bash has split the word at `=`."""
    given: list[str] = ctx.params.get("overrides") or []
    return method_names() if given[-2:] == ["method", "="] else [f"method={name}" for name in method_names()]


Format = Literal["table", "json", "csv"]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Overrides in Hydra's syntax, e.g. method=promptfl optim.lr=0.01",
        autocompletion=_complete_method,
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]
ConfigOption = Annotated[bool, typer.Option("--cfg", help="Print the resolved configuration and exit.")]
RuleOption = Annotated[
    str | None, typer.Option("--rule", help="Reporting rule: final, best_val, best_test or mean_last5.")
]


StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="Name of a study, or the path of its YAML file.",
        autocompletion=lambda: sorted(paths.list_studies()),
    ),
]
StoredStudy = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study that has results.", autocompletion=paths.stored_studies)
]


def stored(name: str) -> Store:
    """Opens the store of a study that has results."""
    from fpl_tune.study.store import Store

    return Store.open(paths.output_folder(), name)


def render(template: str, **values: Any) -> str:
    """The text of a Jinja template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fpl_tune.cli"), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    return made.get_template(template).render(values)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fpl-tune {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    config_dir: Annotated[
        str | None,
        typer.Option(
            "--config-dir", metavar="DIR", help="Folder with options of your own, such as DIR/optim/mine.yaml."
        ),
    ] = None,
) -> None:
    """Options before the verb."""
