from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, load

MakeImage = Callable[..., Path]
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = tuple("bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split())
OFFICE_TEN = tuple("back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector".split())


def write_lists(root: Path, classes: list[str], picture: MakeImage, *, folder: str = "splits") -> None:
    """Three training and one test image of every domain and class, named in the official lists."""
    for domain in DOMAINS:
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for label, name in enumerate(classes):
            for k in range(4):
                path = f"{domain}/{name}/{domain}_{k}.jpg"
                picture(root / path)
                lines["test" if k == 3 else "train"].append(f"{path} {label}")
        (root / folder).mkdir(exist_ok=True)
        for part, text in lines.items():
            (root / folder / f"{domain}_{part}.txt").write_text("\n".join(text) + "\n")


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


@pytest.mark.parametrize("folder", ["splits", "."])
def test_all_classes_by_the_official_lists(tmp_path: Path, picture: MakeImage, folder: str) -> None:
    write_lists(tmp_path / "DomainNet", ["aircraft_carrier", "zigzag"], picture, folder=folder)
    data = load(DataSpec("domainnet", root=str(tmp_path), classes="345"))
    assert data.classes == ("aircraft carrier", "zigzag")
    assert data.domains == DOMAINS
    assert np.bincount(data.train.domain).tolist() == [6] * 6
    assert np.asarray(data.test.read(5)).shape == (8, 8, 3)


def test_lists_of_other_domains_need_not_be_there(tmp_path: Path, picture: MakeImage) -> None:
    write_lists(tmp_path / "DomainNet", ["cat", "dog"], picture)
    (tmp_path / "DomainNet" / "splits" / "real_train.txt").unlink()
    some = load(DataSpec("domainnet", root=str(tmp_path), classes="345", domains=["clipart", "sketch"]))
    assert (some.domains, len(some.train)) == (("clipart", "sketch"), 12)
    with pytest.raises(EnvironmentProblem, match=r"There is no .*real_train\.txt"):
        load(DataSpec("domainnet", root=str(tmp_path), classes="345"))


@pytest.mark.parametrize("prefix", ["DomainNet/", "", "../data/DomainNet/"])
def test_ten_classes_by_the_pickles(tmp_path: Path, picture: MakeImage, prefix: str) -> None:
    write_pickles(tmp_path / "DomainNet", DOMAINS, TEN, picture, prefix)
    data = load(DataSpec("domainnet", root=str(tmp_path)))
    assert data.classes == tuple(name.replace("_", " ") for name in TEN)
    assert (len(data.train), len(data.test)) == (120, 60)
    assert not data.notes
    for row in (0, 7, 63, 119):  # a class name is the folder of its images
        assert data.train.names[row].split("/")[1] == TEN[data.train.label[row]]


def test_ten_classes_are_picked_from_the_lists_without_pickles(tmp_path: Path, picture: MakeImage) -> None:
    write_lists(tmp_path / "DomainNet", ["apple", *reversed(TEN), "zigzag"], picture)
    data = load(DataSpec("domainnet", root=str(tmp_path), classes="10"))
    assert data.classes[3] == "ice cream"
    assert np.bincount(data.train.label).tolist() == [18] * 10
    assert np.bincount(data.test.label).tolist() == [6] * 10
    for name, label in zip(data.test.names, data.test.label.tolist(), strict=True):
        assert name.split("/")[1] == TEN[label]
    assert "not the papers' split" in data.notes[0]


def test_office_by_pickles(tmp_path: Path, picture: MakeImage) -> None:
    domains = ("amazon", "caltech", "dslr", "webcam")
    write_pickles(tmp_path / "office_caltech_10", domains, OFFICE_TEN, picture, "office_caltech_10/")
    data = load(DataSpec("office_caltech10", root=str(tmp_path)))
    assert (len(data.train), len(data.test)) == (80, 40)
    assert data.classes[5] == "laptop computer"


def test_office_by_folders_that_are_called_otherwise(tmp_path: Path, picture: MakeImage) -> None:
    for domain in ("amazon", "caltech10", "dslr", "webcam"):
        for name in OFFICE_TEN:
            folder = {"back_pack": "backpack", "laptop_computer": "laptop"}.get(name, name)
            for k in range(5):
                picture(tmp_path / "office_caltech_10" / domain / folder / f"frame_{k}.jpg")
    data = load(DataSpec("office_caltech10", root=str(tmp_path)))
    assert data.domains == ("amazon", "caltech", "dslr", "webcam")
    assert data.classes == tuple(name.replace("_", " ") for name in OFFICE_TEN)
    assert (len(data.train), len(data.test)) == (160, 40)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((["a.jpg"], ["bird", "tiger"]), "does not hold image paths and as many"),
        ([1, 2, 3], "does not hold image paths"),
        ((["a.jpg"], ["unicorn"]), "names the class 'unicorn'"),
    ],
)
def test_pickles_that_are_no_lists(tmp_path: Path, picture: MakeImage, content: object, message: str) -> None:
    write_pickles(tmp_path / "DomainNet", DOMAINS, TEN, picture, "")
    (tmp_path / "DomainNet" / "clipart_train.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("domainnet", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clipart/cat/x.jpg", "which is not"),
        ("x.jpg 0", "which is not"),
        ("clipart/cow/x.jpg 0", "label 0 is both 'cat' and 'cow'"),
        ("clipart/cow/x.jpg 7", "labels are not 0, 1, 2"),
    ],
)
def test_lines_that_are_no_entries(tmp_path: Path, picture: MakeImage, line: str, message: str) -> None:
    write_lists(tmp_path / "DomainNet", ["cat", "dog"], picture)
    with (tmp_path / "DomainNet" / "splits" / "clipart_train.txt").open("a") as file:
        file.write(line)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("domainnet", root=str(tmp_path), classes="345"))


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean '345'"):
        load(DataSpec("domainnet", classes="346"))
