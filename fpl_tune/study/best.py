"""The best cell, by validation; its export; and whether what is stored can be had again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from fpl_tune import config
from fpl_tune.clip import Towers, load_towers
from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import CHOICES, HABITS
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import versions
from fpl_tune.study.resources import setup_of
from fpl_tune.study.results import LEARNED
from fpl_tune.study.statistics import aggregate
from fpl_tune.study.store import Store, write
from fpl_tune.trial import Record, Trial

if TYPE_CHECKING:
    import pandas as pd


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


def export(store: Store, cell: Cell, folder: Path) -> list[Path]:
    """Writes what it takes to use and to repeat a cell: study file, prompts, nearest words, script, environment.

    Raises:
        ConfigError: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "reproduce.sh").is_file():
        raise ConfigError(f"An export goes into an empty folder, but {folder} is not. Name another one.")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{store.name}-{cell.id}"
    write(folder / f"{name}.yaml", _study_file(store, cell))
    seeds = [s for s in store.seeds(cell) if (store.place(cell, s) / "prompts.safetensors").is_file()]
    for seed in seeds:
        shutil.copyfile(store.place(cell, seed) / "prompts.safetensors", folder / f"prompts-seed{seed}.safetensors")
    towers = load_towers(cell.run.clip.name, cell.run.clip.pretrained)
    words = [
        f"seed {seed}, {leaf}: {', '.join(f'{word} {distance:.3g}' for word, distance in line)}"
        for seed in seeds
        for leaf, tensor in load_file(folder / f"prompts-seed{seed}.safetensors").items()
        for line in nearest_words(towers, tensor)
    ]
    write(folder / "words.txt", "\n".join(words) + "\n")
    found = store.frame()
    write(folder / "expected.csv", found[found["cell"] == cell.id].to_csv(index=False))
    write(folder / "reproduce.sh", _SCRIPT.format(name=name, expected=_expected(found, cell)))
    (folder / "reproduce.sh").chmod(0o755)
    write(folder / "environment.txt", _environment())
    return sorted(folder.iterdir())


_SCRIPT = """#!/bin/sh
# Repeats the cell, prints its table, and what it should say. environment.txt has the versions that it ran with:
#   python -m pip install -r environment.txt
set -e
cd "$(dirname "$0")"
fpl-tune study ./{name}.yaml
echo "Expected, all figures in expected.csv: {expected}"
"""


def _expected(found: pd.DataFrame, cell: Cell) -> str:
    """What the table of the last round should say."""
    done = found[(found["cell"] == cell.id) & (found["rule"] == "final") & (found["status"] == "done")]
    val, test = (aggregate(done[f"{room}/acc_mean"].astype(float).tolist()) for room in ("val", "test"))
    spread = "" if math.isnan(test["std"]) else f" ± {100 * test['std']:.1f}"
    seeds = ", ".join(str(seed) for seed in done["seed"])
    return f"validation {100 * val['mean']:.1f} %, test {100 * test['mean']:.1f}{spread} %, seeds {seeds}"


def _study_file(store: Store, cell: Cell) -> str:
    """The cell as a study of its own."""
    run = config.as_dict(cell.run)
    known = run["method"]["name"] in config.options("method")
    defaults: list[Any] = ["/study", *([{"override /method": run["method"]["name"]}] if known else []), "_self_"]
    body = {
        "defaults": defaults,
        "title": f"{store.name}: {cell.label}",
        "seeds": store.spec().seed_list(),
        **_lists(run),
    }
    return f"# {cell.label} of {store.name}, exported.\n" + yaml.safe_dump(body, sort_keys=False)


def _lists(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {k: _lists(v) for k, v in node.items()}
    return [_lists(v) for v in node] if isinstance(node, list | tuple) else node


def _environment() -> str:
    """Installed distributions and their versions, one per line."""
    found = {d.metadata["Name"]: d.version for d in distributions()}
    own = found.pop("fpl-tune", "")
    lines = [f"{name}=={found[name]}" for name in sorted(found, key=str.lower)]
    return "\n".join([f"# python {versions()['python']}, fpl-tune {own}", *lines]) + "\n"


def nearest_words(towers: Towers, tensor: Tensor, *, prompts: int = 4) -> list[list[tuple[str, float]]]:
    """For contexts [..., l, d], the vocabulary's whole word nearest to each token, and its Euclidean distance.

    Empty for other tensors. At most `prompts` of the leading axes are shown. (CoOp, Table 4, shows prompts so.)
    """
    inner = getattr(towers.tokenizer, "tokenizer", towers.tokenizer)
    decode = getattr(inner, "decode", None)
    if decode is None or tensor.ndim < 2 or tensor.shape[-1] != towers.text_width:
        return []
    table = towers.text.token_embedding.weight.detach().float()
    pieces = ((i, decode([i]).strip()) for i in range(len(table) - 2))  # the last two are the start and the end
    whole = {i: word for i, word in pieces if word.isascii() and word.isalpha() and inner.encode(word) == [i]}
    ids = list(whole)
    contexts = tensor.float().reshape(-1, *tensor.shape[-2:])[:prompts]
    nearest = (torch.cdist(one, table[ids].to(one.device)).min(1) for one in contexts)
    return [
        [(whole[ids[i]], d) for d, i in zip(found.values.tolist(), found.indices.tolist(), strict=True)]
        for found in nearest
    ]


# -- verification --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """Some rounds of a cell run again."""

    cell: Cell
    rounds: int
    worst: float
    """Largest difference of any figure, in that figure's unit."""
    where: str
    agrees: bool


def verify(
    store: Store,
    cell: Cell,
    *,
    rounds: int = 2,
    tolerance: float = 1e-6,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Runs the first rounds of a finished cell again, all its seeds together, and compares every figure.

    `progress` hears (rounds done, rounds in all).

    Raises:
        ConfigError: the cell has no finished seed, or there is no round to compare.
    """
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, but is {rounds}: nothing would be compared.")
    seeds = [s for s in store.spec().seed_list() if (store.result(cell, s) or {}).get("status") == "done"]
    if not seeds:
        raise ConfigError(f"Only finished cells are verified, but {cell.label} is not. Run `fpl-tune study` first.")
    setup = setup_of(store.spec(), store.folder)
    before = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        trial = Trial(cell.run, seeds, cache_dir=setup.cache_dir, device=setup.device, block=setup.block)
        worst, where, done = 0.0, "", 0
        while not trial.done and done < rounds:
            for record in trial.step():
                stored = store.history(cell, record["seed"])[done]
                for name, difference in _differences(record, stored):
                    if not difference <= worst:
                        worst, where = difference, f"{name}, seed {record['seed']}, round {done + 1}"
            done += 1
            if progress is not None:
                progress(done, min(rounds, trial.rounds))
    finally:
        torch.set_num_threads(before)
    return Verification(cell, done, worst, where, worst <= tolerance)


def _differences(a: Record, b: Record) -> list[tuple[str, float]]:
    """Absolute differences of all figures but clocks' and a count that older stores lack; infinite where one is
    missing."""
    found = []
    for name in sorted(name for name in {*a, *b} - {LEARNED} if not name.startswith("time/")):
        found.append((name, _difference(a.get(name), b.get(name))))
    return found


def _difference(x: Any, y: Any) -> float:
    if isinstance(x, Sequence) and isinstance(y, Sequence) and len(x) == len(y):
        return max((_difference(i, j) for i, j in zip(x, y, strict=True)), default=0.0)
    if isinstance(x, int | float) and isinstance(y, int | float):
        return 0.0 if x == y or (math.isnan(x) and math.isnan(y)) else abs(x - y)
    return math.inf
