"""Inspects data: counts the images of a split's clients, and compares a data set's files with the published ones."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from fpl_tune.core.errors import EnvironmentProblem, Notice
from fpl_tune.data.cache import Progress
from fpl_tune.data.pool import Dataset, Pool, digest_of_parts, read_in_threads
from fpl_tune.data.published import ALL
from fpl_tune.data.registry import load
from fpl_tune.data.sources import source
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.splits import Split

_BATCH = 4096  # images submitted to the threads at a time
_SHOWN = 5  # cases that are shown of a finding
_LEAK = "on both sides of the split"


def overview(drawn: Split, dataset: Dataset) -> dict[str, Any]:
    """Counts the images of a split.

    Returns:
        `dataset`, `content` (its fingerprint), `hash`, and `clients`: for each client the number of images by set, the
        number of classes, its domains and its most frequent classes. `constant_prediction` is the mean accuracy over
        clients of a model that predicts the client's most frequent training class for each of its test images.
    """
    rows_by_set = {"train": drawn.train, "val": drawn.val} | {name: test.index for name, test in drawn.tests.items()}
    own = next(iter(drawn.tests.values()))
    clients, reached = [], []
    for client, (rows, labels) in enumerate(zip(drawn.train, drawn.train_label, strict=True)):
        counts = np.bincount(labels, minlength=len(dataset.classes))
        top = np.argsort(-counts, kind="stable")[:3].tolist()
        clients.append(
            {
                "client": client,
                **{name: len(index[client]) for name, index in rows_by_set.items()},
                "classes": int((counts > 0).sum()),
                "domains": [dataset.domains[d] for d in np.unique(dataset.train.domain[rows]).tolist()],
                "most frequent": [f"{dataset.classes[k]} {counts[k]}" for k in top if counts[k]],
            }
        )
        reached.append((own.label[client] == top[0]).mean())
    constant = round(float(np.mean(reached)), 6)
    about = {"dataset": dataset.name, "content": dataset.fingerprint, "hash": drawn.hash}
    return {**about, "constant_prediction": constant, "clients": clients}


def check(spec: DataSpec, *, progress: Progress | None = None) -> dict[str, Any]:
    """Reads every image of a data set once. `data.max_train`, `data.max_test` and `data.whole_test` are ignored.

    Args:
        spec: the data set.
        progress: called after every few thousand images.

    Returns:
        `dataset`, `fingerprint`, `notes`; `sizes`: numbers of images by domain, with the published ones; `findings`:
        missing images, unreadable images and copies, each with their number and first cases; `whole`: True if all
        images can be read and their number is the published one; `sound`: True if, in addition, no test image is a copy
        of a training image, except in official splits.

    Raises:
        ConfigError: an unknown data set, domain or value.
        EnvironmentProblem: the data set cannot be listed.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", Notice)  # about names and lists, which notes repeat
        dataset = load(replace(spec, max_train=None, max_test=None, whole_test=[], drop_missing=True))
    findings = [_finding(str(warning.message), [""]) for warning in caught]
    seen: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    unreadable: list[str] = []
    for side, pool in (("train", dataset.train), ("test", dataset.test)):
        read = chain.from_iterable(_read(pool, progress))
        for name, label, (pixels, problem) in zip(pool.names, pool.label.tolist(), read, strict=True):
            if problem:
                unreadable.append(f"{name}: {problem}")
            else:
                seen[pixels].append((name, label, side))
    if unreadable:
        findings.append(_finding("cannot be read: download them again or delete them", unreadable))
    sizes = list(_sizes(dataset, spec))
    if any(row["published"].endswith("differs") for row in sizes):
        findings.append(_finding("number of images differs from the published one", [""]))
    whole, official = not findings, source(spec.name).official
    copies: dict[str, list[str]] = defaultdict(list)
    for cases in seen.values():
        names, labels, parts = zip(*cases, strict=True)
        kinds = {_LEAK: len(set(parts)) > 1, "under different labels": len(set(labels)) > 1}
        kinds["on one side of the split"] = len(names) > 1 and not any(kinds.values())
        for kind in (kind for kind, applies in kinds.items() if applies):
            copies[kind].append(" = ".join(names))
    remedies = {} if official else {_LEAK: ": delete all but one of each, or put them on one side"}
    findings += [_finding(f"copies of an image {kind}{remedies.get(kind, '')}", of) for kind, of in copies.items()]
    return {
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "notes": [_printable(note) for note in dataset.notes],
        "sizes": sizes,
        "findings": findings,
        "whole": whole,
        "sound": whole and (official or _LEAK not in copies),
    }


def _printable(text: str) -> str:
    """The text with escapes for bytes of names that are not UTF-8, for terminals and JSON."""
    return text.encode(errors="backslashreplace").decode()


def _finding(what: str, cases: Sequence[str]) -> dict[str, Any]:
    return {"finding": what, "cases": len(cases), "first": _printable("\n".join(cases[:_SHOWN]))}


def _read(pool: Pool, progress: Progress | None) -> Iterator[list[tuple[str, str]]]:
    """Yields the digest of the pixels of every image and "", or "" and the reason why it cannot be read."""

    def one(row: int) -> tuple[str, str]:
        try:
            pixels = np.asarray(pool.read(row))
        except EnvironmentProblem as problem:
            return "", str(problem).split(". `", 1)[0]
        return digest_of_parts([str(pixels.shape), pixels.tobytes()]), ""

    done = 0
    for results in read_in_threads(one, len(pool), _BATCH):
        yield results
        done += len(results)
        if progress is not None:
            progress(done, len(pool), pool.key)


def _sizes(dataset: Dataset, spec: DataSpec) -> Iterator[dict[str, Any]]:
    """Yields the numbers of listed images by domain, and in total if there are several domains."""
    published = source(spec.name).sizes.get(spec.classes, {})
    n = len(dataset.domains)
    held = [np.bincount(pool.domain, minlength=n) for pool in (dataset.train, dataset.test)]
    train, test = (np.stack(held) + dataset.repeats).tolist()  # published numbers include what a list repeats
    rows = list(zip(dataset.domains, train, test, strict=True)) if n > 1 else []
    for domain, *counts in (*rows, (ALL, sum(train), sum(test))):
        expected = None if domain == ALL and spec.domains else published.get(domain)
        numbers = [] if expected is None else [expected] if isinstance(expected, int) else list(expected)
        text = " / ".join(f"{number:,}" for number in numbers)
        right = not numbers or numbers == (counts if len(numbers) == 2 else [sum(counts)])
        yield {
            "domain": _printable(domain),
            "train": counts[0],
            "test": counts[1],
            "published": text if right else f"{text} differs",
        }
