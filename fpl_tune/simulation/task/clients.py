"""Clients' images: tables of rows, gathered into batches on demand."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fpl_tune.clip import Towers
from fpl_tune.method import Batch, Table


class Picked(NamedTuple):
    """Images of clients that will be gathered, [C, ...] each; on the device, so that a step never synchronizes."""

    rows: Tensor
    """Rows of the images."""
    label: Tensor
    mask: Tensor
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] - a tuple has an `index` too
    """Rows of the clients' own tables."""
    draw: Tensor | None
    """Large random numbers that choose among the views, in training; None: the images themselves."""

    def at(self, part: Any) -> Picked:
        """Every tensor indexed by `part`."""
        draw = None if self.draw is None else self.draw[part]
        return Picked(self.rows[part], self.label[part], self.mask[part], self.index[part], draw)

    @classmethod
    def join(cls, parts: Sequence[Picked]) -> Picked:
        """Side by side along the cohort axis."""
        rows, label, mask, index = (torch.cat(tensors) for tensors in zip(*(part[:4] for part in parts), strict=True))
        draws = [part.draw for part in parts if part.draw is not None]
        return cls(rows, label, mask, index, torch.cat(draws) if draws else None)


class ClientData:
    """One split of one seed: which images each client holds, gathered into batches on demand.

    rows [N, R] points into the features; the last column is the spare row that padding points at.
    """

    def __init__(
        self,
        images: Tensor,
        index: Sequence[np.ndarray],
        label: Sequence[np.ndarray],
        *,
        towers: Towers | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        views: Sequence[Tensor] = (),
        second: Sequence[Tensor] = (),
        patched: Tensor | None = None,
    ) -> None:
        """images [n, ...] features, or uint8 pixels that `towers` normalise; index, label: N arrays, one per client,
        of rows of `images` and of class ids among the task's classes. views: random views, each shaped as `images`,
        that training draws from instead; second: those that `Batch.view` is drawn from; patched: the same images with
        the patch of a backdoor, whose rows follow those of the images, and which are their own views."""
        self.images, self.towers, self.dtype, self.patched = images, towers, dtype, patched
        self.views, self.second = tuple(views), tuple(second)
        self.device = torch.device(device)
        # Of those who have images at all.
        self.same_for_all = len(index) > 1 and all(held is index[0] for held in index)
        self.sizes = [len(rows) for rows in index]
        self.size = torch.tensor(self.sizes, device=self.device)
        self.rows, self.label = self._padded(index), self._padded(label)
        self.mask = torch.arange(self.rows.shape[1], device=self.device) < self.size[:, None]

    def _padded(self, parts: Sequence[np.ndarray]) -> Tensor:
        """[N, R] numbers of each client, then zeros, at least one for the spare row."""
        whole = pad_sequence([torch.as_tensor(np.asarray(part), dtype=torch.int64) for part in parts], batch_first=True)
        return F.pad(whole, (0, 1)).to(self.device)

    @property
    def spare(self) -> int:
        """Index of the spare last row of every client's table."""
        return self.rows.shape[1] - 1

    @property
    def images_held(self) -> int:
        """The number of different images that the clients hold together."""
        return max(self.sizes) if self.same_for_all else len(self.rows[self.mask].unique())

    def only(self, mask: Tensor) -> ClientData:
        """The same split without other images than those `kept`, bool [N, R] or, of whole clients, [N, 1]."""
        data = copy(self)
        data.mask = self.mask & mask
        data.size = data.mask.sum(1)
        data.sizes = data.size.tolist()
        data.same_for_all = self.same_for_all and (mask.shape[1] == 1 or bool(mask.all()))
        return data

    def changed(self, which: Tensor, label: Tensor | int, *, patched: bool = False) -> ClientData:
        """The same split, where the images `which` (bool [N, R] or, of whole clients, [N, 1]) have other labels, [N, R]
        or one for all, and the patch of a backdoor if they are `patched`."""
        data, which = copy(self), self.mask & which
        data.label = torch.where(which, label, self.label)
        data.rows = self.rows + len(self.images) * which if patched else self.rows
        return data

    def pooled(self) -> ClientData:
        """The same split, where every client has the images of all."""
        rows, label = (part[self.mask].cpu().numpy() for part in (self.rows, self.label))
        index, labels = [rows] * len(self.rows), [label] * len(self.rows)
        return ClientData(self.images, index, labels, towers=self.towers, dtype=self.dtype, device=self.device)

    def widen(self, width: int) -> None:
        """Gives every client's table `width` rows, so that tables of several seeds lie side by side."""
        more = (0, max(0, width - self.rows.shape[1]))
        self.rows, self.mask, self.label = F.pad(self.rows, more), F.pad(self.mask, more), F.pad(self.label, more)

    def pick(self, clients: Tensor, index: Tensor, draw: Tensor | None = None) -> Picked:
        """Images `index` [C, ...] of the tables of the clients `clients` [C], for `take`."""
        client = clients.view(-1, *([1] * (index.ndim - 1)))
        return Picked(self.rows[client, index], self.label[client, index], self.mask[client, index], index, draw)

    def take(self, picked: Picked) -> Batch:
        """The images [C, B] that were picked."""
        rows, label, mask, index, draw = picked
        seen = [] if draw is None else self.views
        return Batch(
            image=self._any(seen, rows, draw) if seen else self._gather(self.images, rows),
            label=label,
            mask=mask,
            index=index,
            view=None if draw is None or not self.second else self._any(self.second, rows, draw),
        )

    def batch(self, clients: Tensor, index: Tensor, draw: Tensor | None = None) -> Batch:
        """clients [C], index [C, B] in each client's own table -> Batch.

        draw [C, B]: large random numbers that choose among the views, in training; None: the images themselves.
        """
        return self.take(self.pick(clients, index, draw))

    def table(self) -> Table:
        """All images, client by client."""
        return Table(image=self._gather(self.images, self.rows), label=self.label, mask=self.mask)

    def _any(self, views: Sequence[Tensor], rows: Tensor, draw: Tensor | None) -> Tensor:
        """Each image from the view that its draw names."""
        assert draw is not None
        which = draw % len(views)
        image = self._gather(views[0], rows)
        for number in range(1, len(views)):
            here = (which == number).view(*which.shape, *([1] * (image.ndim - which.ndim)))
            image = torch.where(here, self._gather(views[number], rows), image)
        return image

    def _gather(self, images: Tensor, rows: Tensor) -> Tensor:
        rows = rows.to(images.device)
        if self.patched is None:
            pixels = images[rows]
        else:
            behind = rows - len(images)
            marked, plain = self.patched[behind.clamp(min=0)], images[rows.clamp(max=len(images) - 1)]
            pixels = torch.where((behind >= 0).view(*rows.shape, *[1] * (images.ndim - 1)), marked, plain)
        pixels = pixels.to(self.device)
        if pixels.dtype == torch.uint8:
            assert self.towers is not None
            pixels = self.towers.normalise(pixels)
        return pixels.to(self.dtype)


def side_by_side(data: Sequence[ClientData]) -> tuple[ClientData, list[int]]:
    """The tensor that `take` gathers the images of several seeds from, and where each seed's rows begin in it.

    Seeds of one world have the same tables: nothing is copied. Of others, the patched images follow each table.
    """
    tables = [(held.images, *held.views, *held.second) for held in data]
    if all(x is y for other in tables for x, y in zip(tables[0], other, strict=True)):
        return data[0], [0] * len(data)
    patched = [[] if held.patched is None else [held.patched] for held in data]
    whole = copy(data[0])
    whole.images, *more = (
        torch.cat([part for table, behind in zip(alike, patched, strict=True) for part in (table, *behind)])
        for alike in zip(*tables, strict=True)
    )
    whole.views, whole.second, whole.patched = tuple(more[: len(whole.views)]), tuple(more[len(whole.views) :]), None
    sizes = [len(held.images) + sum(map(len, behind)) for held, behind in zip(data, patched, strict=True)]
    return whole, np.cumsum([0, *sizes[:-1]]).tolist()
