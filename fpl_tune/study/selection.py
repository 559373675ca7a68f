"""The best cell of a study, by validation."""

from __future__ import annotations

from dataclasses import dataclass

from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import CHOICES, HABITS
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store


@dataclass(frozen=True)
class Best:
    """What validation chooses."""

    cell: Cell
    rule: str
    val: float
    test: float
    test_std: float
    seeds: int


def best(store: Store, rule: str = "final") -> Best:
    """The cell with the highest mean validation accuracy over seeds; references do not take part.

    Raises:
        ConfigError: a rule that looks at test figures, or no finished cell.
    """
    if rule not in CHOICES:
        raise ConfigError(
            f"The rule that chooses must be {' or '.join(CHOICES)}, but is {rule!r}"
            f"{', which reads test figures' if rule in HABITS else ''}."
        )
    val = store.summary(rule, "val/acc_mean")
    test = store.summary(rule, "test/acc_mean").set_index("cell")
    val = val[(val["role"] != "reference") & (val["status"] == "done") & (val["n"] > 0)]
    if val.empty:
        raise ConfigError(f"{store.name} has no finished cell yet. Run `fpl-tune study {store.name}`.")
    at = int(val["mean"].astype(float).argmax())
    row = val.iloc[at]
    figures = test.loc[row["cell"]]
    return Best(
        store.cell(str(row["cell"])),
        rule,
        float(row["mean"]),
        float(figures["mean"]),
        float(figures["std"]),
        int(figures["n"]),
    )
