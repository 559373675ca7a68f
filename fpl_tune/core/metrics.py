"""The table of metrics, and the reporting rules that choose the round to report.

Selection, early stopping and the choice of a round use validation metrics only: the functions that choose receive
nothing else. Test metrics are recorded for reports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

from fpl_tune.core.errors import ConfigError, did_you_mean, unknown

VAL, TEST = "val/acc_mean", "test/acc_mean"
TOTAL_BYTES = "comm/total_bytes"
SUCCESS = "attack/success"
BYTES_PER_SCALAR = 4
"""Bytes of a number that clients send: a float32."""


@dataclass(frozen=True)
class Metric:
    """A metric of a simulation, as results, MLflow, searches, tables and charts read it."""

    name: str
    """Name in records: `room/name`."""
    title: str = ""
    """Title in words, without the unit; if empty, it is made from the name."""
    unit: Literal["%", "s", "B", "M", "FLOP", ""] = ""
    """%: a share that is printed in percent; B: bytes, printed in MB; M: a count that is printed in millions; FLOP:
    operations, printed in GFLOP."""
    maximize: bool | None = None
    """Direction of a search; None if it cannot be an objective."""
    source: Literal["round", "last", "total"] = "round"
    """`round`: one value for each evaluated round; `last`: only in the last record; `total`: a running total."""
    sampled: bool = True
    """False for what seeds do not draw: costs, bytes and the time of seeds that are trained together. Tables show its
    mean without a deviation, and differences without intervals, letters or verdicts; no cell is bold."""


_SIMULATION = (
    Metric("train/loss", maximize=False),
    Metric("train/clients", "clients that train in a round", sampled=False),
    Metric("train/sampled", "clients that are sampled in a round", sampled=False),
    Metric("comm/up_bytes", "upload", "B", False, "total", sampled=False),
    Metric("comm/down_bytes", "download", "B", False, "total", sampled=False),
    Metric(TOTAL_BYTES, "communication", "B", False, "total", sampled=False),
    Metric("comm/vain_bytes", "download in vain", "B", None, "total", sampled=False),
    Metric("cost/client_flops", "operations of a client", "FLOP", False, "last", sampled=False),
    Metric("cost/client_bytes", "communication of a client", "B", False, "last", sampled=False),
    Metric("cost/client_memory", "memory of a client", "B", False, "last", sampled=False),
    Metric("cost/learned", "parameters that a client learns", "M", False, "last", sampled=False),
    Metric("cost/sent", "parameters that a client sends in a round", "M", False, "last", sampled=False),
    Metric("time/seconds", "time", "s", False, "total", sampled=False),
    Metric("time/train_seconds", "time of training in a round", "s", False, sampled=False),
    Metric("time/test_seconds", "time of testing", "s", False, sampled=False),
    Metric("test/harmonic_mean", "HM(test, base, novel)", "%", True),
    Metric("test/base_novel_harmonic_mean", "HM(base, novel)", "%", True),
    Metric("test/auroc", maximize=True, source="last"),
    Metric("test/fpr95", maximize=False, source="last"),
    Metric(SUCCESS, "success of the attack", "%", False),
)
_OF_SETS = (
    Metric("acc_mean", unit="%", maximize=True),
    Metric("acc_min", unit="%", maximize=True),
    Metric("acc_worst10", unit="%", maximize=True),
    Metric("acc_std", unit="%", maximize=False),
    Metric("loss", maximize=False),
    Metric("macro_f1", unit="%", maximize=True),
    Metric("macro_f1_present", unit="%", maximize=True),
    Metric("ece", unit="%", maximize=False),
    Metric("images", source="last", sampled=False),
)
"""Metrics of the validation images (`val/...`), the main test set (`test/...`) and other test sets (`test/<set>/...`).
"""
MEANINGS = {
    "acc_mean": "accuracy, mean over clients",
    "acc_min": "accuracy of the worst client",
    "acc_worst10": "accuracy, mean over the worst tenth of the clients, at least one",
    "acc_std": "standard deviation of the accuracy over clients",
    "loss": "cross-entropy, mean over clients",
    "macro_f1": "F1, mean over the classes that a client's images have or are taken for, then over clients",
    "macro_f1_present": "the same over the classes that the images have, as Dassl's evaluator takes it",
    "ece": "expected calibration error in 15 bins of confidence, over the images of all clients",
    "images": "different images that all clients hold together; in the last record",
    "train/loss": "the method's training loss, mean over the clients and steps of a round",
    "train/clients": "clients that trained in the round and whose updates arrived",
    "train/sampled": "clients that were sampled in the round, where some drop out",
    "comm/up_bytes": "bytes that all clients have sent so far",
    "comm/down_bytes": "bytes that all clients have received so far",
    TOTAL_BYTES: "both together",
    "comm/vain_bytes": "bytes that clients have received whose updates did not arrive, where some drop out",
    "cost/client_flops": "operations of a client in a round, forward and backward, mean over clients and rounds",
    "cost/client_bytes": "bytes that a client sends and receives in a round, mean over clients and rounds",
    "cost/client_memory": "bytes of the towers, of what a client learns with gradients and moments, and of a step",
    "cost/learned": "parameters that a client learns",
    "cost/sent": "parameters that a client sends in a round, mean over clients and rounds",
    "time/seconds": "seconds so far, tests included; one seed's share of those that are trained together",
    "time/train_seconds": "seconds of the round without tests; one seed's share of those that are trained together",
    "time/test_seconds": "seconds from deployed models to the logits of the test images",
    "test/harmonic_mean": "harmonic mean of the accuracies on the client's own, all base and all novel classes",
    "test/base_novel_harmonic_mean": "harmonic mean of the latter two (KgCoOp, PromptSRC)",
    "test/auroc": "area under the ROC curve of known against unknown classes (`partition=open_set`)",
    "test/fpr95": "false positives where 95 % of the images of known classes are accepted",
    SUCCESS: "share of the test images of other classes that are taken for the target of a backdoor where they have "
    "the patch, mean over benign clients ([Clients](../explanation/clients.md))",
}
"""What each metric of a set of images, and each other one, is: for the reference."""
_ROOMS = {"val": "validation", "test": "test"}

METRICS: dict[str, Metric] = {
    **{f"{room}/{each.name}": replace(each, name=f"{room}/{each.name}") for room in _ROOMS for each in _OF_SETS},
    **{each.name: each for each in _SIMULATION},
}
"""The table of metrics by name. Methods add their own."""
_BUILT_IN = frozenset(METRICS)
_stored: ContextVar[Mapping[str, Metric]] = ContextVar("stored")


def add_metric(metric: Metric) -> None:
    """Adds a method's own metric to the table.

    Raises:
        ConfigError: every simulation reports a metric of that name.
    """
    if metric.name in _BUILT_IN:
        raise ConfigError(f"Every simulation reports {metric.name!r}. Choose another name for the method's metric.")
    METRICS[metric.name] = metric


def use_stored(metrics: Iterable[Metric]) -> None:
    """Sets the metrics of the stored study that is read, whose methods may not be loaded, in place of another study's.

    They are not in the table: another study does not report them.
    """
    _stored.set({each.name: each for each in metrics})


def metric(name: str) -> Metric:
    """A metric by name. One that is not in the table, such as that of a test set, is made from its name's last part."""
    room, _, last = name.rpartition("/")
    entry = METRICS.get(name) or _stored.get({}).get(name) or next((m for m in _OF_SETS if m.name == last), None)
    if entry is None:
        accuracy = "acc" in re.split(r"\W|_", last) or last.endswith("harmonic_mean")
        seconds = last.endswith("seconds")
        entry = Metric(name, unit="%" if accuracy else "s" if seconds else "", sampled=not seconds)
    where = " ".join(_ROOMS.get(word, word) for word in room.split("/") if word)
    words = "accuracy" if last == "acc_mean" else last.replace("acc_", "accuracy, ").replace("_", " ")
    return replace(entry, name=name, title=entry.title or f"{where} {words}".strip())


def of_method(name: str) -> bool:
    """True if a metric is one that a method adds, not one that every simulation reports."""
    return name not in _BUILT_IN and name.partition("/")[0] not in _ROOMS


def of_test(name: str) -> bool:
    """True if a metric is of test images, by which nothing is chosen."""
    return name.startswith("test/") or name == SUCCESS


def objectives() -> list[str]:
    """Metrics that a search may optimise: those with a direction, except for test metrics."""
    return [m.name for m in METRICS.values() if m.maximize is not None and not of_test(m.name)]


def check_chosen_by(name: str, where: str) -> None:
    """Raises `ConfigError` for a metric that may not choose: a test metric, or one without a direction."""
    if name not in objectives():
        hint = "Do not select on test data." if of_test(name) else did_you_mean(name, objectives())
        raise ConfigError(f"{where}: {name!r} is not a validation metric or a cost. {hint}")


def known_before(name: str) -> bool:
    """True for bytes and costs of a client, which follow from a run's configuration; see `simulation.costs`."""
    return name.startswith(("comm/", "cost/"))


def excess(name: str, value: float, limit: float) -> float:
    """By how much a value violates a limit in the metric's direction; 0 or less within it, NaN if it is not known."""
    over = limit - value if metric(name).maximize else value - limit
    return 0.0 if abs(over) < STEP else over


def violation(values: Mapping[str, float], limits: Mapping[str, float]) -> float:
    """By how much values violate limits, as shares of the limits, summed; 0 within them, NaN if a value is NaN."""
    over = [excess(name, value, limits[name]) / (abs(limits[name]) or 1.0) for name, value in values.items()]
    return math.nan if any(map(math.isnan, over)) else math.fsum(max(0.0, share) for share in over)


def check_reported(name: str, where: str = "report.metric") -> None:
    """Raises `ConfigError` for a metric that no run reports, whichever test sets the data has."""
    room, _, last = name.rpartition("/")
    of_set = room.startswith("test/") and last in {m.name for m in _OF_SETS}
    if name not in METRICS and not of_set:
        known = [*METRICS, *(f"{room}/{each.name}" for each in _OF_SETS if room.startswith("test/"))]
        raise ConfigError(f"{where}: no run reports {name!r}. {did_you_mean(name, known)}")


def shown_beside(record: Mapping[str, object]) -> list[str]:
    """The further metrics of a record that tables show: those of other test sets, the success of an attack, and a
    method's own.

    Metrics of a single domain, or of one of several data sets, are shown as curves and bars only.
    """
    names = []
    for name, value in record.items():
        room, _, last = name.rpartition("/")
        of_part = room.startswith(("test/domain/", "test/cross/"))
        of_set = room.startswith("test/") and last == "acc_mean" and not of_part
        own = "/" not in room and of_method(name)
        shown = own or of_set or name == SUCCESS or last.endswith("harmonic_mean")
        if isinstance(value, float) and math.isfinite(value) and shown:
            names.append(name)
    return names


STEP = 1e-7
"""Values that differ by less are equal: far more than the rounding of a mean, and no more than one image in 10^7."""
_OFFSET = 0.2371
"""Where steps begin: no share of up to 10,000 images is so near an edge that rounding decides its step."""


def comparable(value: float) -> float:
    """A value for comparisons: its number of steps of 1e-7. Equal counts of images that are averaged in another order
    are equal in it, although their means differ in the last bits."""
    return math.floor(value / STEP + _OFFSET) if math.isfinite(value) else value


def _first_best(values: Sequence[float]) -> int:
    """The place of the highest value, the first one in a tie."""
    return max(range(len(values)), key=lambda i: (comparable(values[i]), -i))


CHOICES: dict[str, Callable[[Sequence[float]], int]] = {
    "final": lambda val: len(val) - 1,
    "best_val": _first_best,
}
"""Rules that choose a round by validation metrics only; ties are broken by the earliest round."""

TEST_SELECTED_RULES = ("best_test", "mean_last5")
"""Rules that papers use: the best test round, and the mean of the last five evaluated rounds. They are shown for
comparison, but nothing is chosen by them."""


def check_rule(rule: str, called: str = "reporting rule") -> None:
    """Raises `ConfigError` for an unknown reporting rule."""
    if rule not in (*CHOICES, *TEST_SELECTED_RULES):
        raise unknown(called, rule, (*CHOICES, *TEST_SELECTED_RULES))


def report_rules(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Test and validation accuracy and round by rule, from one seed's records in the order of rounds."""
    val = [record["val/acc_mean"] for record in rounds]
    rules: dict[str, dict[str, float]] = {}
    for name, choose in CHOICES.items():
        at = choose(val)
        rules[name] = {"round": at + 1, "val/acc_mean": val[at], TEST: rounds[at][TEST]}
    test = [record[TEST] for record in rounds]
    at = _first_best(test)
    rules["best_test"] = {"round": at + 1, "val/acc_mean": val[at], TEST: test[at]}
    last = slice(max(0, len(test) - 5), None)
    rules["mean_last5"] = {
        "round": len(test),
        "val/acc_mean": math.fsum(val[last]) / len(val[last]),
        TEST: math.fsum(test[last]) / len(test[last]),
    }
    return rules
