"""Draws splits: the partition, the few-shot draw and the test sets of a protocol."""

from __future__ import annotations

import warnings
import zlib

import numpy as np

from fpl_tune.core.errors import ConfigError
from fpl_tune.data import fewshot
from fpl_tune.data.dealing import Request, deal
from fpl_tune.data.pool import Dataset, Ints, Pool
from fpl_tune.data.registry import resolve
from fpl_tune.data.spec import DataSpec, PartitionSpec, kept_domains
from fpl_tune.data.splits import UNKNOWN, Split, TestSet, identity, import_split

_DEFECTS = {
    "compat_scrambled_labels": "labels are paired with the wrong images, as in published code. Accuracies of this run "
    "are at best each client's share of its most frequent class.",
    "compat_fixed_split": "the partition ignores the seed and repeats from class to class, as in published code. The "
    "spread over seeds does not include that of partitions.",
}


def split(dataset: Dataset, data: DataSpec, partition: PartitionSpec, seed: int) -> Split:
    """Distributes a data set over clients and draws their training, validation and test images.

    The same arguments give the same split on every machine.

    Raises:
        ConfigError: unknown name, infeasible partition, a client without training or test images.
    """
    spec = resolve(data, partition)
    if spec.file is not None:
        return import_split(spec.file, dataset)
    kept_domains(dataset.name, dataset.domains, spec.held_out or None)
    for name, effect in _DEFECTS.items():
        if getattr(spec, name):
            warnings.warn(f"partition.{name}: {effect}", stacklevel=2)

    def rng(purpose: str) -> np.random.Generator:
        """One random stream per purpose, so that draws do not depend on each other."""
        return np.random.default_rng([spec.seed, *([seed] if spec.vary else []), zlib.crc32(purpose.encode())])

    source = np.array([domain not in spec.held_out for domain in dataset.domains])
    if not source.any():
        raise ConfigError(f"partition.held_out={list(spec.held_out)} leaves no domain to train on. Hold out fewer.")
    n_classes = len(dataset.classes)
    halved = spec.evaluation in ("base_to_novel", "open_set")
    train_classes = np.arange((n_classes + 1) // 2 if halved else n_classes, dtype=np.int64)
    pools = (dataset.train, dataset.test)
    rows, test_rows = (np.flatnonzero(source[pool.domain] & (pool.label < len(train_classes))) for pool in pools)
    label = dataset.train.label[rows]
    # if several clients have an image, no client trains on it if another one validates on it
    reserved = fewshot.reserve(label, data.val if spec.name == "classes" else 0.0, rng("reserve"))
    dealt, n_clients = deal(
        Request(
            spec=spec,
            label=(label, dataset.test.label[test_rows]),
            domain=(dataset.train.domain[rows], dataset.test.domain[test_rows]),
            n_classes=len(train_classes),
            domains=np.flatnonzero(source).tolist(),
            coarse=dataset.coarse,
            wanted=fewshot.wanted(data.shots, data.val),
            reserved=reserved,
            rng=rng("deal"),
        )
    )
    few = (dealt.train, label, data.shots, data.val, rng("few-shot"))
    if spec.name == "disjoint" and not spec.vary:
        drawn = fewshot.draw_published(*few, n_classes=len(train_classes), seed=spec.seed)
    elif spec.name == "classes":
        drawn = fewshot.draw_reserved(*few, reserved)
    else:
        drawn = fewshot.draw(*few)
    train, val = (fewshot.by_client(pairs.within(rows), n_clients) for pairs in drawn)
    own = fewshot.by_client(dealt.test.within(test_rows), n_clients)
    train_label, val_label = ([dataset.train.label[i] for i in side] for side in (train, val))
    own_label = [dataset.test.label[i] for i in own]
    if spec.label_noise:
        noise = rng("label noise")
        train_label, val_label = (
            _mislabelled(labels, spec.label_noise, train_classes, noise) for labels in (train_label, val_label)
        )
    if spec.compat_scrambled_labels:
        scramble = rng("scramble")
        (train, val), (train_label, val_label) = _scrambled(dataset.train, (train, val), scramble)
        (own,), (own_label,) = _scrambled(dataset.test, (own,), scramble)
    _require_images(train, "training image", "data.shots")
    domain = np.array([np.bincount(dataset.train.domain[i]).argmax() for i in train], dtype=np.int64)
    tests = _tests(dataset, spec, train_classes, TestSet(own, train_classes, own_label), domain)
    for name, test in tests.items():
        _require_images(test.index, f"image in {name!r}", "data.max_test")
    digest = identity(dataset, (train, train_label), (val, val_label), tests, train_classes)
    return Split(train, val, tests, train_classes, domain, train_label, val_label, digest)


def _mislabelled(labels: list[Ints], most: float, classes: Ints, rng: np.random.Generator) -> list[Ints]:
    """Replaces a share of the labels, from 0 at the first client to `most` at the last, by other classes."""
    shares = np.linspace(0, most, len(labels)) if len(labels) > 1 else [most]
    noisy = []
    for mine, share in zip(labels, shares, strict=True):
        other = (mine + rng.integers(1, max(len(classes), 2), size=len(mine))) % len(classes)
        noisy.append(np.where(rng.random(len(mine)) < share, other, mine))
    return noisy


def _scrambled(
    pool: Pool, parts: tuple[list[Ints], ...], rng: np.random.Generator
) -> tuple[list[list[Ints]], list[list[Ints]]]:
    """Pairs rows and labels wrongly: a client's labels with the first images in the list of its domain."""
    rows: list[list[Ints]] = []
    labels: list[list[Ints]] = []
    for mine in zip(*parts, strict=True):
        dealt = np.concatenate(mine)
        cuts = np.cumsum([len(side) for side in mine])[:-1]
        listed = np.flatnonzero(np.isin(pool.domain, np.unique(pool.domain[dealt])))[: len(dealt)]
        rows.append(np.split(listed, cuts))
        labels.append(np.split(pool.label[rng.permutation(dealt)], cuts))
    return [list(part) for part in zip(*rows, strict=True)], [list(part) for part in zip(*labels, strict=True)]


def _tests(
    dataset: Dataset, spec: PartitionSpec, train_classes: Ints, own: TestSet, domain: Ints
) -> dict[str, TestSet]:
    """The protocol's test sets, the main one first."""
    n_clients, pool = len(own.index), dataset.test

    def everyone(rows: Ints, classes: Ints = train_classes) -> TestSet:
        return TestSet([rows] * n_clients, classes, [pool.label[rows]] * n_clients)

    if spec.evaluation in ("base_to_novel", "open_set"):
        novel = np.arange(len(train_classes), len(dataset.classes), dtype=np.int64)
        base_rows, novel_rows = (np.flatnonzero(np.isin(pool.label, classes)) for classes in (train_classes, novel))
        if spec.evaluation == "open_set":
            return {"test": own, "base": everyone(base_rows), UNKNOWN: everyone(novel_rows)}
        return {"test": own, "base": everyone(base_rows), "novel": everyone(novel_rows, novel)}
    if spec.evaluation == "leave_one_domain_out":
        target = [dataset.domains.index(name) for name in spec.held_out]
        return {"test": everyone(np.flatnonzero(np.isin(pool.domain, target))), "own": own}
    if spec.evaluation == "domains":
        whole = [np.flatnonzero(pool.domain == d) for d in range(len(dataset.domains))]
        main = TestSet([whole[d] for d in domain], train_classes, [pool.label[whole[d]] for d in domain])
        return {"test": main} | {
            f"domain/{name}": everyone(rows) for name, rows in zip(dataset.domains, whole, strict=True)
        }
    return {"test": own}


def _require_images(rows: list[Ints], kind: str, remedy: str) -> None:
    """Raises `ConfigError` if a client has no image."""
    empty = [client for client, mine in enumerate(rows) if not len(mine)]
    if empty:
        raise ConfigError(
            f"{len(empty)} of {len(rows)} clients have no {kind}, first client {empty[0]}. "
            f"Lower partition.n_clients or raise {remedy}."
        )
