from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, PartitionSpec, Split, export_split, load, split

SMALL = DataSpec("shapes", train_per_class=6, test_per_class=3, shots=3, domains=["photo", "sketch"])
DATA = load(SMALL)
BASE_TO_NOVEL = PartitionSpec("disjoint", n_clients=5, evaluation="base_to_novel")


def arrays(drawn: Split) -> list[np.ndarray]:
    held = [drawn.classes, drawn.domain, *drawn.train, *drawn.train_label, *drawn.val, *drawn.val_label]
    for test in drawn.tests.values():
        held += [test.classes, *test.index, *test.label]
    return held


@pytest.mark.parametrize("partition", [PartitionSpec("iid", n_clients=4), BASE_TO_NOVEL], ids=lambda p: p.evaluation)
def test_an_imported_split_is_the_exported_one(tmp_path: Path, partition: PartitionSpec) -> None:
    drawn = split(DATA, SMALL, partition, 3)
    path = export_split(drawn, DATA, tmp_path / "deep" / "split.json")
    read = split(DATA, SMALL, PartitionSpec("file", file=str(path)), seed=99)
    assert read.hash == drawn.hash
    assert list(read.tests) == list(drawn.tests)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(read), arrays(drawn), strict=True))
    assert [test.shared for test in read.tests.values()] == [test.shared for test in drawn.tests.values()]
    assert [p.name for p in path.parent.iterdir()] == ["split.json"]


@pytest.mark.filterwarnings("ignore:partition.compat")
def test_labels_travel_with_the_files(tmp_path: Path) -> None:
    scrambled = split(DATA, SMALL, PartitionSpec("iid", n_clients=4, compat_scrambled_labels=True), 0)
    path = export_split(scrambled, DATA, tmp_path / "split.json")
    read = split(DATA, SMALL, PartitionSpec("file", file=str(path)), 0)
    assert all(np.array_equal(a, b) for a, b in zip(read.train_label, scrambled.train_label, strict=True))
    assert any((DATA.train.label[i] != k).any() for i, k in zip(read.train, read.train_label, strict=True))


def changed(path: Path, edit: Any) -> PartitionSpec:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return PartitionSpec("file", file=str(path))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["train"][0]["labels"].__setitem__(0, 5), r"but its content the hash \w+: it was changed"),
        (lambda c: c["train"][0]["files"].pop(), "labels and files differ in number"),
        (lambda c: c.update(class_names=["cat", "dog"]), "is a split of 'shapes' with 2 classes"),
        (lambda c: c.pop("val"), "is not an exported split"),
        (lambda c: c.update(version=99), "exported by this version"),
        (lambda c: c.update(domain=["moon"] * 4), "is not an exported split"),
    ],
)
def test_what_was_changed_after_the_export_is_refused(tmp_path: Path, edit: Any, message: str) -> None:
    drawn = split(DATA, SMALL, PartitionSpec("iid", n_clients=4), 0)
    path = export_split(drawn, DATA, tmp_path / "split.json")
    with pytest.raises(ConfigError, match=message):
        split(DATA, SMALL, changed(path, edit), 0)


def test_images_that_are_not_here_are_counted(tmp_path: Path) -> None:
    drawn = split(DATA, SMALL, PartitionSpec("domain"), 0)
    path = export_split(drawn, DATA, tmp_path / "split.json")
    photos = load(replace(SMALL, domains=["photo"]))
    with pytest.raises(EnvironmentProblem, match=r"60 images that .* are not in shapes-shape-train, first sketch"):
        split(photos, SMALL, PartitionSpec("file", file=str(path)), 0)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"No such file.* names an exported split"):
        split(DATA, SMALL, PartitionSpec("file", file=str(tmp_path / "none.json")), 0)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="Cannot read"):
        split(DATA, SMALL, PartitionSpec("file", file=str(tmp_path / "bad.json")), 0)
    drawn = split(DATA, SMALL, PartitionSpec("iid", n_clients=2), 0)
    with pytest.raises(EnvironmentProblem, match="Cannot write the split"):
        export_split(drawn, DATA, tmp_path / "bad.json" / "split.json")
