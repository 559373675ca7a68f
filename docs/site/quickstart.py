"""Runs docs/quickstart.ipynb and writes its outputs: `python docs/site/quickstart.py`. The site makes a page of it.

What differs from machine to machine is left out: progress on standard error, and what the kernel says of itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
NOTEBOOK = DOCS / "quickstart.ipynb"


def execute(folder: Path, path: Path = NOTEBOOK) -> dict[str, Any]:
    """The notebook as running it in a folder leaves it.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbclient
    import nbformat

    given = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    own = {name: value for name, value in os.environ.items() if name != "FPL_TUNE_OUTPUT"}  # results stay in the folder
    client = nbclient.NotebookClient(
        given,
        timeout=300,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # of the kernel, which warns that its port of this machine is open
    )
    return cleaned(client.execute(env=own))


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook without what differs from run to run, its cells numbered."""
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(notebook["cells"]):
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{number}", "metadata": {}, "source": cell["source"]}
        if cell["cell_type"] == "code":
            outputs = [{**output, "metadata": {}} if "data" in output else output for output in cell["outputs"]]
            kept["outputs"] = [output for output in outputs if output.get("name") != "stderr"]
            kept["execution_count"] = cell["execution_count"]
        cells.append(kept)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def markdown(path: Path = NOTEBOOK) -> str:
    """The notebook as a page of the site: texts, code in fences, and outputs as HTML or text."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            page, text = ("".join(data.get(kind, "")) for kind in ("text/html", "text/plain"))
            page = re.sub(r"<style.*?</style>| border=\"1\" class=\"dataframe\"", "", page, flags=re.DOTALL)
            page = "\n".join(line for line in page.splitlines() if line.strip())  # a blank line would end the HTML
            parts.append(f"<div>\n{page}\n</div>" if page else f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        found = execute(Path(work))
    for cell in found["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)  # as editors of notebooks write it
    NOTEBOOK.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(str(Path.home()) in NOTEBOOK.read_text(encoding="utf-8"))
