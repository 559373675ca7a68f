"""Verbs that read: `ls`, `show`, `report`, `ui`."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fpl_tune import config, methods
from fpl_tune.api import stored
from fpl_tune.cli import output
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.evaluate import check_rule
from fpl_tune.formatting import counted, percent
from fpl_tune.paths import output_folder, output_root, shipped
from fpl_tune.redact import redact
from fpl_tune.study import results, selection
from fpl_tune.study.cells import axes_of


def ls(kind: str, format: str) -> None:
    """Prints one row an entry."""
    listings: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "methods": _methods,
        "data": _data,
        "studies": _studies,
        "towers": _towers,
        "results": _results,
    }
    rows = listings[kind]()
    if not rows and format == "table":
        talk = output.console()
        talk.print(f"No results in {output_folder()} yet. A study leaves some: fpl-tune study NAME.", soft_wrap=True)
        return
    if kind == "methods" and format == "table":
        rows = [_narrow(row) for row in rows]
    output.emit(rows, format)


def _narrow(row: Mapping[str, str]) -> dict[str, str]:
    """A method in three columns, the paper below what it is, and what it needs below its options if that is unusual."""
    needs = "" if row["needs"] in ("pooled", "") else f"needs: {row['needs']}"
    what = "\n".join(filter(None, [row["what"], row["paper"].removeprefix("https://")]))
    return {"method": row["method"], "what": what, "options": "\n".join(filter(None, [row["options"], needs]))}


def _methods() -> list[dict[str, Any]]:
    known = methods.catalogue()
    shared = Counter(kind.__module__ for kind in known.values())
    rows = []
    for name, kind in known.items():
        text = inspect.getdoc(sys.modules[kind.__module__] if shared[kind.__module__] == 1 else kind) or ""
        needs = inspect.getattr_static(kind, "needs")
        url = re.search(r"https?://\S+?(?=[.,;)]*(?:\s|$))", text)
        rows.append(
            {
                "method": name,
                "what": text.splitlines()[0].rstrip("."),
                "needs": needs if isinstance(needs, str) else "as its options say",
                "options": ", ".join(f.name for f in methods.hyper_parameters(kind)),
                "paper": url.group(0) if url else "",
            }
        )
    for path in sorted(shipped("conf", "method").glob("*.yaml")):
        if path.stem not in known:
            parts = ", ".join(re.findall(r"name: (\w+)", path.read_text(encoding="utf-8")))
            rows.append({"method": path.stem, "what": _headline(path), "needs": "", "options": parts, "paper": ""})
    return rows


def _data() -> list[dict[str, Any]]:
    return [{"data": path.stem, "what": _headline(path)} for path in sorted(shipped("conf", "data").glob("*.yaml"))]


def _studies() -> list[dict[str, Any]]:
    return [{"study": name, "what": _headline(path)} for name, path in config.list_studies().items()]


def _towers() -> list[dict[str, Any]]:
    rows = []
    for path in sorted(shipped("conf", "clip").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows.append(
            {
                "clip": path.stem,
                "towers": node["name"],
                "weights": node["pretrained"] or "shipped",
                "what": _headline(path),
            }
        )
    return rows


def _results() -> list[dict[str, Any]]:
    from fpl_tune.study.store import Store

    rows = []
    for path in sorted(output_folder().glob("*/study.yaml")):
        store = Store(output_folder(), path.parent.name)
        frame = store.frame()
        counts = {"cells": len(store.cells()), "with results": frame["cell"].nunique()}
        rows.append({"study": store.name, **counts, "seeds": frame["seed"].nunique()})
    return rows


def _headline(path: Path) -> str:
    """The first comment line of a YAML file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line[2:].rstrip(".")
    return ""


def show(name: str, rule: str | None, format: str) -> None:
    """Prints mean and deviation over seeds by cell."""
    store = stored(name)
    chosen = rule or store.spec().report.rule
    check_rule(chosen)
    table(store, chosen, format)


def table(store: Any, rule: str, format: str) -> None:
    """The study's table under a reporting rule; the best cell, chosen on validation, in bold."""
    spec, cells = store.spec(), store.cells()
    metric = spec.report.metric
    share = percent(metric)
    found = store.frame(metric)
    frame = results.summary(found, cells, len(spec.seed_list()), rule, metric)
    choice = selection.choose(found, cells, spec, rule)
    chosen = {cell.id for cell in choice.cells} if choice else set[str]()
    rows, ranks, wanted = [], [], len(spec.seed_list())
    for record in frame.to_dict("records"):
        if format != "table":
            rows.append(record)
            continue
        ranks.append(_rank(record, record[results.VAL], [name for name in axes_of(spec.axes) if name in record]))
        status = "best" if record["cell"] in chosen else "" if record["status"] == "done" else record["status"]
        rows.append(
            {
                "cell": record["label"],
                "": status,
                "validation %": output.percent(record[results.VAL]),
                "test %" if share else metric: (output.percent if share else output.measured)(
                    record["mean"], record["std"]
                ),
                "seeds": str(record["n"]) if record["n"] == wanted else f"{record['n']} of {wanted}",
                "id": record["cell"],
            }
        )
    habit = " (a habit of the papers: it looks at test figures)" if rule == "best_test" else ""
    notes = [f"{metric} by the rule '{rule}'{habit}", *(["± is the deviation over seeds"] if wanted > 1 else [])]
    if format == "table" and choice is not None:
        notes.append("best on validation in bold" + (f": {choice.by}" if len(choice.cells) > 1 else ""))
        if spec.search.sampler is not None:
            kept = _leading(ranks)
            if len(kept) < len(rows):
                notes.append(f"{counted(len(rows) - len(kept), 'more trial')}: --format csv")
            rows = [rows[i] for i in kept]
    best = [i for i, row in enumerate(rows) if row.get("") == "best"]
    output.emit(rows, format, title=spec.title or spec.name, best=best, caption="; ".join(notes))


_SHOWN = 20  # trials of a search that are printed

_Rank = tuple[str, str, float]


def _rank(record: Mapping[str, Any], val: float, axes: Sequence[str]) -> _Rank:
    """Role, place on the axes and validation accuracy of a cell, the worst where it has none."""
    return record["role"], repr([record[name] for name in axes]), -1.0 if math.isnan(val) else val


def _leading(ranks: Sequence[_Rank]) -> list[int]:
    """Places of the rows that are printed of a search: references, then the best of each part and the best of all."""
    trials = sorted((i for i, rank in enumerate(ranks) if rank[0] == "trial"), key=lambda i: -ranks[i][2])
    firsts = {ranks[i][1]: i for i in reversed(trials)}.values()
    return [*(i for i, rank in enumerate(ranks) if rank[0] != "trial"),
            *(i for n, i in enumerate(trials) if n < _SHOWN or i in firsts)]  # fmt: skip


def report(name: str, out: Path | None, **shown: str | None) -> None:
    """Builds the report again and says where it lies; `shown` is what `build` takes."""
    from fpl_tune.report import build

    with output.progress("writing the report") as progress:
        page = build(stored(name), out, progress=progress, **shown)
    print(page)


def ui(port: int) -> None:
    """Runs `mlflow ui` on this folder's store until it is stopped."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port must lie in 1..65535, but is {port}.")
    from fpl_tune import track

    root = output_root()
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
    if uri.startswith("sqlite") and not (root / "mlflow.db").is_file():
        raise EnvironmentProblem(f"There is no MLflow store in {root}. Run a study first: fpl-tune study lambda_sweep.")
    talk = output.console()
    runs_already = uri.startswith("http")
    address = redact(uri) if runs_already else f"http://127.0.0.1:{port}"
    known = track.experiments(uri)
    talk.print(f"MLflow on {address}{'' if runs_already else '  (stop with Ctrl-C)'}", soft_wrap=True)
    for name, key in known.items():
        talk.print(f"  {name}  {track.page(address, key)}", soft_wrap=True)
    if runs_already:
        return
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    # the address may hold a password, which arguments would show to every user of the machine
    code = subprocess.call(command, env={**os.environ, "MLFLOW_BACKEND_STORE_URI": uri})
    if code not in (0, 130, -2):
        raise EnvironmentProblem(
            f"mlflow ui ended with code {code}. Is port {port} taken? Choose another: --port {port + 1}."
        )
