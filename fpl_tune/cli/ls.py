"""`fpl-tune ls`: methods, data sets, studies and towers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, app, method_files, stored
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import list_studies, option_files
from fpl_tune.study.cells import shown


@app.command(epilog="Example: fpl-tune ls methods", rich_help_panel="Set up")
def ls(
    kind: Annotated[
        Literal["methods", "data", "studies", "towers"],
        typer.Argument(help="What to list.", metavar="methods|data|studies|towers"),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="After methods: one of them, with its fields and leaves. After studies: one with results, with its "
            "cells that it does not ask for any more.",
        ),
    ] = None,
    format: FormatOption = "table",
) -> None:
    """List methods, data sets (with the files they expect), studies, or CLIP towers; or the fields of one method."""
    if name is not None and kind == "studies":
        from fpl_tune.findings.unasked import Unasked

        store = stored(name)
        rows = Unasked(store, store.node(), store.cells()).rows()
        output.emit(rows, format, title=f"cells of {name} that are not asked for")
        return
    if name is not None:
        if kind != "methods":
            raise ConfigError(f"Only methods and studies are shown one by one. Write fpl-tune ls {kind}.")
        rows, source = _fields(name)
        output.emit(rows, format, title=name)
        if format == "table":
            if leaves := _leaves(name):
                output.emit(leaves, format, title="leaves, as fpl-tune parity names them")
            print(source)
        return
    if kind == "data":
        from fpl_tune.data.sources import catalogue

        rows = list(catalogue())
    elif kind == "methods":
        rows = _methods()
    elif kind == "studies":
        rows = [{"study": name, "what": headline(path)} for name, path in list_studies().items()]
    else:
        rows = [{"clip": path.stem, "what": headline(path)} for path in option_files("clip").values()]
    output.emit(rows, format)


def _methods() -> list[dict[str, Any]]:
    """The methods by name with the first line of their source, the year and address of the paper, and whether they were
    compared with released code, which their source says.

    Nothing is imported, so the list appears immediately.
    """
    composed = option_files("method")
    rows = []
    for name, path in (composed | method_files()).items():
        text = path.read_text(encoding="utf-8")
        url = re.search(r"https?://\S+?(?=[.,;)]*(?:\s|$))", text)
        years = re.findall(r"\b20[0-3]\d\b", text[: url.start()]) if url else [""]
        paper = {"year": (years or [""])[-1], "paper": url[0] if url else ""}
        code = "compared" if "Compared step by step" in text else "not compared"
        rows.append({"method": name, "what": headline(path), **paper, "code": code})
    plugged = {"what": "plug-in", "year": "", "paper": "", "code": ""}
    rows += [{"method": name, **plugged} for name in plugins.names("methods")]
    return sorted(rows, key=lambda row: row["method"])


def _fields(name: str) -> tuple[list[dict[str, Any]], str]:
    """The fields of a method with default, searched values and meaning, with its range; and the method's source."""
    import inspect

    from fpl_tune import config, methods
    from fpl_tune.search.space import names_of, read_file

    plugins.trust([name])
    composed = name in option_files("method")
    node = config.choose("method", name)["method"] if composed else {"name": name}
    kind = methods.find(node["name"])
    node = {field.name: "required" for field in methods.hyper_parameters(kind)} | methods.defaults(kind) | node
    space: dict[str, Any] = read_file(names_of(node, name), kind).get("space", {})
    documents = [inspect.getdoc(base) or "" for base in kind.__mro__ if base is not object]
    own = {f"method.{field}": value for field, value in node.items() if field != "name"}
    declared: Any = kind.leaf_groups
    groups = declared if isinstance(declared, tuple) else ()  # a wrapper has those of its method
    meanings = {f"optim.groups.{group.name}": group.meaning for group in groups}
    own |= {f"optim.groups.{group.name}": "optim.lr" if group.rate is None else group.rate for group in groups}
    rows = []
    for field in [*own, *(field for field in space if field not in own)]:
        entry: Any = space.get(field, {})
        values: dict[str, Any] = {"choices": entry} if isinstance(entry, list) else entry
        text = ", ".join(map(shown, values.get("choices", [])))
        if "low" in values:
            text = f"{shown(values['low'])} to {shown(values['high'])}{' (log)' * bool(values.get('log'))}"
        pattern = rf"^ *{re.escape(field.removeprefix('method.'))}: (.+(?:\n +.+)*)"
        told = next((match[1] for each in documents if (match := re.search(pattern, each, re.MULTILINE))), "")
        told = meanings.get(field, told)
        default = shown(own[field]) if field in own else ""
        rows.append({"field": field, "default": default, "searched": text, "meaning": " ".join(told.split())})
    return rows, (inspect.getdoc(inspect.getmodule(kind)) or "").strip()


def _leaves(name: str) -> list[dict[str, str]]:
    """The leaves of a method's state with their shapes in the embedded world; none of a wrapper without a method."""
    import torch

    from fpl_tune import config
    from fpl_tune.parity.run import leaf_names
    from fpl_tune.simulation.dummy import dummy_task

    try:
        run = config.compose_run([f"method={name}"])
    except ConfigError:
        return []
    task = dummy_task(run)
    state, rows = run.stages[0].method.init(task, torch.Generator().manual_seed(0)), []
    for leaf, (kind, own) in leaf_names(state).items():
        shape = [str(n) for n in getattr(state, kind)[own].shape]
        shape = ["N", *shape[1:]] if kind == "personal" else shape
        rows.append({"leaf": leaf, "kind": kind, "shape": f"[{', '.join(shape)}]"})
    return rows


def headline(path: Path) -> str:
    """The first line of a file's docstring or comment."""
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if line.startswith(('"""', "# ")) and not line.startswith("# @package"):
            return line.strip('"# ').rstrip(".")
    return ""
