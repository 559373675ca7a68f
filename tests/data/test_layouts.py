"""Published data sets in their own layouts: CIFAR, DomainNet, Office-Caltech, and the lists of CoOp."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import fpl_tune
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.unpickle import unpickle

from .conftest import MakeImage


def write_cifar10(root: Path, each: int = 4) -> np.ndarray:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [f"kind_{k}" for k in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    images = rng.integers(0, 256, (6, 10 * each, 3072), dtype=np.uint8)
    for k, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        batch = {"data": images[k], "labels": list(range(10)) * each}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))
    return images


def write_cifar100(root: Path, each: int = 2) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"kind_{k}" for k in range(100)]}))
    for file in ("train", "test"):
        fine = list(range(100)) * each
        batch = {
            "data": np.zeros((len(fine), 3072), np.uint8),
            "fine_labels": fine,
            "coarse_labels": [k // 5 for k in fine],
        }
        (folder / file).write_bytes(pickle.dumps(batch))


def test_batches_are_read_in_order_and_channels_come_last(tmp_path: Path) -> None:
    images = write_cifar10(tmp_path)
    data = load(DataSpec("cifar10", root=str(tmp_path)))
    assert data.classes[3] == "kind 3"
    assert (len(data.train), len(data.test)) == (200, 40)
    assert data.train.label[:12].tolist() == [*range(10), 0, 1]
    read = np.asarray(data.train.read(43))
    assert np.array_equal(read[..., 2].reshape(-1), images[1, 3, 2048:])
    assert data.train.transform == "cifar10"
    assert load(DataSpec("cifar10", root=str(tmp_path), transform="clip")).train.transform == "clip"


def test_super_classes_come_with_cifar100(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    spec = DataSpec("cifar100", root=str(tmp_path), shots=None)
    data = load(spec)
    assert data.coarse is not None
    assert data.coarse.tolist() == [k // 5 for k in range(100)]
    drawn = split(data, spec, PartitionSpec("dirichlet_coarse", n_clients=4), 0)
    held = zip(drawn.train, drawn.val, drawn.tests["test"].index, strict=True)
    assert [sum(len(rows) for rows in mine) for mine in held] == [100] * 4


def test_a_batch_without_labels_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({"data": []}))
    with pytest.raises(EnvironmentProblem, match="test_batch lacks 'labels'"):
        load(DataSpec("cifar10", root=str(tmp_path)))
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(EnvironmentProblem, match=r"There is no .*data_batch_3"):
        load(DataSpec("cifar10", root=str(tmp_path)))


class _Malicious:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize(
    "content",
    [_Malicious(), [_Malicious()], np.array([_Malicious()], dtype=object), Path("x"), print],
    ids=["call", "in a list", "in an array", "class", "builtin"],
)
def test_pickles_that_ask_for_more_than_lists_are_refused(tmp_path, content, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(EnvironmentProblem, match="which is not allowed"):
        unpickle(tmp_path / "x.pkl")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "content",
    [
        (["a", "b"], ["x", "y"]),
        [np.array(["a", "b"]), np.array(["x", "y"], dtype=object)],
        {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "n": np.int64(3), "name": np.str_("x")},
    ],
    ids=["lists", "arrays", "dict"],
)
def test_lists_and_arrays_are_read(tmp_path: Path, content: object, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    read = unpickle(tmp_path / "x.pkl")
    assert str(read) == str(content)


DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = tuple("bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split())
OFFICE_TEN = tuple("back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector".split())


def write_lists(below: Path, classes: list[str], picture: MakeImage) -> Path:
    """Three training and one test image of every domain and class, named in the official lists."""
    root = below / "DomainNet"
    (root / "splits").mkdir(parents=True)
    for domain in DOMAINS:
        paths = [(f"{domain}/{name}/{domain}_{k}.jpg", label) for label, name in enumerate(classes) for k in range(4)]
        for path, _ in paths:
            picture(root / path)
        for part, held in (("train", [0, 1, 2]), ("test", [3])):
            lines = [f"{path} {label}\n" for i, (path, label) in enumerate(paths) if i % 4 in held]
            (root / "splits" / f"{domain}_{part}.txt").write_text("".join(lines))
    return root


def write_pickles(
    root: Path, domains: tuple[str, ...], classes: tuple[str, ...], picture: MakeImage, prefix: str
) -> None:
    for domain in domains:
        for part, n in (("train", 2), ("test", 1)):
            paths, labels = [], []
            for name in classes:
                for k in range(n):
                    picture(root / domain / name / f"{part}_{k}.jpg")
                    paths.append(f"{prefix}{domain}/{name}/{part}_{k}.jpg")
                    labels.append(name)
            (root / f"{domain}_{part}.pkl").write_bytes(pickle.dumps((np.array(paths), np.array(labels)), protocol=2))


def test_all_classes_by_the_official_lists(tmp_path: Path, picture: MakeImage) -> None:
    root = write_lists(tmp_path, ["aircraft_carrier", "zigzag"], picture)
    data = load(DataSpec("domainnet", root=str(tmp_path), classes="345"))
    assert data.classes == ("aircraft carrier", "zigzag")
    assert data.domains == DOMAINS
    assert np.bincount(data.train.domain).tolist() == [6] * 6
    assert np.asarray(data.test.read(5)).shape == (8, 8, 3)
    (root / "splits" / "real_train.txt").unlink()  # lists of domains that are not used need not be there
    some = load(DataSpec("domainnet", root=str(tmp_path), classes="345", domains=["clipart", "sketch"]))
    assert (some.domains, len(some.train)) == (("clipart", "sketch"), 12)
    with pytest.raises(EnvironmentProblem, match=r"Cannot read .*real_train\.txt"):
        load(DataSpec("domainnet", root=str(tmp_path), classes="345"))


@pytest.mark.parametrize(
    ("name", "folder", "domains", "classes"),
    [
        ("domainnet", "DomainNet", DOMAINS, TEN),
        ("office_caltech10", "office_caltech_10", ("amazon", "caltech", "dslr", "webcam"), OFFICE_TEN),
    ],
)
def test_ten_classes_by_the_pickles(tmp_path, picture, name, folder, domains, classes) -> None:
    write_pickles(tmp_path / folder, domains, classes, picture, f"../data/{folder}/")
    data = load(DataSpec(name, root=str(tmp_path)))
    assert data.classes == tuple(name.replace("_", " ") for name in classes)
    assert (len(data.train), len(data.test)) == (20 * len(domains), 10 * len(domains))
    for row in (0, 7, 63, 79):  # a class name is the folder of its images
        assert data.train.names[row].split("/")[:2] == [
            domains[data.train.domain[row]],
            classes[data.train.label[row]],
        ]


@pytest.mark.parametrize("content", [(["a.jpg"], ["bird", "tiger"]), [1, 2, 3], (["a.jpg"], ["unicorn"])])
def test_pickles_that_are_no_lists(tmp_path: Path, picture: MakeImage, content: object) -> None:
    write_pickles(tmp_path / "DomainNet", DOMAINS, TEN, picture, "")
    (tmp_path / "DomainNet" / "clipart_train.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(EnvironmentProblem, match=r"clipart_train\.pkl does not hold image paths and as many"):
        load(DataSpec("domainnet", root=str(tmp_path)))


@pytest.mark.parametrize("line", ["clipart/cat/x.jpg", "x.jpg 0", "clipart/cow/x.jpg 0", "clipart/cow/x.jpg 7"])
def test_lines_that_are_no_entries(tmp_path: Path, picture: MakeImage, line: str) -> None:
    root = write_lists(tmp_path, ["cat", "dog"], picture)
    with (root / "splits" / "clipart_train.txt").open("a") as file:
        file.write(line)
    with pytest.raises(EnvironmentProblem, match=r"has lists that are damaged .*Download them again"):
        load(DataSpec("domainnet", root=str(tmp_path), classes="345"))


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean '345'"):
        load(DataSpec("domainnet", classes="346"))


CATALOGUE = yaml.safe_load((Path(fpl_tune.__file__).parent / "data" / "catalogue.yaml").read_text())
LISTED = [name for name, entry in CATALOGUE.items() if entry.get("split", "").endswith(".json")]


@pytest.fixture
def listed(tmp_path: Path, picture: MakeImage) -> Callable[..., Path]:
    """Writes a data set with its list: two classes with three training, one validation and two test images."""

    def write(name: str, *, folder: str | None = None) -> Path:
        layout = CATALOGUE[name]
        root = tmp_path / (folder or layout["folders"][0])
        content: dict[str, list] = {"train": [], "val": [], "test": []}
        for label, called in enumerate(("first_kind", "second kind")):
            for part, n in (("train", 3), ("val", 1), ("test", 2)):
                for k in range(n):
                    path = f"{called}/{part}_{k}.jpg"
                    picture(root / layout["images"] / path)
                    content[part].append([path, label, called])
        (root / layout["split"]).write_text(json.dumps(content))
        return root

    return write


@pytest.mark.parametrize("name", LISTED)
def test_each_data_set_of_the_layout_loads_by_its_list(listed: Callable[..., Path], name: str) -> None:
    root = listed(name)
    data = load(DataSpec(name, root=str(root.parent)))
    assert data.classes == ("first kind", "second kind")
    assert (len(data.train), len(data.test)) == (6, 4)
    assert not any("val" in path for path in (*data.train.names, *data.test.names))
    assert "{}" in data.template
    assert np.asarray(data.train.read(0)).shape == (8, 8, 3)


def test_listed_images_that_are_missing_are_counted_and_can_be_dropped(listed: Callable[..., Path]) -> None:
    root = listed("dtd")
    (root / "images" / "first_kind" / "train_1.jpg").unlink()
    spec = DataSpec("dtd", root=str(root.parent))
    with pytest.raises(EnvironmentProblem, match=r"^1 of 6 images .*first first_kind/train_1\.jpg.*drop_missing"):
        load(spec)
    with pytest.warns(UserWarning, match="1 of 6 images"):
        assert len(load(replace(spec, drop_missing=True)).train) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Cannot read"),
        ("[" * 100_000, "recursion depth"),
        ("[]", "not a list of CoOp's layout"),
        ('{"train": [["a.jpg", 0]], "test": []}', "not a list of CoOp's layout"),
        ('{"train": [["a.jpg", 0, "x"], ["b.jpg", 0, "y"]], "test": []}', "labels are not 0, 1, 2, ... with one name"),
    ],
    ids=["json", "nested", "no table", "no label", "two names"],
)
def test_a_list_that_is_no_list_is_refused(listed: Callable[..., Path], content: str, message: str) -> None:
    root = listed("food101")
    (root / "split_zhou_Food101.json").write_text(content)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("food101", root=str(root.parent)))


def test_without_the_list_its_origin_is_named(listed: Callable[..., Path]) -> None:
    root = listed("food101")
    (root / "split_zhou_Food101.json").unlink()
    with pytest.raises(EnvironmentProblem, match=r"There is no food-101/split_zhou_Food101\.json .*DATASETS\.md"):
        load(DataSpec("food101", root=str(root.parent)))


def test_aircraft_by_the_official_lists(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "fgvc_aircraft"
    root.mkdir()
    (root / "variants.txt").write_text("707-320\nA340-300 Long\n")
    for part, numbers in (("train", range(4)), ("val", range(4, 6)), ("test", range(6, 9))):
        lines = [f"{k:07d} {('707-320', 'A340-300 Long')[k % 2]}" for k in numbers]
        (root / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n")
        for k in numbers:
            picture(root / "images" / f"{k:07d}.jpg")
    data = load(DataSpec("fgvc_aircraft", root=str(tmp_path)))
    assert data.classes == ("707-320", "A340-300 Long")
    assert data.train.names == tuple(f"{k:07d}.jpg" for k in range(4))
    assert data.train.label.tolist() == [0, 1, 0, 1]
    assert data.test.label.tolist() == [0, 1, 0]
    (root / "images_variant_test.txt").write_text("0000006 Concorde\n")
    with pytest.raises(EnvironmentProblem, match="'Concorde' is not in list"):
        load(DataSpec("fgvc_aircraft", root=str(tmp_path)))
