from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import fpl_tune
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import DataSpec, load

MakeImage = Callable[..., Path]
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
