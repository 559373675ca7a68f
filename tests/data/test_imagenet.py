from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fpl_tune.data import DataSpec, load
from fpl_tune.errors import EnvironmentProblem

MakeImage = Callable[..., Path]
NAMES = {"n01440764": "tench", "n03773504": "missile", "n04008634": "missile", "n99999999": "a class without images"}


@pytest.fixture
def root(tmp_path: Path, picture: MakeImage) -> Path:
    root = tmp_path / "imagenet"
    for identifier in list(NAMES)[:3]:
        for part, n in (("train", 3), ("val", 2)):
            for k in range(n):
                picture(root / "images" / part / identifier / f"{identifier}_{part}_{k}.JPEG")
    (root / "classnames.txt").write_text("".join(f"{key} {name}\n" for key, name in NAMES.items()))
    return root


def test_classes_are_those_with_folders_in_the_order_of_their_identifiers(root: Path) -> None:
    data = load(DataSpec("imagenet", root=str(root.parent)))
    assert data.classes == ("tench", "missile", "missile")  # the published list repeats a name
    assert (len(data.train), len(data.test)) == (9, 6)
    for pool, part in ((data.train, "train"), (data.test, "val")):
        for path, label in zip(pool.names, pool.label.tolist(), strict=True):
            assert path.startswith(f"images/{part}/{list(NAMES)[label]}/")


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda root: (root / "classnames.txt").write_text("n01440764 tench\n"), "has no name for n03773504"),
        (
            lambda root: (root / "images" / "val" / "n01440764").rename(root / "images" / "val" / "n99999999"),
            "only one",
        ),
        (
            lambda root: (root / "images" / "val").rename(root / "images" / "test"),
            r"There is no .*images/val\. Images:",
        ),
        (lambda root: (root / "classnames.txt").unlink(), r"There is no .*classnames\.txt\. Images:"),
    ],
)
def test_incomplete_downloads_are_refused(root: Path, breaks: Callable[[Path], object], message: str) -> None:
    breaks(root)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("imagenet", root=str(root)))
