from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from fpl_tune.data import DataSpec, load
from fpl_tune.data.cache import prepare
from fpl_tune.data.check import Finding, Report, catalogue, check
from fpl_tune.data.sources import SOURCES
from fpl_tune.testing import toy_towers

MakeImage = Callable[..., Path]


def finding(report: Report, words: str) -> Finding:
    (found,) = [f for f in report.findings if words in f.what]
    return found


def shown(*tables: object) -> str:
    printed = io.StringIO()
    for part in tables:
        Console(width=200, file=printed).print(part)
    return printed.getvalue()


def test_a_sound_data_set_has_nothing_to_tell(folders: Callable[..., Path]) -> None:
    root = folders("cat", "dog")
    told: list[tuple[int, int, str]] = []
    report = check(DataSpec("folder", root=str(root)), progress=lambda *step: told.append(step))
    assert report.sound
    assert not report.findings
    assert report.sizes == (("images", 8, 2, ""),)
    assert told == [(8, 8, "folder-train"), (2, 2, "folder-test")]
    assert "folder: 2 classes" in shown(*report.tables())


def test_broken_and_strange_files_are_counted(odd_images: Path) -> None:
    report = check(DataSpec("folder", root=str(odd_images)))
    broken = finding(report, "cannot be read")
    assert (broken.count, broken.serious) == (2, True)
    assert {text.split(":")[0] for text in broken.examples} == {"dog/truncated.jpg", "dog/empty.jpg"}
    strange = finding(report, "are not images")
    assert (strange.count, strange.serious) == (2, False)
    assert set(strange.examples) == {"1 x .doc", "1 x .db"}
    assert not report.sound
    assert report.to_dict()["sound"] is False
    assert "dog/empty.jpg" in shown(*report.tables())


def test_copies_are_told_apart_by_what_they_spoil(folders: Callable[..., Path]) -> None:
    root = folders("cat", "dog", n=10)
    spec = DataSpec("folder", root=str(root))
    data = load(spec)
    train, test = data.train.names, data.test.names
    cats, dogs = ([name for name in train if name.startswith(kind)] for kind in ("cat", "dog"))
    cat_tested = next(name for name in test if name.startswith("cat"))
    for source, target in ((cats[0], cats[1]), (cats[0], cats[2]), (cats[3], cat_tested), (cats[4], dogs[4])):
        (root / target).write_bytes((root / source).read_bytes())
    report = check(spec)
    assert finding(report, "on one side of the split").count == 2
    assert finding(report, "on both sides of the split").examples == (f"{cats[3]} = {cat_tested}",)
    assert finding(report, "under different labels").examples == (f"{cats[4]} = {dogs[4]}",)


def test_missing_images_do_not_end_the_check(tmp_path: Path, picture: MakeImage) -> None:
    content = {"train": [["a/0.jpg", 0, "a"], ["a/1.jpg", 0, "a"]], "val": [], "test": [["a/2.jpg", 0, "a"]]}
    for k in (0, 2, 3):
        picture(tmp_path / "dtd" / "images" / "a" / f"{k}.jpg")
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(content))
    report = check(DataSpec("dtd", root=str(tmp_path)))
    assert "1 of 2 images" in finding(report, "are not below").what
    assert finding(report, "not used").examples == ("a/3.jpg",)
    assert finding(report, "differs from the published one").examples == ("images",)
    assert report.sizes == (("images", 1, 1, "2,820 / 1,692 differs"),)


def test_published_sizes_by_domain(folders: Callable[..., Path]) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", below=f"PACS/{domain}").parent
    report = check(DataSpec("pacs", root=str(root.parent)))
    assert report.sizes[0] == ("photo", 4, 1, "1,670 differs")
    assert report.sizes[-1] == ("all", 16, 4, "")
    assert finding(report, "differs from the published one").count == 4


def test_the_catalogue_names_every_data_set_and_what_is_there(folders: Callable[..., Path]) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", below=f"PACS/{domain}").parent.parent
    rows = {row["name"]: row for row in catalogue(str(root))}
    assert set(rows) == set(SOURCES)
    assert rows["pacs"]["there"] == "20 images"
    assert rows["dtd"]["there"].startswith("no. There is no dtd/")
    assert "there" not in catalogue()[0]


def test_prepare_fills_the_cache_for_both_pools(tmp_path: Path) -> None:
    spec = DataSpec("shapes", train_per_class=1, test_per_class=1, domains=["photo"])
    towers = toy_towers("vit")
    done = prepare(load(spec), 0, towers, "pooled", cache_dir=tmp_path)
    assert [row["shape"] for row in done] == [[20, towers.embed_dim]] * 2
    assert [row["pool"] for row in done] == ["shapes-shape-train", "shapes-shape-test"]
    assert done[0]["dtype"] == "float32"
    assert len(list(tmp_path.glob("*.npy"))) == 2
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    prepare(load(spec), 0, towers, "pooled", cache_dir=tmp_path)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert np.isfinite(np.load(next(iter(files)))).all()
