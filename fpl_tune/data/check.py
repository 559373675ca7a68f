"""Checks data sets: counts against published ones, missing and unreadable images, duplicates."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fpl_tune.data.cache import Progress
from fpl_tune.data.files import is_image
from fpl_tune.data.pool import Dataset, FilePool, Pool
from fpl_tune.data.reading import read_in_threads
from fpl_tune.data.registry import load
from fpl_tune.data.sources import ALL, SOURCES, source
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.formatting import counted

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
            mark = "[red]![/red]" if finding.serious else ""
            found.add_row(mark, f"{finding.count:,}", Text(finding.what), Text("\n".join(finding.examples)))
        return [counts, found]


def check(spec: DataSpec, *, progress: Progress | None = None) -> Report:
    """Reads every image of a data set, and compares the files with the lists and the published numbers.

    `data.max_train` and `data.max_test` are ignored.

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
        for row, digest, problem in _read_all(pool, progress):
            name = pool.names[row]
            if problem:
                unreadable.append(f"{name}: {problem}")
            seen[digest].append((name, int(pool.label[row]), part))
    if unreadable:
        findings.append(_finding("cannot be read: download them again or delete them", unreadable))
    findings += [*_duplicates(seen), *_strangers(dataset)]
    sizes = tuple(_sizes(dataset, spec))
    wrong = [domain for domain, *_, published in sizes if published.endswith("differs")]
    if wrong:
        findings.append(Finding("number of images differs from the published one, by domain", len(wrong), tuple(wrong)))
    return Report(dataset.name, sizes, len(dataset.classes), dataset.fingerprint, dataset.notes, tuple(findings))


def _finding(what: str, cases: list[str], *, serious: bool = True) -> Finding:
    return Finding(what, len(cases), tuple(map(_readable, cases[:_SHOWN])), serious)


def _readable(name: str) -> str:
    """A file name for the terminal; bytes that are not UTF-8 are replaced."""
    return name.encode(errors="replace").decode()


def _read_all(pool: Pool, progress: Progress | None) -> Iterator[tuple[int, str, str]]:
    """Yields row, digest of the content and problem (or "") of every image; a thread reads one at a time."""

    def one(row: int) -> tuple[int, str, str]:
        try:
            digest = hashlib.sha1(pool.content(row)).hexdigest()
        except OSError as error:
            return row, f"row {row}", error.strerror or str(error)
        try:
            pool.read(row)
        except EnvironmentProblem as problem:
            return row, f"row {row}", str(problem.__cause__ or problem).split(". `", 1)[0]
        return row, digest, ""

    done = 0
    for found in read_in_threads(one, pool.names, _AT_ONCE):
        yield from found
        done += len(found)
        if progress is not None:
            progress(done, len(pool), pool.key)


def _duplicates(seen: Mapping[str, list[tuple[str, int, str]]]) -> Iterator[Finding]:
    kinds: dict[str, list[str]] = defaultdict(list)
    extra: Counter[str] = Counter()
    for cases in seen.values():
        if len(cases) == 1:
            continue
        text = " = ".join(name for name, *_ in cases)
        if len({label for _, label, _ in cases}) > 1:
            what = "copies of an image under different labels"
        elif len({part for *_, part in cases}) > 1:
            what = "copies of an image on both sides of the split"
        else:
            what = "copies of an image on one side of the split"
        kinds[what].append(text)
        extra[what] += len(cases) - 1
    for what, cases in kinds.items():
        yield Finding(what, extra[what], tuple(cases[:_SHOWN]), serious=False)


def _strangers(dataset: Dataset) -> Iterator[Finding]:
    """Finds files in the data set's folders that are not images, and images that are not listed."""
    pools = [pool for pool in (dataset.train, dataset.test) if isinstance(pool, FilePool)]
    if not pools:
        return
    listed = {name for pool in pools for name in pool.names}
    folders = {name.rsplit("/", 1)[0] for name in listed if "/" in name}
    suffixes: Counter[str] = Counter()
    unlisted: list[str] = []
    for folder in sorted(folders):
        for entry in sorted(Path(pools[0].root, folder).iterdir()):
            if not entry.is_file():
                continue
            if not is_image(entry.name) and entry.suffix.lower() not in _LISTS:
                suffixes[entry.suffix or entry.name] += 1
            elif is_image(entry.name) and f"{folder}/{entry.name}" not in listed:
                unlisted.append(f"{folder}/{entry.name}")
    if suffixes:
        kinds = tuple(f"{count} x {_readable(suffix)}" for suffix, count in suffixes.most_common(_SHOWN))
        yield Finding("are not images and were ignored", suffixes.total(), kinds, serious=False)
    if unlisted:
        yield _finding("exist but are not used: from a validation list or another domain", unlisted, serious=False)


def _sizes(dataset: Dataset, spec: DataSpec) -> Iterator[tuple[str, int, int, str]]:
    published = source(dataset.name).sizes.get(spec.classes, {})
    whole = spec.domains is None and not spec.whole_test
    n = len(dataset.domains)
    counts = [np.bincount(pool.domain, minlength=n).tolist() for pool in (dataset.train, dataset.test)]
    rows = [(name, counts[0][i], counts[1][i]) for i, name in enumerate(dataset.domains)]
    if n > 1:
        rows.append((ALL, sum(counts[0]), sum(counts[1])))
    for domain, train, test in rows:
        key = ALL if n == 1 else domain
        expected = published.get(key) if whole or key != ALL else None
        yield domain, train, test, _compared(expected, train, test)


def _compared(expected: int | Sequence[int] | None, train: int, test: int) -> str:
    if expected is None:
        return ""
    if isinstance(expected, int):
        return f"{expected:,}" if expected == train + test else f"{expected:,} differs"
    text = " / ".join(f"{number:,}" for number in expected)
    return text if tuple(expected) == (train, test) else f"{text} differs"


def catalogue(root: str | None = None) -> list[dict[str, str]]:
    """All data sets, for JSON; with a root, also the number of images found below it, or the problem."""
    rows = []
    for name, entry in SOURCES.items():
        usual = f"{entry.natural.name}, {entry.natural.n_clients} clients"
        usual += " per domain" if entry.natural.name == "domain_dirichlet" else ""
        row = {"name": name, "what": entry.what, "partition": usual, "files": entry.layout, "origin": entry.origin}
        rows.append(row | ({} if root is None else {"there": _there(name, root)}))
    return rows


def catalogue_table(rows: list[dict[str, str]]) -> Table:
    """For the terminal."""
    table = Table("data set", "description and default partition")
    last = "there" if "there" in rows[0] else "files"
    table.add_column("below data.root" if last == "there" else "expected below data.root", overflow="fold")
    for row in rows:
        table.add_row(row["name"], f"{row['what']}\n{row['partition']}", Text(row[last]))
    return table


def _there(name: str, root: str | None) -> str:
    if name in ("folder", "domains"):
        return ""
    try:
        found = load(DataSpec(name, root=root))
    except EnvironmentProblem as problem:
        return f"no. {problem}"
    return counted(len(found.train) + len(found.test), "image")
