"""Tables and figures of a split: images by client, class and domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from fpl_tune.core.formatting import counted
from fpl_tune.data.pool import Dataset, Ints
from fpl_tune.data.splits import Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 40  # clients that a terminal shows


@dataclass(frozen=True, eq=False)
class Overview:
    """Counts of one split. N clients, K classes, D domains."""

    dataset: str
    hash: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    clients_by_classes: Ints
    """[N, K] training images"""
    clients_by_domains: Ints
    """[N, D] training images"""
    sizes: dict[str, list[int]]
    """N numbers of images by "train", "val" and each test set's name"""
    constant_prediction: float
    """Mean over clients of the share of the client's most frequent training class in its test labels.

    The accuracy of a model that predicts this class for every image.
    """

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    def table(self) -> Table:
        """For the terminal: a row per client, the first forty."""
        more = len(self.clients_by_classes) - _ROWS
        caption = f"{counted(more, 'more client')}. " if more > 0 else ""
        caption += f"A constant prediction reaches {self.constant_prediction:.1%} on the clients' own test images."
        shown = Table("client", *self.sizes, "classes", "domains", "most frequent", title=self._title, caption=caption)
        for client, (held, where) in enumerate(
            zip(self.clients_by_classes[:_ROWS], self.clients_by_domains[:_ROWS], strict=True)
        ):
            most = [f"{self.classes[k]} {held[k]}" for k in np.argsort(-held, kind="stable")[:3] if held[k]]
            names = [self.domains[d] for d in np.flatnonzero(where)]
            shown.add_row(
                str(client),
                *(f"{sizes[client]:,}" for sizes in self.sizes.values()),
                str((held > 0).sum()),
                ", ".join(names) if len(names) <= 2 else f"{len(names)} of {len(self.domains)}",
                ", ".join(most),
            )
        return shown

    @property
    def _title(self) -> str:
        sizes = f"{counted(len(self.clients_by_classes), 'client')}, {counted(len(self.classes), 'class', 'classes')}"
        return f"{self.dataset}: {sizes}, split {self.hash}"

    def figure(self) -> Figure:
        """Heat map of clients by classes, with the histograms of labels and of domains."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        n_clients, n_classes = self.clients_by_classes.shape
        size = (np.clip(3 + 0.12 * n_classes, 7, 16), np.clip(3.5 + 0.08 * n_clients, 5, 12))
        figure = Figure(figsize=size, layout="constrained")
        parts = figure.subplot_mosaic("LD;HD", width_ratios=[5, 1], height_ratios=[1, 4])
        labels, heat, domains = parts["L"], parts["H"], parts["D"]
        image = heat.imshow(self.clients_by_classes, aspect="auto", cmap="viridis", interpolation="nearest")
        heat.set(xlabel="class", ylabel="client")
        heat.yaxis.set_major_locator(MaxNLocator(integer=True))
        if n_classes <= 40:
            heat.set_xticks(range(n_classes), self.classes, rotation=90, fontsize=7)
        figure.colorbar(image, ax=heat, label="training images")
        labels.sharex(heat)
        labels.bar(range(n_classes), self.clients_by_classes.sum(0), width=0.9)
        labels.set(ylabel="images", title=self._title)
        labels.tick_params(labelbottom=False)
        domains.barh(self.domains, self.clients_by_domains.sum(0))
        domains.tick_params("y", labelsize=8)
        domains.set(xlabel="images", title="domains")
        domains.invert_yaxis()
        return figure


def overview(drawn: Split, dataset: Dataset) -> Overview:
    """Counts of a split of a data set."""
    n_classes, n_domains = len(dataset.classes), len(dataset.domains)
    label = np.stack([np.bincount(labels, minlength=n_classes) for labels in drawn.train_label])
    domain = np.stack([np.bincount(dataset.train.domain[rows], minlength=n_domains) for rows in drawn.train])
    own = next(iter(drawn.tests.values()))
    reached = [float((test == k).mean()) for test, k in zip(own.label, label.argmax(1), strict=True)]
    held = {"train": drawn.train, "val": drawn.val} | {name: test.index for name, test in drawn.tests.items()}
    sizes = {name: [len(rows) for rows in clients] for name, clients in held.items()}
    constant = round(float(np.mean(reached)), 6)
    return Overview(dataset.name, drawn.hash, dataset.classes, dataset.domains, label, domain, sizes, constant)
