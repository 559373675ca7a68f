"""Writes the optimiser settings that the study `tune_defaults` chose to fpl_tune/conf/optim/shapes_<method>.yaml.

    fpl-tune study tune_defaults
    python .github/tools/write_defaults.py

The choice is the trial with the highest mean validation accuracy over the study's seeds.
"""

from __future__ import annotations

from typing import Any

import yaml

import fpl_tune
from fpl_tune.paths import shipped

STUDY = "tune_defaults"
ADAMW = ("feddpt",)  # native to it; all others use SGD


def rounded(value: Any) -> Any:
    """Two significant digits, as text that YAML reads as a number."""
    return float(f"{value:.2g}") if isinstance(value, float) else value


def main() -> None:
    """Write one file per method."""
    study = fpl_tune.load_study(STUDY)
    best: dict[str, tuple[float, dict[str, Any]]] = {}
    count: dict[str, int] = {}
    rows = study.results[study.results["rule"] == "final"]
    for _, trial in rows.groupby("cell"):
        row = trial.iloc[0]
        name, value = str(row["variant"]), float(trial["val/acc_mean"].mean())
        groups = {c.rpartition(".")[2]: rounded(float(row[c])) for c in rows if ".groups." in c and row[c] == row[c]}
        chosen = {"name": "adamw" if name in ADAMW else "sgd", "lr": rounded(float(row["optim.lr"]))}
        chosen |= {"momentum": 0.9} if chosen["name"] == "sgd" else {}
        chosen |= {"weight_decay": 5.0e-4 if chosen["name"] == "sgd" else 0.01, "batch": int(row["optim.batch"])}
        chosen |= {"groups": groups} if groups else {}
        count[name] = count.get(name, 0) + 1
        if name not in best or value > best[name][0]:
            best[name] = (value, chosen)
    for name, (value, chosen) in sorted(best.items()):
        said = f"# {name} on the embedded world: {100 * value:.1f} % of validation images, the best of {count[name]} "
        said += f"trials of the study {STUDY}.\n"
        path = shipped("conf", "optim") / f"shapes_{name}.yaml"
        path.write_text(said + yaml.safe_dump(chosen, sort_keys=False), encoding="utf-8")
        print(f"{path.name}: {chosen}")


if __name__ == "__main__":
    main()
