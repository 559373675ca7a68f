"""Writes docs/reference/api.md, yaml.md, metrics.md, trace.md and towers.md from the package, and the tables of
docs/explanation/real_images.md and of the README from the files of a study.

With --check it writes nothing and fails where a page is not current.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import real_images
import towers

import fpl_tune
from fpl_tune import config, methods
from fpl_tune.core.metrics import MEANINGS, METRICS, Metric
from fpl_tune.core.paths import option_files
from fpl_tune.parity import NAMES

GROUPS = ("clip", "data", "partition", "optim", "protocol", "clients", "method")
OPTIONS = ("clip", "partition", "optim", "protocol", "clients")
DOCS = Path(__file__).resolve().parents[1] / "reference"
MODULES = {
    "fpl_tune": "Simulations, studies and prompts.",
    "fpl_tune.method": "What a method is made of.",
    "fpl_tune.execute.callback": "What a study reports while it runs.",
    "fpl_tune.analysis": "Statistics of any data frame.",
    "fpl_tune.testing": "For authors of methods, data sets and towers: contracts, and tiny towers and tasks.",
    "fpl_tune.parity": "Traces of other code on an exported world, compared with fpl-tune.",
}


def api() -> str:
    """The page of the API: a section per module, an entry per public function and class."""
    parts = ["# API", "Written from the docstrings by `python docs/site/document.py`."]
    for module, what in MODULES.items():
        found = import_module(module)
        names = getattr(found, "__all__", None) or [name for name, value in vars(found).items() if _own(value, module)]
        entries = [_entry(f"{module}.{name}", getattr(found, name)) for name in sorted(names) if name[0] != "_"]
        parts += [f"## `{module}`", what, *filter(None, entries)]
    return "\n\n".join(parts) + "\n"


def yaml() -> str:
    """The page of fields, with a study's default and the first paragraph of the docstring, and of options."""
    parts = [
        "# YAML reference", "Written from the docstrings by `python docs/site/document.py`.",
        "A study file begins with `defaults: [/study, override /method: NAME, _self_]` and states what differs from "
        "the defaults below. `clip`, `data`, `partition`, `optim`, `protocol`, `clients` and `method` are also names "
        "of [options](#options): `data=pacs` on the command line, `override /data: pacs` in a file. Fields of `method` "
        "are those of its class (`fpl-tune ls methods`). `let` holds values of your own: `${let.NAME}` refers to one.",
    ]  # fmt: skip
    rows: dict[str, list[str]] = {}
    composed = config.flatten(config.as_dict(config.compose_run()))  # YAML changes some defaults of the classes
    for name, (default, doc) in sorted(fields_of("StudySpec").items()):
        if not doc.endswith("."):
            sys.exit(f"The docstring of {name} must be a sentence that ends with a full stop, but is {doc!r}.")
        if composed.get(name) is not None and not name.startswith("partition."):  # resolved there
            default = json.dumps(composed[name], ensure_ascii=False).strip('"')
        group = name.split(".")[0] if "." in name else "study"
        rows.setdefault(group, []).append(
            f"| `{name}` | {f'`{default}`' if default else ''} | {doc.replace('|', 'or')} |"
        )
    for group in sorted(rows, key=lambda group: (group != "study", group)):
        parts.append("\n".join([f"## {group}", "", "| field | default | meaning |", "|---|---|---|", *rows[group]]))
    files = {f"{group}={name}": path for group in OPTIONS for name, path in option_files(group).items()}
    table = [f"| `{name}` | {_comment(path)} |" for name, path in files.items()]
    listed = "Those of `data` and `method` are listed by `fpl-tune ls data` and `fpl-tune ls methods`."
    parts += ["## Options", listed, "\n".join(["| option | what it sets |", "|---|---|", *table])]
    return "\n\n".join(parts) + "\n"


SETS = {
    "val": "the clients' validation images; the only ones that choose",
    "test": "the test images of each client's own distribution",
    "test/base": "all base classes (`partition=base_to_novel`)",
    "test/novel": "all novel classes (`partition=base_to_novel`)",
    "test/domain/<name>": "the images of one domain, where data have several",
    "test/unseen": "clients that are left out of training (`protocol.unseen`)",
    "test/global": "the model that new clients receive (`protocol.global_model`)",
    "test/own_classes": "each client among the classes of its training images (`protocol.own_classes`)",
    "test/cross/<name>": "another data set (`protocol.cross`); `test/cross/acc_mean` is their mean",
}
"""Sets of images that clients are scored on."""


def measured() -> str:
    """The page of metrics: those of every set of images, of every simulation, and of single methods."""

    def table(metrics: Iterable[Metric], of: Callable[[Metric], str]) -> list[str]:
        best = {True: "high", False: "low", None: ""}
        rows = [f"| `{each.name}` | {each.unit} | {best[each.maximize]} | {of(each)} |" for each in metrics]
        return ["| metric | unit | better | meaning |", "|---|---|---|---|", *rows, ""]

    owners = {m: name for name, kind in methods.catalogue().items() for m in vars(kind).get("own_metrics", ())}
    plain = [each for name, each in METRICS.items() if name in MEANINGS]
    of_sets = [replace(m, name=m.name[4:]) for m in METRICS.values() if m.name.startswith("val/")]
    return "\n".join(
        ["# Metrics", "", "Written from the package by `python docs/site/document.py`.", "",
         "A metric's name is a set of images and a figure, such as `test/acc_worst10`, or one of the others below. All "
         "are stored by round and seed, so that `report.metric`, `fpl-tune report NAME --metric test/acc_worst10` and "
         "`summary(metric=...)` may choose another one after the study: table, intervals and verdicts are then of it. "
         "`search.objectives` takes those that are not of test images. Shares (%) are printed in percent, bytes (B) in "
         "MB, counts (M) in millions, operations (FLOP) in GFLOP. Metrics `cost/...` follow from the configuration, "
         "with the partition of seed 1, and are the same in every record.", "",
         "## Sets of images", "", "| set | images |", "|---|---|",
         *(f"| `{name}` | {what} |" for name, what in SETS.items()), "",
         "## Figures of a set", "", *table(of_sets, lambda each: MEANINGS[each.name]),
         "## Others", "", *table(plain, lambda each: MEANINGS[each.name]),
         "## Of single methods", "",
         *table(owners, lambda each: f"of `{owners[each]}`"),
         "A method of your own adds metrics by `own_metrics` ([Add a method](../guides/method.md)).", ""]
    )  # fmt: skip


def trace() -> str:
    """The page of traces: every array with its shape and meaning."""
    letters = (
        "K classes, N clients, T local steps of the whole run in the order in which they were taken, B images of the "
        "largest batch, R rounds, D and L lengths of a feature and of a sentence. Images are named by their files in "
        "an exported world; `<leaf>` is a name of what a method learns in fpl-tune, such as `prompt`."
    )
    rows = [f"| `{name}` | {shape} | {what} |" for name, (shape, what) in NAMES.items()]
    return "\n".join(
        ["# Arrays of a trace", "", "Written from the package by `python docs/site/document.py`.", "",
         f"[`fpl-tune parity`](../guides/parity.md) reads an `.npz` file with any of these arrays. {letters}", "",
         "| array | shape | meaning |", "|---|---|---|", *rows, ""]
    )  # fmt: skip


Fields = dict[str, tuple[str, str]]
"""Dotted field -> default as it is written in an override (empty unless it is a constant), and its meaning."""


def fields_of(name: str, prefix: str = "") -> Fields:
    """Fields of a configuration class, inherited and nested ones included, without groups."""
    found: Fields = {}
    for base in map(ast.unparse, _specs()[name].bases):
        found |= fields_of(base, prefix) if base in _specs() else {}
    for key, kind, field in _declared(_specs()[name]):
        found |= fields_of(kind, f"{prefix}{key}.") if kind in _specs() else {}
        found |= {f"{prefix}{key}": field} if f"{prefix}{key}" not in GROUPS else {}
    return found


@cache
def _specs() -> dict[str, ast.ClassDef]:
    """Configuration classes of the package by name, from their source: docstrings of fields stand only there."""
    texts = [path.read_text(encoding="utf-8") for path in Path(fpl_tune.__file__).parent.rglob("*.py")]
    nodes = [node for text in texts if "Spec" in text for node in ast.parse(text).body]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Spec")}


def _declared(kind: ast.ClassDef) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Fields that a dataclass declares: name, type, and default with the docstring's first paragraph."""
    for statement, following in zip(kind.body, [*kind.body[1:], ast.Pass()], strict=True):
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        value, default, doc = statement.value, "", ""
        if isinstance(value, ast.Constant):
            default = value.value if isinstance(value.value, str) else json.dumps(value.value)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = " ".join(inspect.cleandoc(str(following.value.value)).partition("\n\n")[0].split())
        yield ast.unparse(statement.target), ast.unparse(statement.annotation), (default, doc)


def _comment(path: Path) -> str:
    """The comment that an option's file begins with, up to a command."""
    lines = takewhile(re.compile(r"# \S").match, path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("# ") for line in lines).rstrip(":")


PAGES = {
    "api.md": api, "yaml.md": yaml, "trace.md": trace, "metrics.md": measured, "towers.md": towers.page,
    "../explanation/real_images.md": real_images.page, "../../README.md": real_images.readme,
}  # fmt: skip


def _own(value: Any, module: str) -> bool:
    named = inspect.isclass(value) or inspect.isfunction(value)
    return named and value.__module__ == module and not value.__name__.startswith("_")


def _entry(name: str, value: Any) -> str:
    """A function, or a class with its public methods; "" for other values."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    parts = [f"### `{name}{_signature(value)}`", markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        for method, function in vars(value).items():
            if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                parts.append(f"**`{method}{_signature(function)}`**\n\n{markdown(inspect.getdoc(function) or '')}")
    return "\n\n".join(filter(None, parts))


def _signature(value: Any) -> str:
    """Names of the arguments, without types; "" for an exception, an enum, or a class of another constructor."""
    maker = getattr(value, "__init__", None) if inspect.isclass(value) else None
    if getattr(maker, "__module__", "fpl_tune").partition(".")[0] != "fpl_tune":  # Ray's differs between its versions
        return ""
    try:
        arguments = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown, keyword = [], False
    for argument in arguments:
        if argument.name == "self":
            continue
        if argument.kind is inspect.Parameter.KEYWORD_ONLY and not keyword:
            shown.append("*")
        keyword |= argument.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(argument.kind, "")
        default = argument.default
        plain = default is None or isinstance(default, bool | int | float | str)
        shown.append(f"{stars}{argument.name}{f'={default!r}' if plain and default is not argument.empty else ''}")
    return f"({', '.join(shown)})"


def markdown(text: str) -> str:
    """A docstring of Google's style: sections as bold words, arguments as lists, examples as code."""
    found, section = [], ""
    for line in text.splitlines():
        if title := re.fullmatch(r"(Args|Returns|Raises|Example|Yields|Attributes):", line):
            section = title.group(1)
            found += ["```python"] if section == "Example" else [f"**{section}**", ""]
        elif section == "Example":
            found.append(line[4:])
        elif section in ("Args", "Raises", "Attributes") and (entry := re.fullmatch(r"    (\*{0,2}\w+): (.*)", line)):
            found.append(f"* `{entry.group(1)}`: {entry.group(2)}")
        else:
            found.append(line.removeprefix("    ") if section else line)
    return "\n".join([*found, "```"] if section == "Example" else found)


if __name__ == "__main__":
    stale = [name for name, page in PAGES.items() if (DOCS / name).read_text(encoding="utf-8") != page()]
    if "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(stale)}; run `python docs/site/document.py`" if stale else 0)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(name)
