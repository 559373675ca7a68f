"""Tables of the page on real images and of the README, from the files that the study natural_zoo wrote.

fpl-tune report natural_zoo     # in the folder in which the study ran
cp outputs/natural_zoo/{table.md,table.csv,results.csv} docs/explanation/real_images/
python docs/site/document.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from fpl_tune.analysis import compare
from fpl_tune.core.metrics import TEST
from fpl_tune.report.panels import PageTable, TableRow, Td, judged_text, plain_table
from fpl_tune.report.table import markdown

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "explanation" / "real_images"
SETTINGS = ["PACS", "Caltech101"]
SHOWN = ["pfedmoap", "fedpgp", "promptfl", "zeroshot"]
"""Methods of the README's table beside those that validation chooses."""
EXPECTED = {
    1: [("pfedmoap", "promptfl")],
    2: [("fedpgp", "promptfl"), ("fedpgp", "fedper")],
    3: [("coop", "promptfl")],
    4: [("promptfl_ft", "coop")],
    5: [(name, "promptfl") for name in ("fedprox", "promptfl_scaffold", "promptfl_moon", "fedavgm", "fedadam")],
    6: [("kgcoop", "promptfl"), ("prograd", "promptfl")],
    7: [("zeroshot", name) for name in ("kgcoop", "prograd", "promptfl")],
}
"""The differences that the numbered expectations in the head of studies/natural_zoo.yaml are about."""
PUBLISHED = [("pfedmoap", "promptfl"), ("fedpgp", "promptfl"), ("coop", "promptfl")]
"""Differences between published settings that the page shows."""


def page() -> str:
    """The page, with the tables and the note of table.md, the differences that were expected, and published ones."""
    parts = (FOLDER / "table.md").read_text(encoding="utf-8").strip().split("\n\n")
    named = dict(zip(("table", "values", "gains", "note"), parts, strict=True))
    results = pd.read_csv(FOLDER / "results.csv")
    numbered = [(str(number), pair) for number, some in EXPECTED.items() for pair in some]
    rows = _differences(results[results["role"].isin(["tuned", "reference"])], [pair for _, pair in numbered])
    expected = [[number, *row] for (number, _), row in zip(numbered, rows, strict=True)]
    published = _differences(results[results["role"] == "published"], PUBLISHED)
    own = {
        "expected": _table(plain_table(["", "difference", *SETTINGS], expected)),
        "published": _table(plain_table(["published settings", *SETTINGS], published)),
    }
    return _filled(FOLDER.with_suffix(".md"), {**named, **own})


def _differences(results: pd.DataFrame, pairs: list[tuple[str, str]]) -> list[list[str]]:
    """A row for each pair: what is subtracted from what, and the difference in each setting."""
    frame = results.assign(cell=results["variant"].fillna(results["method"]), value=results[TEST])
    tests = [compare(frame[frame["setting"] == setting], pairs).to_dict("records") for setting in SETTINGS]
    by_pair = zip(pairs, *tests, strict=True)
    return [[f"{one} – {other}", *(judged_text(TEST, test) for test in own)] for (one, other), *own in by_pair]


def readme() -> str:
    """The README, with the rows of SHOWN and of the methods that validation chooses in a setting."""
    table = pd.read_csv(FOLDER / "table.csv", index_col="method")
    best = [name for name in table.index if any(table.loc[name, f"{setting} best"] for setting in SETTINGS)]
    rows = []
    for name in dict.fromkeys([*best, *SHOWN]):
        row = table.loc[name]
        texts = [f"{100 * row[f'{at} mean']:.1f} ± {100 * row[f'{at} std']:.1f}" for at in SETTINGS]
        bold = [bool(row[f"{at} best"]) for at in SETTINGS]
        rows.append(TableRow([Td(name), *(Td(text, bold=is_best) for text, is_best in zip(texts, bold, strict=True))]))
    return _filled(ROOT / "README.md", {"natural": _table(PageTable(["test %", *SETTINGS], rows))})


def _table(table: PageTable) -> str:
    return markdown([table], "").strip()


def _filled(path: Path, parts: dict[str, str]) -> str:
    """A file whose marked parts are replaced."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        text = re.sub(rf"{begin}.*{end}", lambda _, new=f"{begin}{part}\n{end}": new, text, flags=re.DOTALL)
    return text
