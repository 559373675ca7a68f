"""Exports a world: the weights, images and clients of a run, for use by other code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from torch import nn

from fpl_tune.clip import Towers
from fpl_tune.config import RunSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import atomic_write, write_text
from fpl_tune.core.version import __version__
from fpl_tune.data.transform import transform
from fpl_tune.parity.run import Clients, file_name
from fpl_tune.parity.weights import openai_state, save_torchscript
from fpl_tune.simulation.task import towers_for

_WHAT, _VERSION = "fpl-tune world", 1


def export_world(
    run: RunSpec,
    folder: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    overrides: Sequence[str] = (),
    progress: Callable[[float, float, str], object] | None = None,
) -> Path:
    """Exports the towers, images and clients of a run, so that a fork can run on them.

    Args:
        run: the run with the towers, data set and partition.
        folder: a new folder.
        seeds: seeds whose partitions are written.
        overrides: the overrides of `run`, for `fpl-tune parity`.
        progress: called with the number of written images, the number of all images, and a description.

    Returns:
        The folder: `clip.pt` (TorchScript) and `clip_state_dict.pt` in OpenAI's layout, `images/<class>/`,
        `split_zhou_<Name>.json` in CoOp's format, `split-seed<n>.json` with the images of each client, `dassl.opts`,
        `fpl_world.py`, `world.json` and a README.

    Raises:
        ConfigError: the folder exists, or a fork could not read the weights, classes or images.
    """
    folder = Path(folder)
    if folder.exists():
        raise ConfigError(f"{folder} exists. Name a new folder for the world, or remove it.")
    partitions = [Clients(run, seed) for seed in seeds]
    first = partitions[0]
    if first.dataset.train.transform != "clip":
        raise ConfigError(
            f"Images of {first.dataset.name} are prepared as {first.dataset.train.transform}, which files with 8 bits "
            "cannot represent. Set data.transform=clip."
        )
    towers = towers_for(run.clip)
    state = openai_state(towers, first.classes)
    with atomic_write(folder) as home:
        home.mkdir()
        paths = _write_images(partitions, home / "images", towers, progress)
        torch.save(state, home / "clip_state_dict.pt")
        save_torchscript(state, home / "clip.pt")
        for clients in partitions:
            write_text(home / f"split-seed{clients.seed}.json", json.dumps(_by_client(clients, paths)))
        coop = f"split_zhou_{first.dataset.name.title().replace('_', '')}.json"
        write_text(home / coop, json.dumps(_coop(partitions, paths)))
        write_text(home / "dassl.opts", _dassl(towers))
        world = {
            "what": _WHAT,
            "version": _VERSION,
            "made_by": f"fpl-tune {__version__}",
            "overrides": list(overrides),
            "seeds": list(seeds),
            "dataset": first.dataset.name,
            "fingerprint": first.dataset.fingerprint,
            "classes": first.classes,
            "clients": first.split.n_clients,
            "heads": _heads(towers.model),
            "quick_gelu": any(type(module).__name__ == "QuickGELU" for module in towers.model.modules()),
        }
        write_text(home / "world.json", json.dumps(world, indent=1))
        shutil.copyfile(Path(__file__).with_name("fpl_world.py"), home / "fpl_world.py")
        write_text(home / "README.md", _readme(world, towers, len(paths)))
    return folder


class World(NamedTuple):
    """The overrides and seeds of an exported world."""

    overrides: list[str]
    seeds: list[int]
    fingerprint: str
    """Fingerprint of the data set."""


def read_world(folder: str | Path) -> World:
    """Reads the overrides and seeds of a world.

    Raises:
        ConfigError: the folder is not a world, or one of another version.
    """
    path = Path(folder) / "world.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        current = content["what"] == _WHAT and content["version"] == _VERSION
        world = World(content["overrides"], content["seeds"], content["fingerprint"])
    except (OSError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"There is no world in {folder}: put the trace into the folder that fpl-tune world wrote, or name the "
            "folder by --world."
        ) from None
    if not current:
        raise ConfigError(f"{path} is of another version. Export the world again: fpl-tune world FOLDER.")
    return world


def _write_images(partitions: Sequence[Clients], home: Path, towers: Towers, progress: Any) -> dict[str, str]:
    """Writes every image of the clients after the transform, and returns the paths below `home` by file name.

    Forks treat images of another shape differently: without random crops, Dassl stretches training images.
    """
    dataset, paths = partitions[0].dataset, dict[str, str]()
    how = transform(dataset.train.transform, towers.preprocessing)
    rows = {
        "train": [rows for clients in partitions for rows in (*clients.split.train, *clients.split.val)],
        "test": [rows for clients in partitions for rows in clients.test.index],
    }
    used = [(side, int(row)) for side, parts in rows.items() for row in np.unique(np.concatenate(parts))]
    for done, (side, row) in enumerate(used):
        pool = dataset.train if side == "train" else dataset.test
        place = "".join(c if c.isalnum() else "_" for c in dataset.classes[pool.label[row]])
        pixels, name = how.shrink(pool.read(row), towers.image_size), file_name(side, row)
        (home / place).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(home / place / name)
        paths[name] = f"{place}/{name}"
        if progress is not None:
            progress(done + 1, len(used), "images")
    return paths


def _by_client(clients: Clients, paths: dict[str, str]) -> dict[str, Any]:
    """[path, label] of images by client."""
    by_side: dict[str, Any] = {"seed": clients.seed, "hash": clients.split.hash, "classes": clients.classes}
    for side in ("train", "val", "test"):
        both = zip(clients.files(side), clients.labels(side), strict=True)
        by_side[side] = [[[paths[f], k] for f, k in zip(files, labels, strict=True)] for files, labels in both]
    return by_side


def _coop(partitions: Sequence[Clients], paths: dict[str, str]) -> dict[str, list[Any]]:
    """CoOp's list of [path, label, class name] with all images of the clients. No client trains on those of `val`."""
    listed: dict[str, dict[str, Any]] = {"train": {}, "val": {}, "test": {}}
    for clients in partitions:
        for side in listed:
            for files, labels in zip(clients.files(side), clients.labels(side), strict=True):
                listed[side] |= {f: [paths[f], k, clients.classes[k]] for f, k in zip(files, labels, strict=True)}
    listed["val"] = {f: item for f, item in listed["val"].items() if f not in listed["train"]}
    return {side: list(items.values()) for side, items in listed.items()}


def _heads(model: nn.Module) -> dict[str, int]:
    """Numbers of attention heads by width. OpenAI's code always has width / 64."""
    attentions = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    return {str(module.embed_dim): module.num_heads for module in attentions}


def _dassl(towers: Towers) -> str:
    """Options for the command line of Dassl: the towers' pixels, without random crops, workers and GPU."""
    how = towers.preprocessing
    size, mean, std = (str(tuple(x)).replace(" ", "") for x in ((towers.image_size,) * 2, how.mean, how.std))
    pixels = f"INPUT.SIZE {size} INPUT.PIXEL_MEAN {mean} INPUT.PIXEL_STD {std} INPUT.INTERPOLATION bicubic"
    machine = "DATALOADER.NUM_WORKERS 0 USE_CUDA False MODEL.BACKBONE.NAME ViT-B/16"
    return f"{pixels} INPUT.TRANSFORMS ('normalize',) {machine}\n"


def _readme(world: dict[str, Any], towers: Towers, n_images: int) -> str:
    made = Environment(loader=PackageLoader("fpl_tune", "parity"), undefined=StrictUndefined, trim_blocks=True)
    text = made.get_template("README.md.j2")
    return text.render(world=world, towers=towers, n_images=n_images)
