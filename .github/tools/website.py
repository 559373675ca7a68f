"""Hooks of MkDocs: the pages of the site that no file of .github/docs holds.

The README is the site's first page. Each method has a page of its docstrings, its equation in docs/zoo.md, its defaults
and its search space. The gallery holds the reports of the studies below that the output folder has, with the command
that makes each.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import bench_record

from fpl_tune import config, load_study, methods
from fpl_tune.core.paths import output_root

GITHUB = Path(__file__).resolve().parents[1]
ROOT = GITHUB.parent
ADDED = {
    "index.md": ROOT / "README.md",
    "contributing.md": GITHUB / "CONTRIBUTING.md",
    "changelog.md": GITHUB / "CHANGELOG.md",
    "security.md": GITHUB / "SECURITY.md",
    "code_of_conduct.md": GITHUB / "CODE_OF_CONDUCT.md",
    "citation.cff": GITHUB / "CITATION.cff",
}
"""Page -> file of the repository."""
GALLERY = {
    "lambda_sweep": "pFedMoAP's λ on the embedded data set: a sweep with references",
    "zoo2026": "Twenty-four methods under one protocol, on two splits: a table of methods",
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
    file = type(next(iter(files)))

    def add(uri: str, content: str | bytes) -> None:
        files.append(file.generated(config, uri, content=content))

    for uri, path in ADDED.items():
        add(uri, path.read_text(encoding="utf-8"))
    for path in (GITHUB / "images").glob("*.png"):
        add(f"images/{path.name}", path.read_bytes())
    for name in methods.catalogue():
        add(f"methods/{name}.md", method_page(name))
    reports = {name: output_root() / name / "report.html" for name in GALLERY}
    add("gallery.md", gallery(reports))
    text, charts = bench_record.page()
    add("benchmarks.md", text)
    for name, drawn in charts.items():
        add(f"images/{name}", drawn)
    for name, path in reports.items():
        if path.is_file():
            add(f"gallery/{name}.html", path.read_bytes())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages."""
    uri = page.file.src_uri
    source = ADDED.get(uri, GITHUB / "docs" / uri)
    pages = {path.resolve(): page for page, path in ADDED.items()}

    def page_of(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or "://" in target or uri.startswith(("methods/", "gallery", "benchmarks")):
            return match[0]
        path = (source.parent / target).resolve()
        here = pages.get(path) or next(
            (path.relative_to(top).as_posix() for top in (GITHUB / "docs", GITHUB) if path.is_relative_to(top)), target
        )
        return f"]({here}{'#' + anchor if anchor else ''})"

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
    for line in (GITHUB / "docs" / "zoo.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| `") and {*re.findall(r"`(\w+)`", cells[0])} & {*named}:
            limits = f" Collapses to: {cells[4].rstrip('|').strip()}." if len(cells) == 5 and cells[4] else ""
            parts.append(f"{cells[0]}: {cells[1]} ({cells[3]}).{limits}")
    return "\n\n".join(parts)


def _linked(text: str) -> str:
    return re.sub(r"(https?://[^\s,;)]+[^\s,;).])", r"<\1>", text)


def _fields_explained(doc: str) -> str:
    """The class's docstring; lines `field: meaning` and `field, field: meaning` become a list."""
    return re.sub(r"^(\w+(?:, \w+)*): ", r"* `\1`: ", inspect.cleandoc(doc), flags=re.MULTILINE)


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
