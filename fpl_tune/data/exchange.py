"""Exports and imports splits as JSON: files, labels and clients by name, so that others can use the same split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fpl_tune.data.files import read_json
from fpl_tune.data.pool import Dataset, Ints, Pool
from fpl_tune.data.splits import Held, Split, TestSet, identity
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.files import write_text

_WHAT, _VERSION = "fpl-tune split", 1


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
        "train": _clients(dataset.train, drawn.train, drawn.train_label),
        "val": _clients(dataset.train, drawn.val, drawn.val_label),
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

    Raises:
        EnvironmentProblem: the file cannot be read, or names images that this copy of the data set lacks.
        ConfigError: the file belongs to another data set, is not a split, or its hash does not match its content.
    """
    content = read_json(Path(path), "partition.file names an exported split; export it again.")
    if not isinstance(content, dict) or content.get("what") != _WHAT or content.get("version") != _VERSION:
        raise ConfigError(f"{path} is not a split exported by this version. Export it again.")
    try:
        if content["class_names"] != list(dataset.classes):
            raise ConfigError(
                f"{path} is a split of {content['dataset']!r} with {len(content['class_names'])} classes; "
                f"data={dataset.name} has {len(dataset.classes)}, or names them differently. Choose the right data set."
            )
        train, val = (_rows(dataset.train, content[part], path) for part in ("train", "val"))
        classes = np.array(content["classes"], dtype=np.int64)
        domain = np.array([dataset.domains.index(name) for name in content["domain"]], dtype=np.int64)
        tests = {name: _read_test(dataset.test, test, len(train[0]), path) for name, test in content["tests"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not an exported split of {dataset.name} ({error!r}). Export it again.") from None
    name = identity(dataset, train, val, tests, classes)
    if name != content["hash"]:
        raise ConfigError(
            f"{path} has the hash {content['hash']}, but its content the hash {name}: it was changed after the export. "
            "Export it again."
        )
    return Split(train[0], val[0], tests, classes, domain, train[1], val[1], name)


def _clients(pool: Pool, rows: Iterable[Ints], labels: Iterable[Ints]) -> list[dict[str, Any]]:
    return [
        {"files": [pool.names[i] for i in mine.tolist()], "labels": named.tolist()}
        for mine, named in zip(rows, labels, strict=True)
    ]


def _test(pool: Pool, test: TestSet) -> dict[str, Any]:
    n = 1 if test.shared else len(test.index)
    held = _clients(pool, test.index[:n], test.label[:n])
    return {"classes": test.classes.tolist(), "shared": test.shared, "clients": held}


def _rows(pool: Pool, clients: list[dict[str, Any]], path: str | Path) -> Held:
    row_of = {name: row for row, name in enumerate(pool.names)}
    lacking = [name for client in clients for name in client["files"] if name not in row_of]
    if lacking:
        raise EnvironmentProblem(
            f"{len(lacking)} images that {path} names are not in {pool.key}, first {lacking[0]}. "
            "Complete the download, or undo data.domains, data.max_train and data.max_test."
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
