import errno
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, Pool, cache, features, load
from fpl_tune.data.transform import PATCH, Transform, View, patched
from fpl_tune.testing import toy_towers


@dataclass
class Eye:
    """A tower that looks at mean colours and counts what it was shown."""

    name: str = "eye"
    embed_dim: int = 3
    image_size: int = 8
    n_patches: int | None = 4
    preprocessing = Transform(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    fingerprint: str = "eye-1"
    seen: int = 0
    largest: int = 0
    delay: float = 0.0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def encode_images(self, pixels: torch.Tensor, *, patches: bool = False) -> torch.Tensor:
        self.seen += len(pixels)
        self.largest = max(self.largest, len(pixels))
        time.sleep(self.delay)
        if not patches:
            return pixels.mean((-1, -2))
        quarters = pixels.unfold(-2, 4, 4).unfold(-2, 4, 4).mean((-1, -2))  # [n, 3, 2, 2]
        return quarters.flatten(-2).transpose(-1, -2)


@pytest.fixture
def pool() -> Pool:
    return load(DataSpec("shapes", train_per_class=2, test_per_class=1, domains=["photo", "sketch"])).train


def means(pool: Pool) -> np.ndarray:
    """The same in a plain loop: the shapes are 32×32, resized to 8×8."""
    how = Eye.preprocessing
    return np.stack([how.shrink(pool.read(i), 8).reshape(3, -1).mean(1) / 255 for i in range(len(pool))])


def test_features_agree_with_a_plain_loop(pool: Pool, tmp_path: Path) -> None:
    held = features(pool, Eye(), cache_dir=tmp_path)
    assert held.dtype == torch.float32
    np.testing.assert_allclose(held.numpy(), means(pool), atol=1e-6)


def test_batches_encoded_at_once_give_the_features_of_one_after_the_other(pool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "_BATCH", 16)
    monkeypatch.setattr(cache.os, "cpu_count", lambda: 4)
    at_once = features(pool, Eye(), cache_dir=tmp_path / "four")
    torch.set_num_threads(4)  # of which one batch takes all
    assert torch.equal(at_once, features(pool, Eye(), cache_dir=tmp_path / "one"))


def test_kinds_of_features(pool: Pool, tmp_path: Path) -> None:
    kinds = ("pooled", "patches", "pixels")
    pooled, patches, pixels = (features(pool, Eye(), needs, cache_dir=tmp_path) for needs in kinds)
    assert (patches.dtype, tuple(patches.shape)) == (torch.float16, (len(pool), 4, 3))
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.uint8, (len(pool), 3, 8, 8))
    torch.testing.assert_close(patches.float().mean(1), pooled, atol=2e-3, rtol=0)
    torch.testing.assert_close(pixels.float().mean((-1, -2)) / 255, pooled)


def test_tokens_of_another_block_or_precision_are_not_taken(pool: Pool, tmp_path: Path) -> None:
    towers = toy_towers(dtype=torch.float32)
    pixels = features(pool, towers, "pixels", cache_dir=tmp_path)
    for made, blocks in ((towers, 1), (towers, 2), (toy_towers(dtype=torch.bfloat16), 2)):
        tokens = features(pool, made, "pixels", blocks=blocks, cache_dir=tmp_path)
        assert (tokens.dtype, tuple(tokens.shape)) == (torch.float32, (len(pool), 17, 32))
        at_once = made.encode_images(made.normalise(pixels), blocks=blocks).float()
        torch.testing.assert_close(tokens, at_once, rtol=0, atol=8 * torch.finfo(made.dtype).eps)
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_nothing_is_encoded_twice_and_a_hit_is_fast(pool: Pool, tmp_path: Path) -> None:
    eye = Eye()
    first = features(pool, eye, cache_dir=tmp_path)
    began = time.process_time()
    second = features(pool, eye, cache_dir=tmp_path)
    assert time.process_time() - began < 1
    assert eye.seen == len(pool)
    assert torch.equal(first, second)


def test_who_waits_for_a_build_gets_its_features(pool: Pool, tmp_path: Path) -> None:
    towers = Eye(delay=0.1)
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: features(pool, towers, "pooled", cache_dir=tmp_path), range(2)))
    assert towers.seen == len(pool)
    for found in both:
        np.testing.assert_allclose(found.numpy(), means(pool), atol=1e-6)


def test_other_towers_images_and_transforms_have_other_features(pool: Pool, tmp_path: Path) -> None:
    eye = Eye()
    for towers, images in (
        (eye, pool),
        (replace(eye, fingerprint="eye-2"), pool),
        (eye, pool.take(np.arange(7))),
        (eye, replace(pool, transform="cifar10")),
    ):
        features(images, towers, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 4


@pytest.mark.parametrize("damage", ["truncated", "garbage", "other"])
def test_a_damaged_file_is_said_and_built_again(pool: Pool, tmp_path: Path, damage: str) -> None:
    eye = Eye()
    good = features(pool, eye, cache_dir=tmp_path).clone()
    (path,) = tmp_path.glob("*.npy")
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-4], "garbage": b"x" * len(whole)}.get(damage, whole))
    if damage == "other":
        np.save(path, np.zeros((3, 3)))
    with pytest.warns(UserWarning, match="damaged or cut short"):
        again = features(pool, eye, cache_dir=tmp_path)
    assert torch.equal(good, again)
    assert eye.seen == 2 * len(pool)


def test_what_a_killed_build_left_behind_does_not_count(pool: Pool, tmp_path: Path) -> None:
    features(pool, Eye(), cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npy")
    unfinished = path.with_name(path.name + ".0123abcd.part")
    path.rename(unfinished)
    eye = Eye()
    features(pool, eye, cache_dir=tmp_path)
    assert eye.seen == len(pool)
    assert not unfinished.exists()


_BUILD = """
import sys, time, torch
from types import SimpleNamespace
from fpl_tune.data import DataSpec, features, load
from fpl_tune.data.transform import PATCH, Transform, View, patched
def encode(pixels, patches=False):
    time.sleep(float(sys.argv[2]))
    print(len(pixels), flush=True)
    return pixels.mean((-1, -2))
towers = SimpleNamespace(name="eye", embed_dim=3, image_size=8, n_patches=4,
                         preprocessing=Transform(mean=(0.0,) * 3, std=(1.0,) * 3), fingerprint="eye-1",
                         device=torch.device("cpu"), dtype=torch.float32, encode_images=encode)
spec = DataSpec("shapes", train_per_class=2, test_per_class=1, domains=["photo", "sketch"])
features(load(spec).train, towers, cache_dir=sys.argv[1])
"""


def test_a_build_that_is_killed_is_done_again_by_who_waits(pool: Pool, tmp_path: Path) -> None:
    def build(delay: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _BUILD, str(tmp_path), delay]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    builder, waiter = build("60"), None
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("*.npy.*.part")) and time.monotonic() < deadline:
            time.sleep(0.05)
        waiter = build("0")
        time.sleep(1)
        assert waiter.poll() is None
        builder.kill()
        told, _ = waiter.communicate(timeout=120)
    finally:
        for process in filter(None, (builder, waiter)):
            process.kill()
            process.communicate()
    assert sum(map(int, told.split())) == len(pool)
    eye = Eye()
    held = features(pool, eye, cache_dir=tmp_path)
    assert eye.seen == 0
    np.testing.assert_allclose(held.numpy(), means(pool), atol=1e-6)
    assert not list(tmp_path.glob("*.part"))


def test_a_cache_that_cannot_be_written_is_one_line(pool: Pool, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(EnvironmentProblem, match=r"Cannot cache shapes.* \(File too large\)\. Free some space"):
            features(pool, Eye(), cache_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("*.npy*part"))


def test_room_for_all_features_is_taken_before_the_first_is_computed(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a mapped file on a full disk would crash the process."""

    def full(file: int, offset: int, length: int) -> None:
        assert (offset, length) == (0, os.fstat(file).st_size)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    towers = Eye()
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        features(pool, towers, "pooled", cache_dir=tmp_path)
    assert towers.seen == 0
    assert not list(tmp_path.glob("*.npy"))


def test_an_unreadable_image_ends_the_build_with_its_name(odd_images: Path, tmp_path: Path) -> None:
    data = load(DataSpec("folder", root=str(odd_images)))
    with pytest.raises(EnvironmentProblem, match=r"dog/(truncated|empty)\.jpg"):
        features(data.train, Eye(), cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy*tmp"))
    (odd_images / "dog" / "truncated.jpg").unlink()
    (odd_images / "dog" / "empty.jpg").unlink()
    data = load(DataSpec("folder", root=str(odd_images)))
    assert len(features(data.train, Eye(), cache_dir=tmp_path / "cache")) == len(data.train)


def cats_of(root: Path) -> Pool:
    pool = load(DataSpec("folder", root=str(root))).train
    return pool.take(np.flatnonzero(pool.label == 0))


def test_a_changed_file_is_encoded_again(odd_images: Path, tmp_path: Path) -> None:
    eye, cats = Eye(), cats_of(odd_images)
    features(cats, eye, cache_dir=tmp_path)
    path = odd_images / cats.names[0]
    before = path.read_bytes()
    path.write_bytes((odd_images / cats.names[1]).read_bytes())
    os.utime(path, ns=(1, 1))
    held = features(cats_of(odd_images), eye, cache_dir=tmp_path)
    assert eye.seen == 2 * len(cats)
    assert torch.equal(held[0], held[1])
    path.write_bytes(before)
    features(cats_of(odd_images), eye, cache_dir=tmp_path)
    assert eye.seen == 2 * len(cats), "the former content, under another time"


def test_a_file_that_changes_while_it_is_read_leaves_nothing(odd_images: Path, tmp_path: Path) -> None:
    cats = cats_of(odd_images)

    def meddle(*_: object) -> None:
        (odd_images / cats.names[0]).write_bytes((odd_images / cats.names[1]).read_bytes())

    with pytest.raises(EnvironmentProblem, match="Images of folder-train changed while they were read"):
        features(cats, Eye(), cache_dir=tmp_path / "cache", progress=meddle)
    assert list((tmp_path / "cache").glob("*.npy")) == []
    assert len(features(cats_of(odd_images), Eye(), cache_dir=tmp_path / "cache")) == len(cats)


def test_bad_requests(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'pooled'"):
        features(pool, Eye(), "pool", cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="no patch features"):
        features(pool, Eye(n_patches=None), "patches", cache_dir=tmp_path)


def test_a_patch_is_on_the_pixels_that_the_tower_sees(odd_images: Path, tmp_path: Path) -> None:
    """After resizing and cropping, whatever the sizes of the files; once encoded, it is in the cache."""
    pool, towers, view = cats_of(odd_images), toy_towers(), View(PATCH, 250)
    pixels, marked = (features(pool, towers, "pixels", cache_dir=tmp_path, view=seen) for seen in (None, view))
    assert torch.equal(marked, patched(pixels, 250))
    for needs, blocks in (("pooled", 0), ("patches", 0), ("pixels", 1)):
        how = {"patches": needs == "patches", "blocks": blocks}
        encoded = features(pool, towers, needs, blocks=blocks, cache_dir=tmp_path, view=view)
        wanted = towers.encode_images(towers.normalise(marked), **how)
        torch.testing.assert_close(encoded.double(), wanted, rtol=1e-3, atol=1e-3)
    eye = Eye()
    first, again = (features(pool, eye, cache_dir=tmp_path, view=view) for _ in range(2))
    assert torch.equal(first, again)
    assert eye.seen == len(pool)
