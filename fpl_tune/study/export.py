"""Export of a cell: its prompts, and the files that repeat it."""

from __future__ import annotations

import shutil
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpl_tune import config
from fpl_tune.clip import Towers
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import DEPLOYED, write_text
from fpl_tune.simulation.task import towers_for
from fpl_tune.study.cells import Cell
from fpl_tune.study.schema import read_prompts
from fpl_tune.study.store import Store, as_yaml
from fpl_tune.study.versions import versions


def export(store: Store, cell: Cell, folder: Path) -> list[Path]:
    """Writes a cell's study file, prompts, nearest words, expected results, script and environment.

    Args:
        store: the study's store.
        cell: the cell.
        folder: an empty folder, or that of an earlier export.

    Returns:
        The files.

    Raises:
        ConfigError: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "reproduce.sh").is_file():
        raise ConfigError(f"An export goes into an empty folder, but {folder} is not. Name another one.")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{store.name}-{cell.id}"
    write_text(folder / f"{name}.yaml", _study_file(store, cell))
    seeds = [s for s in store.seeds(cell) if (store.seed_folder(cell, s) / "prompts.safetensors").is_file()]
    for seed in seeds:
        shutil.copyfile(
            store.seed_folder(cell, seed) / "prompts.safetensors", folder / f"prompts-seed{seed}.safetensors"
        )
    write_text(folder / "run.yaml", as_yaml(config.as_dict(cell.run)))
    towers = towers_for(cell.run.clip, dtype="float32")
    words = [
        f"seed {seed}, {leaf}: {', '.join(f'{word} {distance:.3g}' for word, distance in line)}"
        for seed in seeds
        for leaf, tensor in read_prompts(folder / f"prompts-seed{seed}.safetensors").items()
        if not leaf.startswith(DEPLOYED)
        for line in nearest_words(towers, tensor)
    ]
    write_text(folder / "words.txt", "\n".join(words) + "\n")
    found = store.frame()
    write_text(folder / "expected.csv", found[found["cell"] == cell.id].to_csv(index=False))
    write_text(folder / "reproduce.sh", _SCRIPT.format(name=name))
    (folder / "reproduce.sh").chmod(0o755)
    write_text(folder / "environment.txt", _environment())
    return sorted(folder.iterdir())


_SCRIPT = """#!/bin/sh
# Repeats the cell, and prints its table and the expected results. environment.txt lists the versions that it ran with:
#   python -m pip install -r environment.txt
set -e
cd "$(dirname "$0")"
fpl-tune study ./{name}.yaml
echo "Expected results:"
cat expected.csv
"""


def _study_file(store: Store, cell: Cell) -> str:
    """A study file with this cell alone."""
    run = config.as_dict(cell.run)
    name = run["method"]["name"]
    method: list[Any] = [{"override /method": name}] if name in config.options("method") else []
    head = {"defaults": ["/study", *method, "_self_"], "title": f"{store.name}: {cell.label}"}
    body = {**head, "seeds": store.study().seed_list(), **run}
    return f"# {cell.label} of {store.name}, exported.\n" + as_yaml(body)


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
