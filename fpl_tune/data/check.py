"""Checks data sets: counts against published ones, missing and unreadable images, duplicates."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.formatting import counted
from fpl_tune.data.cache import Progress
from fpl_tune.data.files import is_image
from fpl_tune.data.pool import Dataset, FilePool, Pool, digest
from fpl_tune.data.reading import read_in_threads
from fpl_tune.data.registry import load
from fpl_tune.data.sources import ALL, SOURCES, source
from fpl_tune.data.spec import DataSpec

_AT_ONCE = 4096  # images submitted to the threads at a time
_SHOWN = 5
_LISTS = (".txt", ".json", ".pkl", ".mat", ".meta", ".md", ".csv", ".html")


@dataclass(frozen=True)
class Finding:
    """A property of the files, with its number of cases and the first of them."""

    what: str
    count: int
    examples: tuple[str, ...] = ()
    serious: bool = True
    """Whether the data set differs from the published one, or cannot be used."""


@dataclass(frozen=True)
class Report:
    """The result of `check`."""

    name: str
    sizes: tuple[tuple[str, int, int, str], ...]
    """By domain: name, training images, test images, and the published numbers or an empty string."""
    n_classes: int
    fingerprint: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether no finding is serious."""
        return not any(finding.serious for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"sound": self.sound}

    def tables(self) -> list[Table]:
        """For the terminal: counts by domain, then findings."""
        title = f"{self.name}: {counted(self.n_classes, 'class', 'classes')}, {self.fingerprint}"
        counts = Table("domain", "training", "test", "published", title=title, caption="; ".join(self.notes) or None)
        for domain, train, test, published in self.sizes:
            counts.add_row(domain, f"{train:,}", f"{test:,}", published)
        if not self.findings:
            return [counts]
        found = Table("", "images", "finding", "first cases")
        for finding in self.findings:
            mark = Text("!" if finding.serious else "", "red")
            found.add_row(mark, f"{finding.count:,}", Text(finding.what), Text("\n".join(finding.examples)))
        return [counts, found]


def check(spec: DataSpec, *, progress: Progress | None = None) -> Report:
    """Reads every image of a data set once.

    Missing listed images are counted. `data.max_train` and `data.max_test` are ignored.

    Args:
        spec: the data set.
        progress: called after every few thousand images.

    Raises:
        ConfigError: an unknown data set, domain or value.
        EnvironmentProblem: the data set cannot be listed.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = load(replace(spec, max_train=None, max_test=None, drop_missing=True))
    findings = [Finding(str(warning.message), 1) for warning in caught]
    seen: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    unreadable: list[str] = []
    for part, pool in (("train", dataset.train), ("test", dataset.test)):
        for name, label, (pixels, problem) in zip(pool.names, pool.label.tolist(), _read(pool, progress), strict=True):
            if problem:
                unreadable.append(f"{name}: {problem}")
            else:
                seen[pixels].append((name, label, part))
    if unreadable:
        findings.append(_finding("cannot be read: download them again or delete them", unreadable))
    findings += [*_duplicates(seen), *_strangers(dataset)]
    sizes = tuple(_sizes(dataset, spec))
    wrong = [domain for domain, *_, published in sizes if published.endswith("differs")]
    if wrong:
        findings.append(_finding("number of images differs from the published one, by domain", wrong))
    return Report(dataset.name, sizes, len(dataset.classes), dataset.fingerprint, dataset.notes, tuple(findings))


def _finding(what: str, cases: Sequence[str], *, count: int = 0, serious: bool = True) -> Finding:
    """`cases` are file names, which may have bytes that are not UTF-8; these are replaced."""
    shown = (name.encode(errors="replace").decode() for name in cases[:_SHOWN])
    return Finding(what, count or len(cases), tuple(shown), serious)


def _read(pool: Pool, progress: Progress | None) -> Iterator[tuple[str, str]]:
    """Yields the digest of the pixels of every image, or the problem that it cannot be read."""

    def one(row: int) -> tuple[str, str]:
        try:
            pixels = np.asarray(pool.read(row))
        except EnvironmentProblem as problem:
            return "", str(problem).split(". `", 1)[0]
        return digest([str(pixels.shape), pixels.tobytes()]), ""

    done = 0
    for found in read_in_threads(one, pool.names, _AT_ONCE):
        yield from found
        done += len(found)
        if progress is not None:
            progress(done, len(pool), pool.key)


def _duplicates(seen: Mapping[str, list[tuple[str, int, str]]]) -> Iterator[Finding]:
    kinds: dict[str, list[list[str]]] = defaultdict(list)
    for cases in seen.values():
        names, labels, parts = zip(*cases, strict=True)
        if len(names) > 1:
            sides = "on both sides of the split" if len(set(parts)) > 1 else "on one side of the split"
            kinds["under different labels" if len(set(labels)) > 1 else sides].append(list(names))
    for kind, copies in kinds.items():
        count = sum(map(len, copies)) - len(copies)
        yield _finding(f"copies of an image {kind}", list(map(" = ".join, copies)), count=count, serious=False)


def _strangers(dataset: Dataset) -> Iterator[Finding]:
    """Finds files in the data set's folders that are not images, and images that are not listed."""
    pools = [pool for pool in (dataset.train, dataset.test) if isinstance(pool, FilePool)]
    listed = {name for pool in pools for name in pool.names}
    suffixes: Counter[str] = Counter()
    unlisted: list[str] = []
    for folder in sorted({name.rpartition("/")[0] for name in listed if "/" in name}):
        for entry in sorted(path for path in Path(pools[0].root, folder).iterdir() if path.is_file()):
            if not is_image(entry.name) and entry.suffix.lower() not in _LISTS:
                suffixes[entry.suffix or entry.name] += 1
            elif is_image(entry.name) and f"{folder}/{entry.name}" not in listed:
                unlisted.append(f"{folder}/{entry.name}")
    if suffixes:
        kinds = [f"{count} x {suffix}" for suffix, count in suffixes.most_common()]
        yield _finding("are not images and were ignored", kinds, count=suffixes.total(), serious=False)
    if unlisted:
        yield _finding("exist but are not used: from a validation list or another domain", unlisted, serious=False)


def _sizes(dataset: Dataset, spec: DataSpec) -> Iterator[tuple[str, int, int, str]]:
    published = source(dataset.name).sizes.get(spec.classes, {})
    n = len(dataset.domains)
    train, test = (np.bincount(pool.domain, minlength=n).tolist() for pool in (dataset.train, dataset.test))
    rows = list(zip(dataset.domains, train, test, strict=True))
    if n > 1:
        rows.append((ALL, sum(train), sum(test)))
    for domain, *found in rows:
        key = ALL if n == 1 else domain
        part = key == ALL and (spec.domains is not None or spec.whole_test)
        expected = None if part else published.get(key)
        numbers = expected if isinstance(expected, Sequence) else [] if expected is None else [expected]
        right = numbers == (found if len(numbers) == 2 else [sum(found)])
        text = " / ".join(f"{number:,}" for number in numbers)
        yield domain, found[0], found[1], text if right or not numbers else f"{text} differs"


def catalogue(root: str | None = None) -> list[dict[str, str]]:
    """All data sets; with a root, also the number of images found below it, or the problem."""
    rows = []
    for name, entry in SOURCES.items():
        usual = f"{entry.natural.name}, {entry.natural.n_clients} clients"
        usual += " per domain" if entry.natural.name == "domain_dirichlet" else ""
        row = {"name": name, "what": entry.what, "partition": usual, "files": entry.layout, "origin": entry.origin}
        rows.append(row | ({} if root is None else {"there": _there(name, root)}))
    return rows


def _there(name: str, root: str) -> str:
    if name in ("folder", "domains"):
        return ""
    try:
        found = load(DataSpec(name, root=root))
    except EnvironmentProblem as problem:
        return f"no. {problem}"
    return counted(len(found.train) + len(found.test), "image")
