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
