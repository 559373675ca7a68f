"""Images that a list names more than once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fpl_tune.core.errors import Notice
from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.inspection import check
from fpl_tune.data.sources import SOURCES

Lists = Callable[..., DataSpec]
Listed = tuple[str, int]


@pytest.fixture
def lists(tmp_path: Path, picture: Callable[..., Path]) -> Lists:
    """Writes CoOp's list of DTD with eight images of each of two classes, and further training and test images."""

    def write(train: list[Listed] = [], test: list[Listed] = []) -> DataSpec:  # noqa: B006
        both = [(f"{name}/{k}.png", label) for label, name in enumerate("ab") for k in range(8)]
        parts = {"train": [*both[:5], *both[8:13], *train], "val": [], "test": [*both[5:8], *both[13:], *test]}
        for image, _ in both:
            picture(tmp_path / "dtd" / "images" / image)
        content = {part: [[image, label, "ab"[label]] for image, label in rows] for part, rows in parts.items()}
        (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(content))
        return DataSpec("dtd", root=str(tmp_path))

    return write


def test_an_image_that_is_listed_twice_with_its_label_counts_once(
    lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES["dtd"].sizes[""], "all", (12, 7))  # pyright: ignore[reportIndexIssue, reportArgumentType]
    once = load(lists())
    spec = lists([("a/0.png", 0), ("b/1.png", 1)], [("a/6.png", 0)])
    with pytest.warns(Notice, match=r"^dtd lists images more than once: 3 with the same label, which count once\.$"):
        twice = load(spec)
    assert (twice.fingerprint, twice.train.names, twice.test.names) == (
        once.fingerprint, once.train.names, once.test.names
    )  # fmt: skip
    sizes = check(spec)["sizes"]
    assert sizes == [{"domain": "all", "train": 12, "test": 7, "published": "12 / 7"}], "as the list counts"


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ([("a/5.png", 0), ("b/5.png", 1)], [], "2 on both sides of the split, first a/5.png"),
        ([], [("a/0.png", 0)], "1 on both sides of the split, first a/0.png"),
        ([("a/0.png", 1)], [], "1 under different labels, first a/0.png"),
        ([("a/0.png", 0), ("a/0.png", 1)], [], "1 with the same label, which count once; 1 under different labels, f"),
        ([], [("a/0.png", 1)], "1 on both sides of the split, first a/0.png; 1 under different labels, first a/0.png"),
    ],
)
def test_an_image_that_is_listed_differently_stays_and_is_said(
    lists: Lists, train: list[Listed], test: list[Listed], said: str
) -> None:
    spec = lists(train, test)
    with pytest.warns(Notice, match=f"^dtd lists images more than once: {said}") as caught:
        data = load(spec)
    assert len(caught) == 1
    assert str(caught[0].message) in data.notes
    assert str(caught[0].message) in check(spec)["notes"]
    assert len(data.train) + len(data.test) == 16 + len(train) + len(test) - said.count("which count once")


def test_no_client_validates_on_an_image_that_another_one_trains_on(lists: Lists) -> None:
    """With each image listed five times, any partition would deal an image to several clients."""
    images = [(f"{name}/{k}.png", label) for label, name in enumerate("ab") for k in range(5)]
    spec = lists(images * 4)
    with pytest.warns(Notice, match="40 with the same label"):
        data = load(spec)
    drawn = split(data, spec, PartitionSpec("dirichlet", n_clients=2, min_size=2), 1)
    names = [[data.train.names[row] for rows in side for row in rows.tolist()] for side in (drawn.train, drawn.val)]
    assert len(set(names[0])) == len(names[0])
    assert not set(names[0]) & set(names[1])


def test_lists_that_name_each_image_once_are_as_they_were(lists: Lists, recwarn: pytest.WarningsRecorder) -> None:
    data = load(lists())
    assert not [warning for warning in recwarn if issubclass(warning.category, Notice)]
    assert (len(data.train), len(data.test), data.notes) == (10, 6, ())
