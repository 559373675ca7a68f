"""Which files below a folder are images: hidden names, suffixes, links, and the account of what is left out."""

import os
import unicodedata
from pathlib import Path

import pytest
from PIL import Image, features

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data.listing import Listing, hidden, suffixes

from .conftest import MakeImage


def listed(root: Path, *names: str) -> list[list[str]]:
    return [found.images for found in Listing(root).images([root / name for name in names])]


@pytest.mark.parametrize(
    ("name", "out"),
    [
        (".ipynb_checkpoints", True),
        (".thumbnails", True),
        (".git", True),
        ("__MACOSX", True),
        ("__pycache__", True),
        ("._x.jpg", True),
        ("@eaDir", True),
        ("@EADIR", True),
        ("#recycle", True),
        ("$RECYCLE.BIN", True),
        ("lost+found", True),
        ("Thumbs", True),
        ("Thumbnails", True),
        ("Thumbs.db", True),
        ("_cat", False),
        ("cat.", False),
        ("thumb", False),
        ("@cat", False),
        ("#1", False),
        ("x__.jpg", False),
    ],
)
def test_names_are_hidden_at_every_depth(name: str, out: bool, tmp_path: Path, picture: MakeImage) -> None:
    assert hidden(name) is out
    picture(tmp_path / "cat" / "kept.jpg")
    for place in (tmp_path / name, tmp_path / "cat" / name, tmp_path / "cat" / "inner" / name):
        picture(place if name.endswith(".jpg") else place / "x.jpg")
    listing = Listing(tmp_path)
    found = set(listing.folders(tmp_path)) | set(listing.images([tmp_path / "cat"])[0].images)
    assert found >= {"cat", "cat/kept.jpg"}
    assert any(name in path for path in found) is not out
    assert any(note.startswith("left out 3") and "hidden by name" in note for note in listing.notes()) is out


@pytest.mark.parametrize(
    "name", "x.jpg x.JPEG x.jfif x.jpe x.Png x.tif x.tiff x.bmp x.gif x.pgm x.webp x.a.b.jpg".split()
)
def test_what_pillow_reads_is_an_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    kind = Image.registered_extensions()[Path(name).suffix.lower()]
    Image.new("L", (4, 4)).save(tmp_path / "cat" / name, format=kind)
    assert listed(tmp_path, "cat") == [[f"cat/{name}"]]


@pytest.mark.parametrize(("suffix", "feature"), [(".avif", "avif"), (".webp", "webp"), (".jp2", "jpg_2000")])
def test_images_of_formats_that_pillow_was_built_with(suffix: str, feature: str, tmp_path: Path) -> None:
    if not features.check(feature):
        pytest.skip(f"Pillow was built without {feature}")
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "cat" / f"x{suffix}")
    assert suffix in suffixes()
    assert listed(tmp_path, "cat") == [[f"cat/x{suffix}"]]


@pytest.mark.parametrize("name", "x.pdf x.eps x.mpg x.heic x.mp4 x.txt x.npy x.h5 x.ico x.jpg.part x jpg".split())
def test_other_files_are_no_images_and_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / name).write_text("")
    listing = Listing(tmp_path)
    assert not listing.images([tmp_path / "cat"])[0].images
    suffix = Path(name).suffix or "without a suffix"
    assert listing.notes() == (f"left out 1 file of other kinds (1 {suffix}): cat/{name}",)


def test_long_lists_are_counted_by_kind_and_cut(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for k in range(20):
        (tmp_path / "cat" / f"{k:02d}.{'heic' if k < 15 else f'k{k}'}").touch()
    listing = Listing(tmp_path)
    listing.images([tmp_path / "cat"])
    (note,) = listing.notes()
    assert note.startswith("left out 20 files of other kinds (15 .heic, ")
    assert note.endswith("cat/07.heic and 12 more")


@pytest.mark.parametrize("absolute", [True, False])
def test_a_class_folder_may_be_a_link_but_not_to_another_one(
    absolute: bool, tmp_path: Path, picture: MakeImage
) -> None:
    root = tmp_path / "root"
    for path in (root / "cat" / "x.jpg", tmp_path / "else" / "y.jpg"):
        picture(path)

    def link(name: str, target: Path) -> None:
        (root / name).symlink_to(target if absolute else os.path.relpath(target, root))

    link("dog", tmp_path / "else")
    assert list(Listing(root).folders(root)) == ["cat", "dog"]
    assert listed(root, "cat", "dog") == [["cat/x.jpg"], ["dog/y.jpg"]]
    link("kitten", root / "cat")
    link("all", root)
    for other in ("kitten", "all"):
        with pytest.raises(
            EnvironmentProblem, match=rf"by a link, (cat|{other}) is or contains (cat|{other})\. Remove"
        ):
            listed(root, "cat", "dog", other)


def test_links_to_folders_inside_a_class_are_left_out_and_named(tmp_path: Path, picture: MakeImage) -> None:
    for path in ("root/cat/a.jpg", "root/dog/inner/b.jpg", "else/c.jpg"):
        picture(tmp_path / path)
    root = tmp_path / "root"
    for place, target in (("cat/else", "else"), ("cat/self", "root/cat"), ("dog/inner/above", "root")):
        (root / place).symlink_to(tmp_path / target)
    listing = Listing(root)
    assert [found.images for found in listing.images([root / "cat", root / "dog"])] == [
        ["cat/a.jpg"],
        ["dog/inner/b.jpg"],
    ]
    assert listing.notes() == ("left out 3 links to folders: cat/else, cat/self, dog/inner/above",)


@pytest.mark.parametrize("target", ["nowhere", "gone"], ids=["missing", "loop"])
@pytest.mark.parametrize("below", ["", "cat", "cat/inner"])
def test_broken_links_are_named(target: str, below: str, tmp_path: Path, picture: MakeImage) -> None:
    picture(tmp_path / "cat" / "inner" / "x.jpg")
    (tmp_path / below / "gone").symlink_to(target)
    listing = Listing(tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"The link .*gone is broken\. Fix or remove it"):
        listing.images(list(listing.folders(tmp_path).values()))


def test_a_missing_image_is_listed_so_that_reading_names_it(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.jpg").symlink_to("nowhere.jpg")
    assert listed(tmp_path, "cat") == [["cat/x.jpg"]]


def test_pipes_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "x.jpg")
    assert listed(tmp_path, "cat") == [[]]


def test_folders_that_cannot_be_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat" / "locked").mkdir(parents=True)
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(EnvironmentProblem, match=r"Cannot read the folder .*cat/locked: Permission denied"):
        listed(tmp_path, "cat")


@pytest.mark.parametrize("name", ["café", "한국어", "Ångström"])
def test_unicode_twins_are_one_name(name: str, tmp_path: Path) -> None:
    one, other = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    (tmp_path / other).mkdir()
    assert list(Listing(tmp_path).folders(tmp_path)) == [one]
    (tmp_path / one).mkdir()
    with pytest.raises(EnvironmentProblem, match=r"in two Unicode forms, '.*\\.*' and '.*\\.*'\. Merge"):
        Listing(tmp_path).folders(tmp_path)
