"""Lists as editors save them: with a byte order mark, with the line ends of Windows, in other encodings."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import Dataset, DataSpec, load

from .conftest import MakeImage

Written = tuple[DataSpec, Path]


def aircraft(root: Path, picture: MakeImage) -> Written:
    folder = root / "fgvc_aircraft"
    for k in range(4):
        picture(folder / "images" / f"{k}.jpg")
    (folder / "images_variant_train.txt").write_text("0 707-320\n1 A340 Long\n")
    (folder / "images_variant_test.txt").write_text("2 707-320\n3 A340 Long\n")
    (folder / "variants.txt").write_text("707-320\nA340 Long\n")
    return DataSpec("fgvc_aircraft", root=str(root)), folder / "variants.txt"


def aircraft_images(root: Path, picture: MakeImage) -> Written:
    spec, path = aircraft(root, picture)
    return spec, path.with_name("images_variant_train.txt")


def imagenet(root: Path, picture: MakeImage) -> Written:
    for identifier in ("n01", "n02"):
        for part in ("train", "val"):
            picture(root / "imagenet" / "images" / part / identifier / "0.JPEG")
    path = root / "imagenet" / "classnames.txt"
    path.write_text("n01 tench\nn02 goldfish\n")
    return DataSpec("imagenet", root=str(root)), path


def coop(root: Path, picture: MakeImage) -> Written:
    for k in range(2):
        picture(root / "dtd" / "images" / f"{k}.jpg")
    path = root / "dtd" / "split_zhou_DescribableTextures.json"
    content = {"train": [["0.jpg", 0, "café"]], "val": [], "test": [["1.jpg", 0, "café"]]}
    path.write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")
    return DataSpec("dtd", root=str(root)), path


def domainnet(root: Path, picture: MakeImage) -> Written:
    for name in ("a", "b"):
        for k in range(2):
            picture(root / "DomainNet" / "real" / name / f"{k}.jpg")
    (root / "DomainNet" / "splits").mkdir()
    paths = [root / "DomainNet" / "splits" / f"real_{part}.txt" for part in ("train", "test")]
    for k, path in enumerate(paths):
        path.write_text(f"real/a/{k}.jpg 0\nreal/b/{k}.jpg 1\n")
    return DataSpec("domainnet", root=str(root), classes="345", domains=["real"]), paths[1]


LISTS = [aircraft, aircraft_images, imagenet, coop, domainnet]
UTF_8: dict[str, Callable[[str], bytes]] = {
    "mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "line_ends": lambda text: text.replace("\n", "\r\n").encode(),
    "both": lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
    "old_line_ends": lambda text: text.replace("\n", "\r").encode(),
    "blanks_at_the_ends": lambda text: text.replace("\n", " \t\n").encode(),
    "no_last_line_end": lambda text: text.rstrip("\n").encode(),
}
OTHERS: dict[str, Callable[[str], bytes]] = {
    "utf_16": lambda text: text.encode("utf-16"),
    "utf_16_big": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf_16_without_mark": lambda text: text.encode("utf-16-le"),
    "utf_32": lambda text: text.encode("utf-32"),
    "latin": lambda text: text.encode() + b"\xe9",
}


def content(data: Dataset) -> tuple[tuple[str, ...], tuple[str, ...], list[int]]:
    return data.classes, data.train.names + data.test.names, data.train.label.tolist() + data.test.label.tolist()


@pytest.mark.parametrize("how", UTF_8)
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_is_read_as_any_editor_saves_it(
    kind: Callable[..., Written], how: str, tmp_path: Path, picture: MakeImage
) -> None:
    spec, path = kind(tmp_path, picture)
    before = content(load(spec))
    path.write_bytes(UTF_8[how](path.read_text(encoding="utf-8")))
    assert content(load(spec)) == before


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_in_another_encoding_is_refused_in_one_line(
    kind: Callable[..., Written], how: str, tmp_path: Path, picture: MakeImage
) -> None:
    spec, path = kind(tmp_path, picture)
    path.write_bytes(OTHERS[how](path.read_text(encoding="utf-8")))
    with pytest.raises(EnvironmentProblem, match="it is not text in UTF-8; save it as such") as caught:
        load(spec)
    assert str(caught.value).startswith(f"Cannot read {path}: ")
    assert "\n" not in str(caught.value)
