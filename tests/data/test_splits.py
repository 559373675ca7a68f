"""Exported splits where the folder has changed: what they name is what counts, wherever `test_share` puts it today."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, Split, export_split, load, split

from .conftest import MakeImage

SPEC = DataSpec("folder", shots=3, val=0.34)
Exported = tuple[DataSpec, PartitionSpec, dict[str, list[str]], str]


@pytest.fixture
def exported(folders: Callable[..., Path], tmp_path: Path) -> Exported:
    """The specification, the partition of the file, the images that it names by set, and its hash."""
    spec = replace(SPEC, root=str(folders("cat", "dog", "owl", n=20, below="set")))
    data = load(spec)
    drawn = split(data, spec, PartitionSpec("iid", n_clients=2), 1)
    path = export_split(drawn, data, tmp_path / "split.json")
    content = json.loads(path.read_text())
    named = {part: [name for client in content[part] for name in client["files"]] for part in ("train", "val")}
    named["test"] = [name for client in content["tests"]["test"]["clients"] for name in client["files"]]
    return spec, PartitionSpec("file", file=str(path)), named, drawn.hash


def read(spec: DataSpec, partition: PartitionSpec) -> tuple[Dataset, Split]:
    data = load(spec, partition.file)
    return data, split(data, spec, partition, 7)


def images(data: Dataset, drawn: Split) -> dict[str, list[str]]:
    """The images of a split by set."""
    held = {"train": (data.train, drawn.train), "val": (data.train, drawn.val)}
    held["test"] = data.test, drawn.tests["test"].index
    return {part: [pool.names[i] for rows in index for i in rows.tolist()] for part, (pool, index) in held.items()}


CHANGES: dict[str, Callable[[Path, list[str], MakeImage], object]] = {
    "nothing": lambda root, spare, picture: None,
    "an image more": lambda root, spare, picture: picture(root / "cat" / "zzz.jpg"),
    "an image more in front": lambda root, spare, picture: picture(root / "cat" / "aaa.jpg"),
    "many images more": lambda root, spare, picture: [picture(root / "dog" / f"{k}.jpg") for k in range(15)],
    "an image less that it does not name": lambda root, spare, picture: (root / spare[0]).unlink(),
    "no image that it does not name": lambda root, spare, picture: [(root / name).unlink() for name in spare],
    "one less and one more": lambda root, spare, picture: ((root / spare[0]).unlink(), picture(root / "owl/n.jpg")),
    "a file that is no image": lambda root, spare, picture: (root / "cat" / "notes.txt").write_text("x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_split_is_what_it_was_while_its_images_are_there(change: str, exported: Exported, picture: MakeImage) -> None:
    spec, partition, named, hashed = exported
    whole = load(spec)
    used = {name for part in named.values() for name in part}
    CHANGES[change](Path(str(spec.root)), sorted({*whole.train.names, *whole.test.names} - used), picture)
    data, drawn = read(spec, partition)
    assert (images(data, drawn), drawn.hash) == (named, hashed)
    assert not {*data.train.names} & {*data.test.names}
    assert {*data.train.names, *data.test.names} == {*load(spec).train.names, *load(spec).test.names}
    for pool in (data.train, data.test):
        for row in (0, len(pool) - 1):
            assert np.asarray(pool.read(row)).shape == (8, 8, 3)
            assert pool.names[row].startswith(data.classes[pool.label[row]])


def test_another_share_of_the_division_does_not_matter(exported: Exported) -> None:
    spec, partition, named, hashed = exported
    for other in (replace(spec, test_share=0.6), replace(spec, whole_test=[])):
        data, drawn = read(other, partition)
        assert (images(data, drawn), drawn.hash) == (named, hashed)


def test_a_data_set_that_is_divided_as_before_is_left_alone(exported: Exported) -> None:
    spec, partition, *_ = exported
    data, plain = load(spec, partition.file), load(spec)
    assert data.fingerprint == plain.fingerprint
    assert data.train.stamp() == plain.train.stamp(), "its features are those in the cache"


@pytest.mark.parametrize("part", ["train", "val", "test"])
@pytest.mark.parametrize("how", ["gone", "renamed", "moved to another class"])
def test_an_image_that_is_gone_is_named(part: str, how: str, exported: Exported) -> None:
    spec, partition, named, _ = exported
    root, lost = Path(str(spec.root)), named[part][0]
    if how == "gone":
        (root / lost).unlink()
    else:
        (root / lost).rename(root / lost.replace("image", "photo") if how == "renamed" else root / "owl" / "new.jpg")
    with pytest.raises(EnvironmentProblem, match=rf"names 1 image that data=folder lacks, first {lost}\. Restore"):
        load(spec, partition.file)


def test_images_that_are_gone_are_counted_over_both_sides(exported: Exported) -> None:
    spec, partition, named, _ = exported
    gone = sorted([named["train"][0], named["val"][0], named["test"][0], named["test"][1]])
    for name in gone:
        (Path(str(spec.root)) / name).unlink()
    with pytest.raises(EnvironmentProblem, match=rf"names 4 images that data=folder lacks, first {gone[0]}"):
        load(spec, partition.file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda root: shutil.rmtree(root / "owl"), "with 3 classes; data=folder has 2, without 'owl'"),
        (lambda root: (root / "owl").rename(root / "eagle"), "data=folder has 3, without 'owl'"),
        (lambda root: shutil.copytree(root / "owl", root / "eagle"), "data=folder has 4, with 'eagle'"),
    ],
)
def test_a_class_that_is_gone_renamed_or_new_is_named(
    change: Callable[[Path], object], says: str, exported: Exported
) -> None:
    spec, partition, *_ = exported
    change(Path(str(spec.root)))
    with pytest.raises(ConfigError, match=says):
        load(spec, partition.file)


@pytest.mark.filterwarnings("ignore:data.permute_classnames")
@pytest.mark.parametrize(
    ("changes", "says"),
    [({"names": {"owl": "night owl"}}, "without 'owl'"), ({"permute_classnames": 3}, "in another order")],
)
def test_other_names_of_classes_are_told(changes: dict, says: str, exported: Exported) -> None:
    spec, partition, *_ = exported
    with pytest.raises(ConfigError, match=says):
        load(replace(spec, **changes), partition.file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"train": [["a/0.png", 0, "a"]], "val": [], "test": []},
            r"is a list of images in CoOp's layout.*train/<class>/\*",
        ),
        ({"splits": []}, r"is no split that this version exports\. .*--export FILE`\.$"),
        ([], "is no split that this version exports"),
    ],
)
def test_a_file_of_another_kind_is_told_with_what_to_write(content: object, says: str, exported: Exported) -> None:
    spec, partition, *_ = exported
    Path(str(partition.file)).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says):
        load(spec, partition.file)


def test_a_part_of_the_data_lacks_the_rest(exported: Exported) -> None:
    spec, partition, named, _ = exported
    with pytest.raises(EnvironmentProblem, match=r"lacks, first .* undo data\.domains, data\.max_train"):
        load(replace(spec, max_train=1), partition.file)
    assert len(named["train"]) > 3


@pytest.mark.parametrize("part", ["train", "tests"])
@pytest.mark.parametrize("content", [None, 5, [5], [{"files": [["a"]]}], {"x": {}}])
def test_a_file_that_is_no_split_is_refused_when_the_data_are_loaded(
    part: str, content: object, exported: Exported
) -> None:
    spec, partition, *_ = exported
    path = Path(str(partition.file))
    path.write_text(json.dumps({**json.loads(path.read_text()), part: content}))
    with pytest.raises(ConfigError, match=re.escape(f"{path} is not an exported split of folder")):
        read(spec, partition)


def test_a_relative_file_and_one_with_a_byte_order_mark(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, partition, named, _ = exported
    path = Path(str(partition.file))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    monkeypatch.chdir(tmp_path)
    data, drawn = read(spec, PartitionSpec("file", file="split.json"))
    assert images(data, drawn) == named
