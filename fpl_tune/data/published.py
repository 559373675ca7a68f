"""Data sets as they are published: their numbers of classes and images, for plans where the files are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data.files import FolderLayout
from fpl_tune.data.pool import Dataset, Ints, Pool, digest_of_parts
from fpl_tune.data.spec import DataSpec

ALL = "all"
Sizes = Mapping[str, int | Sequence[int]]
"""Published numbers of images by domain, or of `ALL` domains: (training, test), or their sum without official split."""


@dataclass(frozen=True, eq=False)
class Counted(Pool):
    """Images of which only the number is known."""

    def read(self, i: int) -> NoReturn:
        raise EnvironmentProblem(f"The images of {self.key} are not on this machine. Set data.root.")

    def stamp(self) -> str:
        return digest_of_parts([self.key, self.label.tobytes()])


def published(spec: DataSpec, layout: FolderLayout, sizes: Sizes, n_classes: int, *, cifar: bool) -> Dataset:
    """A data set with the published numbers of images, evenly divided among classes, and classes called by number.

    Args:
        spec: the data set; `test_share` divides those without an official split.
        layout: its domains and template.
        sizes: its numbers of images.
        n_classes: its number of classes.
        cifar: True if its images are those of CIFAR, whose hundred classes have twenty super-classes.
    """
    domains = tuple(layout.domains) or ("images",)
    rows: tuple[list[Ints], list[Ints]] = ([], [])  # [2, n] classes and domains
    for number, domain in enumerate(domains):
        of_domain = sizes[domain] if domain in sizes else sizes[ALL]
        share = 1 if domain in sizes else len(domains)
        if isinstance(of_domain, int):
            test = round(spec.test_share * of_domain)
            of_domain = (of_domain - test, test)
        for images, into in zip(of_domain, rows, strict=True):
            label = np.arange(images // share) * n_classes // (images // share)
            into.append(np.stack([label, np.full_like(label, number)]))
    train, test = (
        Counted(
            key=f"{spec.name}-{split}",
            names=tuple(map(str, range(sum(part.shape[1] for part in parts)))),
            label=np.concatenate(parts, 1)[0],
            domain=np.concatenate(parts, 1)[1],
            transform=spec.name if cifar else "clip",
        )
        for split, parts in zip(("train", "test"), rows, strict=True)
    )
    classes = tuple(f"class {number}" for number in range(n_classes))
    coarse = np.arange(n_classes) // 5 if cifar and n_classes == 100 else None
    return Dataset(spec.name, classes, domains, layout.template, train, test, coarse=coarse)
