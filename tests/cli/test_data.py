"""`fpl-tune data`: what it prints of a person's folders and of a split, and how it ends."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .conftest import Command


@pytest.fixture
def photos(here: Path) -> Path:
    """Train/ and valid/ with two classes, all images different."""
    rng = np.random.default_rng(0)
    for place in ("Train/cat/a", "Train/cat/b", "Train/dog/c", "valid/cat/d", "valid/dog/e"):
        (here / "photos" / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(here / "photos" / f"{place}.png")
    return here / "photos"


@pytest.mark.parametrize("format", ["table", "json"])
@pytest.mark.parametrize(
    ("copied", "broken", "code", "sound"),
    [
        ("", "", 0, True),
        ("Train/dog/copy.png", "", 0, True),  # on one side, under another label
        ("valid/cat/copy.png", "", 1, False),
        ("valid/dog/copy.jpg", "", 1, False),
        ("", "Train/cat/broken.jpg", 3, False),
        ("valid/cat/copy.png", "valid/dog/broken.png", 3, False),
    ],
)
def test_how_it_ends(
    photos: Path, command: Command, format: str, copied: str, broken: str, code: int, sound: bool
) -> None:
    if copied:
        shutil.copy(photos / "Train" / "cat" / "a.png", photos / copied)
    if broken:
        (photos / broken).write_text("no image")
    done = command("data", "check", "data=folder", f"data.root={photos}", "--format", format)
    assert done.code == code, done.err
    assert ("both sides" in done.out) == ("valid" in copied)
    assert ("cannot be read" in done.out) == bool(broken)
    if format == "json":
        assert json.loads(done.out)["sound"] is sound


def test_it_says_how_a_folder_was_read(photos: Path, command: Command) -> None:
    (photos / "Train" / "cat" / "notes.txt").touch()
    lines = command("data", "check", "data=folder", f"data.root={photos}").out.splitlines()
    assert "split by the folders Train/ and valid/ (valid/ is the test set), 2 classes: cat, dog" in lines
    assert "left out 1 file of other kinds (1 .txt): Train/cat/notes.txt" in lines


@pytest.mark.parametrize("format", ["table", "json"])
def test_names_that_are_not_utf8_are_printed(photos: Path, command: Command, format: str) -> None:
    """Those of what is left out; folders and images with such names are refused."""
    (photos / "Train" / "dog" / os.fsdecode(b"caf\xe9.txt")).write_text("no image")
    done = command("data", "check", "data=folder", f"data.root={photos}", "--format", format)
    assert done.code == 0, done.err
    assert "caf\\" in done.out
    done.out.encode()
    for part in ("Train", "valid"):
        (photos / part / "dog").rename(photos / part / os.fsdecode(b"\xff"))
    done = command("data", "check", "data=folder", f"data.root={photos}", "--format", format)
    assert (done.code, done.out) == (3, "")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("format", ["table", "json"])
def test_what_is_not_clear_is_one_line(photos: Path, command: Command, format: str) -> None:
    shutil.rmtree(photos / "valid")
    done = command("data", "check", "data=folder", f"data.root={photos}", "--format", format)
    assert (done.code, done.out) == (3, "")
    (line,) = done.err.splitlines()
    assert "has Train/, a part of a split, but no test/ or val/. Add it. If it is a class" in line


def test_a_split_is_shown_by_client_and_written_to_a_file_that_gives_it_again(photos: Path, command: Command) -> None:
    words = ("data", "show", "data=folder", f"data.root={photos}", "data.shots=1", "data.val=0")
    drawn = ("partition=iid", "partition.n_clients=2", "--seed", "3")
    shown = json.loads(command(*words, *drawn, "--export", "split.json", "--format", "json").out)
    assert [client["client"] for client in shown["clients"]] == [0, 1]
    table = " ".join(command(*words, *drawn).out.split())
    assert f"{shown['dataset']}, content {shown['content']}, split {shown['hash']}" in table
    share = f"{100 * shown['constant_prediction']:.1f} %"
    assert f"A constant prediction reaches {share} on the clients' own test images." in table
    for client in shown["clients"]:
        assert "│ ".join(f"{value} " for value in (client["client"], client["train"])) in table
    again = json.loads(command(*words, "partition=file", "partition.file=split.json", "--format", "json").out)
    assert again == shown


def test_the_cache_is_filled_once_with_the_images_of_a_run(
    photos: Path, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(here / "cache"))
    words = ("data", "prepare", "data=folder", f"data.root={photos}", "data.shots=1", "partition=iid")
    rows = json.loads(command(*words, "partition.n_clients=1", "--format", "json").out)
    shapes = {row["images"]: row["shape"] for row in rows}
    assert (shapes["train"][0], shapes["test"][0]) == (3, 2)
    assert all(row["bytes"] == 4 * np.prod(row["shape"]) for row in rows)
    cached = {path: path.stat().st_mtime_ns for path in here.glob("cache/**/*.npy")}
    assert cached
    assert json.loads(command(*words, "partition.n_clients=1", "--format", "json").out) == rows
    assert {path: path.stat().st_mtime_ns for path in here.glob("cache/**/*.npy")} == cached


@pytest.mark.parametrize("words", ["data show", "data check", "plan lambda_sweep seeds=1", "run protocol.rounds=1"])
def test_every_command_says_that_a_list_names_an_image_twice(here: Path, command: Command, words: str) -> None:
    rng, folder = np.random.default_rng(0), here / "dtd" / "images"
    content = {part: [[f"{part}/{k}.png", k % 2, "ab"[k % 2]] for k in range(8)] for part in ("train", "test")}
    for name in (name for part in content.values() for name, *_ in part):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
    content["test"].append(content["train"][0])
    (here / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps({**content, "val": []}))
    overrides = ["data=dtd", f"data.root={here}", "data.shots=2", "partition=dirichlet", "partition.n_clients=1"]
    done = command(*words.split(), *overrides)
    (line,) = [line for line in (done.err + done.out).splitlines() if "more than once" in line]
    assert "dtd lists images more than once: 1 on both sides of the split, first train/0.png. " in line
