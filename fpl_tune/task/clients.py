"""Clients' images: tables of rows, gathered into batches on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.clip import Towers
from fpl_tune.method import Batch, Table


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
    ) -> None:
        """images [n, ...] features, or uint8 pixels that `towers` normalise; index, label: N arrays, one per client,
        of rows of `images` and of class ids among the task's classes. views: random views, each shaped as `images`,
        that training draws from instead; second: those that `Batch.view` is drawn from."""
        self.images, self.towers, self.dtype = images, towers, dtype
        self.views, self.second = tuple(views), tuple(second)
        self.device = torch.device(device)
        self.same_for_all = len(index) > 1 and all(held is index[0] for held in index)
        self.size = torch.tensor([len(rows) for rows in index], device=self.device)
        width = int(self.size.max()) + 1 if len(index) else 1
        rows = torch.zeros(len(index), width, dtype=torch.int64)
        labels, mask = torch.zeros_like(rows), torch.zeros(len(index), width, dtype=torch.bool)
        for client, (held, truth) in enumerate(zip(index, label, strict=True)):
            rows[client, : len(held)] = torch.as_tensor(np.asarray(held))
            labels[client, : len(held)] = torch.as_tensor(np.asarray(truth))
            mask[client, : len(held)] = True
        self.rows, self.label, self.mask = rows.to(self.device), labels.to(self.device), mask.to(self.device)

    @property
    def spare(self) -> int:
        """Index of the spare last row of every client's table."""
        return self.rows.shape[1] - 1

    def widen(self, width: int) -> None:
        """Gives every client's table `width` rows, so that tables of several seeds lie side by side."""
        more = width - self.rows.shape[1]
        if more > 0:
            self.rows = F.pad(self.rows, (0, more))
            self.mask = F.pad(self.mask, (0, more))
            self.label = F.pad(self.label, (0, more))

    def batch(self, who: Tensor, index: Tensor, draw: Tensor | None = None) -> Batch:
        """who [C], index [C, B] in each client's own table -> Batch.

        draw [C, B]: large random numbers that choose among the views, in training; None: the images themselves.
        """
        client = who[:, None]
        rows = self.rows[client, index]
        seen = [] if draw is None else self.views
        return Batch(
            image=self._any(seen, rows, draw) if seen else self._gather(self.images, rows),
            label=self.label[client, index],
            mask=self.mask[client, index],
            index=index,
            view=None if draw is None or not self.second else self._any(self.second, rows, draw),
        )

    def table(self) -> Table:
        return Table(image=self._gather(self.images, self.rows), label=self.label, mask=self.mask)

    def _any(self, views: Sequence[Tensor], rows: Tensor, draw: Tensor | None) -> Tensor:
        """Each image from the view that its draw names."""
        assert draw is not None
        which = draw % len(views)
        image = self._gather(views[0], rows)
        for number in range(1, len(views)):
            image[which == number] = self._gather(views[number], rows[which == number])
        return image

    def _gather(self, images: Tensor, rows: Tensor) -> Tensor:
        found = images[rows.to(images.device)].to(self.device)
        if found.dtype == torch.uint8:
            assert self.towers is not None
            found = self.towers.normalise(found)
        return found.to(self.dtype)
