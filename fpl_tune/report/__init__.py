"""Reports: one self-contained page, charts, and the table in Markdown, LaTeX and CSV.

The room reads a study's store; nothing below imports it. The page has five sections, each in the file of its name:
`answer`, `table` (with `paper`), `curves`, `robustness`, `reproduce`. A section has parts, which are functions of the
facts of a study and the comparisons with its reference. `charts.py` holds the forms of charts, which `vega.py` draws;
`page.js` links table and charts.
"""

from fpl_tune.report.page import build

__all__ = ["build"]
