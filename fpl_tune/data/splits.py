"""Splits: the images that each client trains on, validates on and is tested on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fpl_tune.data.pool import Dataset, Ints, Pool, digest


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test images of N clients."""

    __test__ = False  # not a test case

    index: list[Ints]
    """N arrays of rows of `Dataset.test`; the same object for all clients where they share the set."""
    classes: Ints
    """Class ids of the test logits, in order."""
    label: list[Ints]
    """N arrays of class ids, one per row of `index`."""

    @property
    def shared(self) -> bool:
        """Whether all clients are tested on the same images."""
        return all(rows is self.index[0] for rows in self.index)


Held = tuple[list[Ints], list[Ints]]
"""N arrays of rows and N arrays of their class ids."""


@dataclass(frozen=True, eq=False)
class Split:
    """A data set dealt to N clients."""

    train: list[Ints]
    """N arrays of rows of `Dataset.train`."""
    val: list[Ints]
    """N arrays of rows of `Dataset.train`, none of them in the client's `train`."""
    tests: dict[str, TestSet]
    """By name; the first is the protocol's main test set."""
    classes: Ints
    """Class ids of the training logits, in order."""
    domain: Ints
    """[N] the domain that most of the client's training images come from."""
    train_label: list[Ints]
    """N arrays of class ids, one per row of `train`. The pool's labels unless `compat_scrambled_labels`."""
    val_label: list[Ints]
    """N arrays of class ids, one per row of `val`."""
    hash: str
    """Short digest of files, labels and clients: runs with equal hashes are comparable."""

    @property
    def n_clients(self) -> int:
        return len(self.train)


def identity(dataset: Dataset, train: Held, val: Held, tests: dict[str, TestSet], classes: Ints) -> str:
    """Short digest of class names and each client's files and labels; other images of the pools do not count."""
    parts: list[str | bytes] = ["\n".join(dataset.classes), classes.tobytes()]
    for (rows, labels), pool in ((train, dataset.train), (val, dataset.train)):
        parts += _named(pool, rows, labels)
    for name, test in tests.items():
        n = 1 if test.shared else len(test.index)
        parts += [name, test.classes.tobytes(), str(test.shared)]
        parts += _named(dataset.test, test.index[:n], test.label[:n])
    return digest(parts)[:12]


def _named(pool: Pool, rows: list[Ints], labels: list[Ints]) -> Iterator[str | bytes]:
    for mine, named in zip(rows, labels, strict=True):
        yield "\n".join([pool.names[i] for i in mine.tolist()])
        yield named.tobytes()
