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
from fpl_tune.report.panels import judged

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
    """The page, with the tables and the note of table.md, and the differences that were expected."""
    parts = (FOLDER / "table.md").read_text(encoding="utf-8").strip().split("\n\n")
    named = dict(zip(("table", "values", "gains", "note"), parts, strict=True))
    numbered = [(number, pair) for number, some in EXPECTED.items() for pair in some]
    rows = zip(numbered, _differences([pair for _, pair in numbered], ["tuned", "reference"]), strict=True)
    expected = _table(["", "difference", *SETTINGS], [[str(number), *row] for (number, _), row in rows])
    published = _table(["published settings", *SETTINGS], _differences(PUBLISHED, ["published"]))
    return _filled(FOLDER.with_suffix(".md"), {**named, "expected": expected, "published": published})


def _differences(pairs: list[tuple[str, str]], roles: list[str]) -> list[list[str]]:
    """A row for each pair: what is subtracted from what, and the difference in each setting."""
    results = pd.read_csv(FOLDER / "results.csv")
    results = results[results["role"].isin(roles)]
    frame = results.assign(cell=results["variant"].fillna(results["method"]), value=results[TEST])
    columns = [[f"{one} – {other}" for one, other in pairs]]
    for setting in SETTINGS:
        found = compare(frame[frame["setting"] == setting], pairs).to_dict("records")
        columns.append(["{} ({}): {}".format(*judged(TEST, row)) for row in found])
    return [list(row) for row in zip(*columns, strict=True)]


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def readme() -> str:
    """The README, with the rows of SHOWN and of the methods that validation chooses in a setting."""
    table = pd.read_csv(FOLDER / "table.csv", index_col="method")
    best = [name for name in table.index if any(table.loc[name, f"{setting} best"] for setting in SETTINGS)]
    rows = []
    for name in dict.fromkeys([*best, *SHOWN]):
        row = table.loc[name]
        texts = [f"{100 * row[f'{at} mean']:.1f} ± {100 * row[f'{at} std']:.1f}" for at in SETTINGS]
        texts = [f"**{text}**" if row[f"{at} best"] else text for text, at in zip(texts, SETTINGS, strict=True)]
        rows.append([name, *texts])
    return _filled(ROOT / "README.md", {"natural": _table(["test %", *SETTINGS], rows)})


def _filled(path: Path, parts: dict[str, str]) -> str:
    """A file whose marked parts are replaced."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        text = re.sub(rf"{begin}.*{end}", lambda _, new=f"{begin}{part}\n{end}": new, text, flags=re.DOTALL)
    return text
