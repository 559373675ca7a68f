"""Hooks of MkDocs: the pages of the site that no file of docs/ holds, and links between its files.

The README is the site's first page, and the quickstart is made from its notebook. Each method has a page of its
docstrings, its equation in docs/reference/zoo.md, its defaults and its search space. The gallery holds the reports of
the studies below that the output folder has, with the command that makes each.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import tomllib
from datetime import date
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import document
import quickstart

from fpl_tune import config, load_study, methods
from fpl_tune.core.paths import output_root

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDED = {
    "index.md": ROOT / "README.md",
    "overview.md": DOCS / "README.md",
    "contributing.md": GITHUB / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "security.md": GITHUB / "SECURITY.md",
    "code_of_conduct.md": GITHUB / "CODE_OF_CONDUCT.md",
}
"""Page -> file of the repository."""
GALLERY = {
    "lambda_sweep": "pFedMoAP's λ on the embedded data set: a sweep with references",
    "zoo2026": "Twenty-eight methods under one protocol, on two splits: a table of methods",
    "joint_search": "Optuna's search of several methods with equal budgets",
    "claims": "What the papers claim, decided on the embedded data set",
}


def on_config(config: Any) -> Any:
    """Lists a page for every method below the table of equations."""
    section = next(part["Methods"] for part in config["nav"] if "Methods" in part)
    section += [{name: f"methods/{name}.md"} for name in sorted(methods.catalogue())]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, the images and the reports."""
    file: Any = type(next(iter(files)))

    def add(uri: str, content: str | bytes) -> None:
        files.append(file.generated(config, uri, content=content))

    for uri, path in ADDED.items():
        add(uri, path.read_text(encoding="utf-8"))
    add("quickstart.md", quickstart.markdown())
    for name in methods.catalogue():
        add(f"methods/{name}.md", method_page(name))
    reports = {name: output_root() / name / "report.html" for name in GALLERY}
    add("gallery.md", gallery(reports))
    text, charts = benchmarks()
    add("benchmarks.md", text)
    for name, drawn in charts.items():
        add(f"images/{name}", drawn)
    for name, path in reports.items():
        if path.is_file():
            add(f"gallery/{name}.html", path.read_bytes())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages, and others into links to the repository."""
    uri: str = page.file.src_uri
    if uri.startswith(("methods/", "gallery", "benchmarks")):
        return markdown
    folder = ADDED.get(uri, DOCS / uri).parent
    pages = {path.resolve(): added for added, path in ADDED.items()} | {quickstart.NOTEBOOK: "quickstart.md"}

    def page_of(match: re.Match[str]) -> str:
        target, hash_, anchor = match[1].partition("#")
        if not target or "://" in target:
            return match[0]
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS) or path in pages or not path.exists():
            here = pages.get(path) or (path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else target)
            return f"]({os.path.relpath(here, Path(uri).parent)}{hash_}{anchor})"
        return f"]({PROJECT['urls']['Repository']}/blob/main/{path.relative_to(ROOT).as_posix()}{hash_}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", page_of, markdown)


def method_page(name: str) -> str:
    """The page of a method, and of the shipped compositions whose outermost method it is."""
    kind = methods.catalogue()[name]
    title, _, source = (import_module(kind.__module__).__doc__ or "").strip().partition("\n")
    parts = [f"# `{name}`", title, _linked(source.strip())]
    named = [name, *(option for option, outermost in _compositions().items() if outermost == name)]
    if equations := _equations(named):
        parts += ["## Equation", equations]
    fields = methods.hyper_parameters(kind)
    if fields:
        defaults = {field: f"`{value!r}`" for field, value in methods.defaults(kind).items()}
        rows = [f"| `method.{field.name}` | {defaults.get(field.name, 'required')} |" for field in fields]
        parts += ["## Hyper-parameters", "\n".join(["| field | default |", "|---|---|", *rows])]
    parts += [_fields_explained((kind.__doc__ or "").strip())]
    spaces = [path for option in named if (path := ROOT / "search_spaces" / f"{option}.yaml").is_file()]
    if spaces:
        parts += ["## Search space"]
        parts += [f"`method={file.stem}`:\n\n```yaml\n{file.read_text('utf-8').strip()}\n```" for file in spaces]
    if figures := _figures(named):
        parts += ["## On the embedded data set", figures]
    wrapped = f"fpl-tune run 'method={{name: {name}, inner: {{name: promptfl}}}}'"
    runs = [wrapped if option == name and "inner" in {f.name for f in fields} else f"fpl-tune run method={option}"
            for option in named]  # fmt: skip
    parts += ["## Run it", "\n".join(["```bash", *runs, "```"])]
    return "\n\n".join(parts) + "\n"


@cache
def _compositions() -> dict[str, str]:
    """Shipped composition -> its outermost method."""
    composed = sorted({*config.options("method")} - {*methods.catalogue()})
    return {option: config.choose("method", option)["method"]["name"] for option in composed}


def _equations(named: list[str]) -> str:
    """Rows of the table of equations that name one of the methods."""
    parts: list[str] = []
    for line in (DOCS / "reference" / "zoo.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| `") and {*re.findall(r"`(\w+)`", cells[0])} & {*named}:
            limits = f" Collapses to: {cells[4].rstrip('|').strip()}." if len(cells) == 5 and cells[4] else ""
            parts.append(f"{cells[0]}: {cells[1]} ({cells[3]}).{limits}")
    return "\n\n".join(parts)


def _linked(text: str) -> str:
    return re.sub(r"(https?://[^\s,;)]+[^\s,;).])", r"<\1>", text)


def _fields_explained(doc: str) -> str:
    """The class's docstring; lines `field: meaning` and `field, field: meaning` become a list, an example code."""
    return re.sub(r"^(\w+(?:, \w+)*): ", r"* `\1`: ", document.markdown(inspect.cleandoc(doc)), flags=re.MULTILINE)


def _figures(named: list[str]) -> str:
    """Test accuracy of the methods in the studies of methods that the output folder holds."""
    rows: list[str] = []
    for study in ("zoo", "zoo2026"):
        if not (output_root() / study / "study.yaml").is_file():
            continue
        table = load_study(study).summary()
        for row in table[table["variant"].isin(named)].to_dict("records"):
            accuracy = f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f}"
            rows.append(f"| `{row['variant']}` | `{study}` | {row['split']} | {accuracy} | {row['n']} |")
    head = ["| method | study | split | test accuracy % (± sd over seeds) | seeds |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def gallery(reports: dict[str, Path]) -> str:
    """The page of reports."""
    parts = ["# Gallery", "Reports of shipped studies, each one file, as the command writes them."]
    for name, what in GALLERY.items():
        shown = f"[The report](gallery/{name}.html)" if reports[name].is_file() else "Not in this build."
        parts.append(f"## `{name}`\n\n{what}. {shown}\n\n```bash\nfpl-tune study {name}\n```")
    return "\n\n".join(parts) + "\n"


def benchmarks(file: Path = ROOT / "benchmarks" / "bench.jsonl") -> tuple[str, dict[str, bytes]]:
    """The page of the site, and its charts by name: seconds by date, a chart for each benchmark."""
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    parts = [
        "# Benchmarks over time",
        "`python benchmarks/bench.py record` appends what `make bench` measures. The ratio is that to the plain "
        "path in the same run, which says more than seconds where machines differ.",
    ]
    charts: dict[str, bytes] = {}
    for number, name in enumerate(dict.fromkeys(line["bench"] for line in lines)):
        found = [line for line in lines if line["bench"] == name]
        figure = Figure(figsize=(6, 2.2), layout="constrained")
        axes: Any = figure.subplots()  # whose stubs know no dates
        for machine in dict.fromkeys(line["machine"] for line in found):
            own = [line for line in found if line["machine"] == machine]
            axes.plot([date.fromisoformat(line["date"]) for line in own], [line["seconds"] for line in own], "o-",
                      label=machine)  # fmt: skip
        days = sorted({date.fromisoformat(line["date"]) for line in found})
        axes.set_xticks(days[:: 1 + len(days) // 8])
        axes.set(ylabel="seconds", ylim=(0, None))
        axes.legend(fontsize="x-small")
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg")
        charts[f"bench_{number}.svg"] = drawn.getvalue()
        rows = [f"| {line['date']} | {line['commit']} | {line['seconds']:.3g} | {line.get('ratio', float('nan')):.3g} |"
                for line in found]  # fmt: skip
        head = ["| date | commit | seconds | ratio to the plain path |", "|---|---|---|---|"]
        parts += [f"## {name}", f"![Seconds by date](images/bench_{number}.svg)", "\n".join([*head, *rows])]
    return "\n\n".join(parts) + "\n", charts
