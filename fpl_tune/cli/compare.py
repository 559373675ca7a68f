"""`fpl-tune compare`: the differences of two studies."""

from __future__ import annotations

from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, StoredStudy, app, stored
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, figure, signed


@app.command(epilog="Example: fpl-tune compare lambda_sweep lambda_sweep_rn50", rich_help_panel="Results")
def compare(
    a: StoredStudy,
    b: StoredStudy,
    rule: Annotated[str, typer.Option(help="Reporting rule.")] = "final",
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare although partitions differ.")] = False,
    format: FormatOption = "table",
) -> None:
    """Differences of two studies, cell by cell, paired by seed."""
    from fpl_tune.report import compare as comparing

    one, other = stored(a), stored(b)
    with output.progress("comparing") as progress:
        found = comparing.compare(one, other, rule=rule, progress=progress)
    if found.warnings and not anyway:
        raise ConfigError(f"{found.warnings[0]} Compare nevertheless: --anyway.")
    for warning in found.warnings:
        output.warn(warning)
    if format != "table":
        output.emit(found.rows, format)
        return
    rows = [
        {
            "cell": row["cell"],
            "A %": output.percent(row[one.name]),
            "B %": output.percent(row[other.name]),
            "B − A": signed(row["difference"], "acc"),
            "± sem": figure(row["sem"], "acc"),
            "verdict": row["verdict"],
            "seeds": row["seeds"],
            **({"partition": "same" if row["same_split"] else "differs"} if found.warnings else {}),
        }
        for row in found.rows
    ]
    left = [counted(n, "cell") + f" of {name}" for name, n in zip("AB", found.alone, strict=True) if n]
    alone = f" Without a partner: {', '.join(left)}." if left else ""
    caption = f"Test accuracy by the rule '{rule}', differences in points, paired by seed.{alone}"
    output.emit(rows, format, title=f"A: {one.name}\nB: {other.name}", caption=caption)
