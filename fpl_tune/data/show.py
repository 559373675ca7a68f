"""Tables and figures of a split: images by client, class and domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from fpl_tune.data.pool import Dataset, Ints
from fpl_tune.data.splits import Split
from fpl_tune.formatting import counted

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
    label: Ints
    """[N, K] training images"""
    domain: Ints
    """[N, D] training images"""
    sizes: dict[str, Ints]
    """[N] images by "train", "val" and each test set's name"""
    top_share: float
    """Mean over clients of the share of the client's most frequent training class in its test labels.

    The accuracy of a model that predicts this class for every image.
    """

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "dataset": self.dataset,
            "hash": self.hash,
            "classes": list(self.classes),
            "domains": list(self.domains),
            "clients_by_classes": self.label.tolist(),
            "clients_by_domains": self.domain.tolist(),
            "sizes": {name: size.tolist() for name, size in self.sizes.items()},
            "constant_prediction": round(self.top_share, 6),
        }

    def table(self) -> Table:
        """For the terminal: a row per client, the first forty."""
        n = len(self.label)
        caption = f"A constant prediction reaches {self.top_share:.1%} on the clients' own test images."
        if n > _ROWS:
            caption = f"{counted(n - _ROWS, 'more client')}. {caption}"
        shown = Table("client", *self.sizes, "classes", "domains", "most frequent", title=self._title, caption=caption)
        for client in range(min(n, _ROWS)):
            held, where = self.label[client], self.domain[client]
            most = [f"{self.classes[k]} {held[k]}" for k in np.argsort(-held, kind="stable")[:3] if held[k]]
            names = [self.domains[d] for d in np.flatnonzero(where)]
            counts = [f"{size[client]:,}" for size in self.sizes.values()]
            shown.add_row(
                str(client),
                *counts,
                str((held > 0).sum()),
                ", ".join(names) if len(names) <= 2 else f"{len(names)} of {len(self.domains)}",
                ", ".join(most),
            )
        return shown

    @property
    def _title(self) -> str:
        sizes = f"{counted(len(self.label), 'client')}, {counted(len(self.classes), 'class', 'classes')}"
        return f"{self.dataset}: {sizes}, split {self.hash}"

    def figure(self) -> Figure:
        """Heat map of clients by classes, with the histograms of labels and of domains."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        n_clients, n_classes = self.label.shape
        size = (np.clip(3 + 0.12 * n_classes, 7, 16), np.clip(3.5 + 0.08 * n_clients, 5, 12))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=[5, 1], height_ratios=[1, 4])
        heat = figure.add_subplot(grid[1, 0])
        image = heat.imshow(self.label, aspect="auto", cmap="viridis", interpolation="nearest")
        heat.set(xlabel="class", ylabel="client")
        heat.yaxis.set_major_locator(MaxNLocator(integer=True))
        if n_classes <= 40:
            heat.set_xticks(range(n_classes), self.classes, rotation=90, fontsize=7)
        figure.colorbar(image, ax=heat, label="training images")
        labels = figure.add_subplot(grid[0, 0], sharex=heat)
        labels.bar(range(n_classes), self.label.sum(0), width=0.9)
        labels.set(ylabel="images", title=self._title)
        labels.tick_params(labelbottom=False)
        domains = figure.add_subplot(grid[:, 1])
        domains.barh(range(len(self.domains)), self.domain.sum(0))
        domains.set_yticks(range(len(self.domains)), self.domains, fontsize=8)
        domains.set(xlabel="images", title="domains")
        domains.invert_yaxis()
        return figure


def overview(drawn: Split, dataset: Dataset) -> Overview:
    """Counts of a split of a data set."""
    n_classes = len(dataset.classes)
    label = np.stack([np.bincount(labels, minlength=n_classes) for labels in drawn.train_label])
    domain = np.stack([np.bincount(dataset.train.domain[i], minlength=len(dataset.domains)) for i in drawn.train])
    own = next(iter(drawn.tests.values()))
    reached = [float((test == k).mean()) for test, k in zip(own.label, label.argmax(1), strict=True)]
    sizes = {"train": drawn.train, "val": drawn.val} | {name: test.index for name, test in drawn.tests.items()}
    return Overview(
        dataset=dataset.name,
        hash=drawn.hash,
        classes=dataset.classes,
        domains=dataset.domains,
        label=label,
        domain=domain,
        sizes={name: np.array([len(rows) for rows in index]) for name, index in sizes.items()},
        top_share=float(np.mean(reached)),
    )
