"""Runs a cell's trained clients on new images, without the training data.

A folder that `fpl-tune export STUDY FOLDER --cell best` wrote, or the `model` of a study's MLflow run, holds the run's
configuration (run.yaml) and, for each seed, what its clients are evaluated with (prompts-seed<n>.safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from fpl_tune import config
from fpl_tune.clip.load import weights_print
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import DEPLOYED
from fpl_tune.data.pool import as_rgb
from fpl_tune.data.transform import transform
from fpl_tune.method import Batch, Local
from fpl_tune.simulation.task import Classes, ClientData, ClientTask, towers_for

Picture = str | Path | Image.Image | np.ndarray
_BATCH = 64


class Prompts:
    """The clients' models of one seed; see `load_prompts`."""

    def __init__(self, run: config.RunSpec, tensors: dict[str, Tensor], facts: dict[str, Any], device: str) -> None:
        self.classes: tuple[str, ...] = tuple(facts["classes"])
        self.clients = int(facts["clients"])
        self._method, self._towers = run.stages[-1].method, towers_for(run.clip, device)
        self._how = transform(facts["transform"], self._towers.preprocessing)
        if facts["weights"] != weights_print(run.clip.name, run.clip.pretrained):
            raise ConfigError(
                f"The prompts were learned with other weights than clip.name={run.clip.name} "
                f"clip.pretrained={run.clip.pretrained} are now. Put back the former file."
            )
        classes = Classes(self._towers, self.classes, facts["template"], run.clip.class_position)
        none = [np.array([], np.int64)] * self.clients
        data = ClientData(torch.zeros(1, self._towers.embed_dim), none, none, towers=self._towers, device=device)
        domain = torch.tensor(facts["domain"], device=device)
        self._task = ClientTask(self._towers, classes, data, data, {}, domain, int(facts["n_domains"]))
        parts: dict[str, dict[str, Tensor]] = {group: {} for group in Local._fields}
        for name, leaf in tensors.items():
            group, _, rest = name.removeprefix(DEPLOYED).partition(".")
            parts[group][rest] = leaf.to(device)
        self._local = Local(**parts)

    @torch.no_grad()
    def logits(self, images: Picture | Iterable[Picture], client: int = 0) -> Tensor:
        """Logits [n, K] of one client's model over `classes`.

        Args:
            images: n paths, PIL images or uint8 arrays [H, W, 3], or a single one of them.
            client: from 0 to `clients` - 1.

        Raises:
            ConfigError: there is no such client, or an image is not of 8 or 16 bits a channel.
        """
        one = self._known(client)
        scores = [self._score(seen, one) for seen in self._seen(images)]
        return torch.cat(scores) if scores else torch.zeros(0, len(self.classes))

    @torch.no_grad()
    def predict(self, images: Picture | Iterable[Picture], client: int | None = None) -> list[str]:
        """Class names of n images; see `logits`. Without a client, by the mean of all clients' probabilities."""
        clients = range(self.clients) if client is None else [self._known(client)]
        best: list[int] = []
        for seen in self._seen(images):
            chances = torch.stack([self._score(seen, one).softmax(-1) for one in clients]).sum(0)
            best += chances.argmax(-1).tolist()
        return [self.classes[i] for i in best]

    def _known(self, client: int) -> int:
        if not 0 <= client < self.clients:
            raise ConfigError(f"client must be from 0 to {self.clients - 1}, but is {client}.")
        return client

    def _score(self, seen: Tensor, client: int) -> Tensor:
        """Logits [n, K] of one client from the method's input of n images."""
        row = [{name: leaf[[client % len(leaf)]] for name, leaf in tree.items()} for tree in self._local]
        label = torch.zeros(1, len(seen), dtype=torch.int64, device=seen.device)
        batch = Batch(seen[None], label, torch.ones_like(label, dtype=torch.bool), label)
        return self._method.logits(self._task, Local(*row), batch)[0]

    def _seen(self, images: Picture | Iterable[Picture]) -> Iterator[Tensor]:
        """The method's input for the images, in batches: encoded once for all clients."""
        if isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim in (2, 3)):
            images = [images]
        pictures = list(images)
        for first in range(0, len(pictures), _BATCH):
            yield self._features(pictures[first : first + _BATCH])

    def _features(self, pictures: Sequence[Picture]) -> Tensor:
        """The method's input for a batch: features [n, ...] or pixels [n, 3, H, W]."""
        size, towers = self._towers.image_size, self._towers
        pixels = [torch.from_numpy(self._how.shrink(_as_rgb(picture), size)) for picture in pictures]
        pixels = torch.cat([self._how.pixels(one[None].to(towers.device), size) for one in pixels])
        if self._method.needs == "pixels":
            return towers.normalise(pixels.round().to(torch.uint8)).float()
        seen = self._how.normalise(pixels).to(towers.dtype)
        return towers.encode_images(seen, patches=self._method.needs == "patches").float()


def _as_rgb(picture: Picture) -> Image.Image:
    """The picture in 8-bit RGB, as data sets read theirs."""
    try:
        if isinstance(picture, np.ndarray):
            picture = Image.fromarray(picture)
        return as_rgb(picture if isinstance(picture, Image.Image) else Image.open(picture))
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"An image cannot be read: {problem}.") from None


def load_prompts(folder: str | Path, seed: int | None = None, *, device: str = "cpu") -> Prompts:
    """Loads an exported cell, to classify images with what its clients learned.

    Args:
        folder: what `fpl-tune export STUDY FOLDER --cell best` wrote.
        seed: one of the exported seeds; None: the first.
        device: cpu or cuda.

    Returns:
        The models of all clients of that seed.

    Raises:
        ConfigError: the folder holds no exported cell, or not that seed, or the weights are others now.

    Example:
        >>> import fpl_tune
        >>> prompts = fpl_tune.load_prompts("best/")
        >>> prompts.clients, prompts.logits(["photo.png"], client=0).shape == (1, len(prompts.classes))
        (10, True)
        >>> prompts.predict(["photo.png"], client=0)[0] in prompts.classes
        True
    """
    home = Path(folder)
    files = {int(path.stem.removeprefix("prompts-seed")): path for path in home.glob("prompts-seed*.safetensors")}
    if not (home / "run.yaml").is_file() or not files:
        raise ConfigError(
            f"{home} holds no exported cell with prompts. Write one: fpl-tune export STUDY {home} --cell best"
        )
    chosen = min(files) if seed is None else seed
    if chosen not in files:
        raise ConfigError(f"{home} has the seeds {', '.join(map(str, sorted(files)))}, but not {chosen}.")
    with safe_open(files[chosen], "pt") as file:
        facts = json.loads(file.metadata()["deployed"])
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(DEPLOYED)}  # noqa: SIM118
    plugins.look_beside(home)
    run = config.to_run(yaml.safe_load((home / "run.yaml").read_text(encoding="utf-8")))
    return Prompts(run, tensors, facts, device)
