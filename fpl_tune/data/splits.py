"""Splits: the images that each client trains on, validates on and is tested on.

A split can be exported as JSON, with files, labels and clients by name, for use elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.files import write_text
from fpl_tune.core.formatting import counted
from fpl_tune.core.paths import local
from fpl_tune.data.files import read_json
from fpl_tune.data.pool import Dataset, Ints, Pool, digest_of_parts, join

_WHAT, _VERSION = "fpl-tune split", 1
UNKNOWN = "unknown"
"""The test set of images of classes without training images (`open_set`)."""


@dataclass(frozen=True, eq=False)
class TestSet:
    """The test images of N clients."""

    __test__ = False  # not a test case

    index: list[Ints]
    """N arrays of rows of `Dataset.test`; the same object for all clients if they share the set."""
    classes: Ints
    """Class ids of the test logits, in order."""
    label: list[Ints]
    """N arrays of class ids, one per row of `index`."""

    @property
    def shared(self) -> bool:
        """True if all clients are tested on the same images."""
        return all(rows is self.index[0] for rows in self.index)

    @property
    def labelled(self) -> Labelled:
        """Rows and class ids of each client, or of one client if all share the set."""
        n = 1 if self.shared else len(self.index)
        return self.index[:n], self.label[:n]


Labelled = tuple[list[Ints], list[Ints]]
"""N arrays of rows and N arrays of their class ids."""


@dataclass(frozen=True, eq=False)
class Split:
    """A data set distributed over N clients."""

    train: list[Ints]
    """N arrays of rows of `Dataset.train`."""
    val: list[Ints]
    """N arrays of rows of `Dataset.train`, none of them in the client's `train`."""
    tests: dict[str, TestSet]
    """Test sets by name; the first is the protocol's main one."""
    classes: Ints
    """Class ids of the training logits, in order."""
    domain: Ints
    """[N] the domain of most training images of each client."""
    train_label: list[Ints]
    """N arrays of class ids, one per row of `train`. They are the pool's unless labels are noisy or scrambled."""
    val_label: list[Ints]
    """N arrays of class ids, one per row of `val`."""
    hash: str
    """Short digest of files, labels and clients. Runs with equal hashes are comparable."""

    @property
    def n_clients(self) -> int:
        return len(self.train)


def identity(dataset: Dataset, train: Labelled, val: Labelled, tests: dict[str, TestSet], classes: Ints) -> str:
    """Short digest of class names and of each client's files and labels. Other images of the pools do not count."""
    parts: list[str | bytes] = ["\n".join(dataset.classes), classes.tobytes()]
    parts += [*_named(dataset.train, train), *_named(dataset.train, val)]
    for name, test in tests.items():
        parts += [name, test.classes.tobytes(), str(test.shared), *_named(dataset.test, test.labelled)]
    return digest_of_parts(parts)[:12]


def _named(pool: Pool, labelled: Labelled) -> Iterator[str | bytes]:
    for rows, labels in zip(*labelled, strict=True):
        yield "\n".join([pool.names[i] for i in rows.tolist()])
        yield labels.tobytes()


def export_split(drawn: Split, dataset: Dataset, path: str | Path) -> Path:
    """Writes a split to a JSON file, atomically.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    content = {
        "what": _WHAT,
        "version": _VERSION,
        "hash": drawn.hash,
        "dataset": dataset.name,
        "class_names": list(dataset.classes),
        "classes": drawn.classes.tolist(),
        "domain": [dataset.domains[d] for d in drawn.domain.tolist()],
        "train": _clients(dataset.train, (drawn.train, drawn.train_label)),
        "val": _clients(dataset.train, (drawn.val, drawn.val_label)),
        "tests": {name: _test(dataset.test, test) for name, test in drawn.tests.items()},
    }
    path = Path(path)
    try:
        write_text(path, json.dumps(content, separators=(",", ":")))
    except OSError as error:
        raise EnvironmentProblem(f"Cannot write the split to {path}: {error.strerror}.") from None
    return path


def import_split(path: str | Path, dataset: Dataset) -> Split:
    """Reads a split from a file.

    Args:
        path: the file.
        dataset: the data set, loaded with this file, so that its pools are those of the split; see `load`.

    Raises:
        EnvironmentProblem: the file cannot be read, or names images that this copy of the data set lacks.
        ConfigError: the file belongs to another data set, is not a split, or its hash does not match its content.
    """
    content = _read(path, dataset)
    with _as_exported(path, dataset):
        train, val = (_rows(dataset.train, content[side], path) for side in ("train", "val"))
        classes = np.array(content["classes"], dtype=np.int64)
        domain = np.array([dataset.domains.index(name) for name in content["domain"]], dtype=np.int64)
        tests = {name: _read_test(dataset.test, test, len(train[0]), path) for name, test in content["tests"].items()}
    name = identity(dataset, train, val, tests, classes)
    if name != content["hash"]:
        raise ConfigError(
            f"{path} has the hash {content['hash']}, but its content the hash {name}: it was changed after the export. "
            "Export it again."
        )
    return Split(train[0], val[0], tests, classes, domain, train[1], val[1], name)


def on_sides(dataset: Dataset, path: str | Path) -> Dataset:
    """The data set with training and test images as in an exported split, independently of `data.test_share`.

    Raises:
        EnvironmentProblem: the file cannot be read, or names images that this copy of the data set lacks.
        ConfigError: the file belongs to another data set, or is not a split.
    """
    content = _read(path, dataset)
    with _as_exported(path, dataset):
        tested = [client for test in content["tests"].values() for client in test["clients"]]
        named = [
            {name for client in clients for name in client["files"]}
            for clients in ((*content["train"], *content["val"]), tested)
        ]
        pools = (dataset.train, dataset.test)
        own_names = [set(pool.names) for pool in pools]
        lacking = sorted((named[0] | named[1]) - own_names[0] - own_names[1])
    if lacking:
        raise EnvironmentProblem(
            f"{path} names {counted(len(lacking), 'image')} that data={dataset.name} lacks, first {lacking[0]}. "
            "Restore what was removed or renamed, or undo data.domains, data.max_train and data.max_test."
        )
    stay, go = list[Pool](), list[Pool]()
    for pool, mine, theirs, other_names in zip(pools, named, reversed(named), reversed(own_names), strict=True):
        crossing = theirs - mine - other_names
        moved = np.array([name in crossing for name in pool.names], dtype=bool)
        stay.append(pool.take(np.flatnonzero(~moved)))
        go.append(pool.take(np.flatnonzero(moved)))
    if not any(map(len, go)):
        return dataset
    return replace(dataset, train=join(stay[0], go[1]), test=join(stay[1], go[0]))


def _read(path: str | Path, dataset: Dataset) -> dict[str, Any]:
    """Reads a file, and checks that it is a split of the data set's classes."""
    content = read_json(local(path), "partition.file names an exported split; export it again.")
    if not isinstance(content, dict) or content.get("what") != _WHAT or content.get("version") != _VERSION:
        listed = isinstance(content, dict) and {"train", "test"} <= content.keys() and "what" not in content
        what = "a list of images in CoOp's layout, without clients" if listed else "no split that this version exports"
        own = " For your own training and test images, see data=folder: train/<class>/* and test/<class>/*." * listed
        raise ConfigError(
            f"{path} is {what}. Write one with `fpl-tune data show data=NAME partition=NAME --export FILE`.{own}"
        )
    with _as_exported(path, dataset):
        named, ours = content["class_names"], [*dataset.classes]
        if named != ours:
            odd = [f"without {name!r}" for name in named if name not in ours]
            odd += [f"with {name!r}" for name in ours if name not in named]
            raise ConfigError(
                f"{path} is a split of {content['dataset']!r} with {len(named)} classes; data={dataset.name} has "
                f"{len(ours)}, {[*odd, 'in another order'][0]}. Choose the right data set, its classes and data.names."
            )
    return content


@contextmanager
def _as_exported(path: str | Path, dataset: Dataset) -> Iterator[None]:
    """Rejects content that `export_split` does not write."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not an exported split of {dataset.name} ({error!r}). Export it again.") from None


def _clients(pool: Pool, labelled: Labelled) -> list[dict[str, Any]]:
    return [
        {"files": [pool.names[i] for i in rows.tolist()], "labels": labels.tolist()}
        for rows, labels in zip(*labelled, strict=True)
    ]


def _test(pool: Pool, test: TestSet) -> dict[str, Any]:
    return {"classes": test.classes.tolist(), "shared": test.shared, "clients": _clients(pool, test.labelled)}


def _rows(pool: Pool, clients: list[dict[str, Any]], path: str | Path) -> Labelled:
    row_of = {name: row for row, name in enumerate(pool.names)}
    lacking = [name for client in clients for name in client["files"] if name not in row_of]
    if lacking:
        raise EnvironmentProblem(
            f"{counted(len(lacking), 'image')} that {path} names are not in {pool.key}, first {lacking[0]}. "
            "Load the data set with the split."
        )
    rows = [np.array([row_of[name] for name in client["files"]], dtype=np.int64) for client in clients]
    labels = [np.array(client["labels"], dtype=np.int64) for client in clients]
    if [len(mine) for mine in rows] != [len(named) for named in labels]:
        raise ValueError("labels and files differ in number")
    return rows, labels


def _read_test(pool: Pool, test: Mapping[str, Any], n_clients: int, path: str | Path) -> TestSet:
    rows, labels = _rows(pool, test["clients"], path)
    if test["shared"]:
        rows, labels = rows * n_clients, labels * n_clients
    return TestSet(rows, np.array(test["classes"], dtype=np.int64), labels)
