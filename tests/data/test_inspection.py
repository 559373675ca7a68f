"""What clients of a split hold, and what is wrong with files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.inspection import check, overview
from fpl_tune.data.sources import SOURCES, catalogue

from .conftest import MakeImage


def finding(report: dict[str, Any], words: str) -> dict[str, Any]:
    (found,) = [f for f in report["findings"] if words in f["finding"]]
    return found


def test_an_overview_counts_what_each_client_holds() -> None:
    spec = DataSpec("shapes", train_per_class=4, test_per_class=2, shots=2)
    data = load(spec)
    drawn = split(data, spec, PartitionSpec("disjoint", n_clients=10), 0)
    seen = json.loads(json.dumps(overview(drawn, data)))
    assert (seen["dataset"], seen["hash"]) == ("shapes", drawn.hash)
    assert seen["constant_prediction"] == 0.5  # two classes of equal size
    assert [client["client"] for client in seen["clients"]] == list(range(10))
    first = seen["clients"][0]
    assert [first[name] for name in ("train", "val", "test", "classes")] == [4, 2, 24, 2]
    assert sorted(first["most frequent"]) == sorted(f"{data.classes[k]} 2" for k in set(drawn.train_label[0].tolist()))
    assert set(first["domains"]) == {data.domains[d] for d in data.train.domain[drawn.train[0]]}


def test_a_sound_data_set_has_no_findings(folders: Callable[..., Path]) -> None:
    told: list[tuple[int, int, str]] = []
    report = check(DataSpec("folder", root=str(folders("cat", "dog"))), progress=lambda *step: told.append(step))
    assert report["sound"]
    assert not report["findings"]
    assert report["sizes"] == [{"domain": "all", "train": 8, "test": 2, "published": ""}]
    assert told == [(8, 8, "folder-train"), (2, 2, "folder-test")]


def test_unreadable_images_are_counted_and_named(odd_images: Path) -> None:
    report = check(DataSpec("folder", root=str(odd_images)))
    broken = finding(report, "cannot be read")
    assert broken["cases"] == 2
    assert {text.split(":")[0] for text in broken["first"].split("\n")} == {"dog/truncated.jpg", "dog/empty.jpg"}
    assert not report["sound"]


def test_copies_are_told_apart_by_what_they_spoil(folders: Callable[..., Path]) -> None:
    root = folders("cat", "dog", n=10)
    spec = DataSpec("folder", root=str(root))
    data = load(spec)
    cats, dogs = ([name for name in data.train.names if name.startswith(kind)] for kind in ("cat", "dog"))
    tested = next(name for name in data.test.names if name.startswith("cat"))
    for source, target in ((cats[0], cats[1]), (cats[3], tested), (cats[4], dogs[4])):
        (root / target).write_bytes((root / source).read_bytes())
    report = check(spec)
    assert finding(report, "on one side of the split")["first"] == f"{cats[0]} = {cats[1]}"
    assert finding(report, "on both sides of the split")["first"] == f"{cats[3]} = {tested}"
    assert finding(report, "under different labels")["first"] == f"{cats[4]} = {dogs[4]}"
    assert report["sound"]


def test_missing_images_do_not_end_the_check(tmp_path: Path, picture: MakeImage) -> None:
    content = {"train": [["a/0.jpg", 0, "a"], ["a/1.jpg", 0, "a"]], "val": [], "test": [["a/2.jpg", 0, "a"]]}
    for k in (0, 2):
        picture(tmp_path / "dtd" / "images" / "a" / f"{k}.jpg")
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(content))
    report = check(DataSpec("dtd", root=str(tmp_path)))
    assert "1 of 2 images" in finding(report, "are not below")["finding"]
    assert finding(report, "differs from the published one")
    assert report["sizes"] == [{"domain": "all", "train": 1, "test": 1, "published": "2,820 / 1,692 differs"}]


def test_published_sizes_by_domain(folders: Callable[..., Path]) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", below=f"PACS/{domain}").parent
    sizes = check(DataSpec("pacs", root=str(root.parent)))["sizes"]
    assert sizes[0] == {"domain": "photo", "train": 4, "test": 1, "published": "1,670 differs"}
    assert sizes[-1] == {"domain": "all", "train": 16, "test": 4, "published": ""}


def test_the_catalogue_describes_every_data_set() -> None:
    assert {row["name"] for row in catalogue() if all(row.values())} == set(SOURCES)
