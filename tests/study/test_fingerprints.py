"""A figure is of the images, weights and code that it was made from: whatever changes in place makes it stale."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import fpl_tune
from fpl_tune import config
from fpl_tune.clip.compact import weights_path
from fpl_tune.config import Study
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.files import save_tensors
from fpl_tune.data import DataSpec, export_split, load, split
from fpl_tune.execute.job import ExecutionContext, Job, JobRun
from fpl_tune.findings import edited
from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import fingerprints
from fpl_tune.study.grid import expand
from fpl_tune.study.store import Store

from ..conftest import Heard, start_study

Make = Callable[..., Study]
SMALL = ("partition.n_clients=2", "data.shots=2", "protocol.rounds=1", "protocol.epochs=1", "seeds=1")


def paint(root: Path, seed: int = 0, n: int = 5) -> Path:
    """Two classes of noise images, all of one size on disk: the colour tells the class, or the other with `seed`."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(("blue", "red")):
        for k in range(n):
            path = root / name / f"{k}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            pixels[..., 2 * ((number + 1 + seed) % 2)] += 150
            Image.fromarray(pixels).save(path)
    return root


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return paint(tmp_path / "images")


@pytest.fixture
def study(tmp_path: Path, images: Path) -> Make:
    """study(*overrides): PromptFL on the images, one cell unless axes are given."""

    def make(*overrides: str, body: str = "") -> Study:
        path = tmp_path / "own.yaml"
        path.write_text(
            "defaults: [/study, override /data: folder, override /method: promptfl, _self_]\n"
            f"data: {{root: {images}}}\nexecution: {{executor: inline}}\n{body}"
        )
        return config.compose_study(str(path), [*SMALL, *overrides])

    return make


def run(made: Study, root: Path) -> Heard:
    heard = Heard()
    assert start_study(made, root=root, callbacks=[heard]).exit_code == 0
    return heard


def as_before(path: Path, content: bytes) -> None:
    """Other bytes under the same size and time of change."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_pixels(root: Path) -> None:
    path = root / "red" / "0.bmp"
    as_before(path, path.read_bytes()[:-6] + bytes(6))


def swapped(root: Path) -> None:
    """The same images under each other's names."""
    one, other = root / "red" / "1.bmp", root / "blue" / "1.bmp"
    first, second = one.read_bytes(), other.read_bytes()
    as_before(one, second)
    as_before(other, first)


def swapped_folders(root: Path) -> None:
    (root / "red").rename(root / "x")
    (root / "blue").rename(root / "red")
    (root / "x").rename(root / "blue")


def another_set(root: Path) -> None:
    shutil.rmtree(root)
    paint(root, seed=1)


def one_more(root: Path) -> None:
    shutil.copyfile(root / "red" / "0.bmp", root / "red" / "9.bmp")


def one_less(root: Path) -> None:
    (root / "red" / "4.bmp").unlink()


def renamed_class(root: Path) -> None:
    (root / "red").rename(root / "crimson")


def a_list_of_the_split(root: Path) -> None:
    """The set comes with a split of its own, in folders."""
    paint(root / "train")
    paint(root / "test", seed=2)
    shutil.rmtree(root / "red")
    shutil.rmtree(root / "blue")


@pytest.mark.parametrize(
    "change", [other_pixels, swapped, swapped_folders, another_set, one_more, one_less, renamed_class,
               a_list_of_the_split],
)  # fmt: skip
def test_images_that_change_in_place_make_a_cell_stale(
    study: Make, images: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    assert run(study(), tmp_path / "out").cells == ["base"]
    assert run(study(), tmp_path / "out").cells == []
    change(images)
    again = run(study(), tmp_path / "out")
    assert (again.stales, again.cells) == (["base: data"], ["base"])
    fresh = run(study(), tmp_path / "fresh")
    assert fresh.cells == ["base"]
    rounds = [Store.open(tmp_path / root, "own").table().frame()["test/acc_mean"].tolist() for root in ("out", "fresh")]
    assert rounds[0] == rounds[1]


def touched(root: Path) -> None:
    os.utime(root / "red" / "0.bmp")


def copied(root: Path) -> None:
    """A copy takes the place of the folder: other inodes and times."""
    shutil.copytree(root, root.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(root)
    root.with_name("copy").rename(root)


def noted(root: Path) -> None:
    (root / "README.txt").write_text("Pictures of mine.")


@pytest.mark.parametrize("change", [touched, copied, noted])
def test_the_same_images_are_the_same_data(
    study: Make, images: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    run(study(), tmp_path / "out")
    change(images)
    again = run(study(), tmp_path / "out")
    assert (again.stales, again.cells) == ([], [])


def test_a_study_moves_with_its_images(study: Make, images: Path, tmp_path: Path) -> None:
    run(study(), tmp_path / "out")
    moved = images.rename(tmp_path / "elsewhere")
    again = run(study(f"data.root={moved}"), tmp_path / "out")
    assert (again.stales, again.cells) == ([], [])


def test_two_folders_of_one_layout_are_told_apart(study: Make, tmp_path: Path) -> None:
    """One after the other, a cell is stale; side by side, they are two cells, in whatever order."""
    other = paint(tmp_path / "other", seed=1)
    run(study(), tmp_path / "out")
    again = run(study(f"data.root={other}"), tmp_path / "out")
    assert (again.stales, again.cells) == (["base: data"], ["base"])
    axis = study(f"axes.data.root=[{tmp_path / 'images'},{other}]")
    assert len(run(axis, tmp_path / "axes").cells) == 2
    turned = study(f"axes.data.root=[{other},{tmp_path / 'images'}]")
    assert {cell.id for cell in expand(turned)} == {cell.id for cell in expand(axis)}
    assert Store.open(tmp_path / "axes", "own").table().frame()["cell"].nunique() == 2
    assert run(turned, tmp_path / "axes").cells == []


@pytest.mark.parametrize(
    "body",
    [
        "axes: {data: {root: [ROOT, OTHER]}}",
        "axes: {place: [{label: mine, data.root: ROOT}, {label: theirs, data.root: OTHER}]}",
        "axes: {place: [{label: mine, data: {root: ROOT}}, {label: theirs, data: {root: OTHER}}]}",
        "axes: {optim: {lr: [0.002]}}\nreferences: [{label: theirs, data.root: OTHER}]",
    ],
)
def test_roots_of_one_study_are_cells_of_their_own(study: Make, images: Path, tmp_path: Path, body: str) -> None:
    other = paint(tmp_path / "other", seed=1)
    same = tmp_path / "same"
    shutil.copytree(images, same)
    for second, n in ((other, 2), (same, 1)):
        cells = expand(study(body=body.replace("ROOT", str(images)).replace("OTHER", str(second))))
        assert len(cells) == n, second.name
        held = {cell.run.data.content for cell in cells}
        assert held == {load(DataSpec("folder", root=str(root))).fingerprint for root in (images, second)}


def test_searches_in_several_roots_are_apart(study: Make, images: Path, tmp_path: Path) -> None:
    other = paint(tmp_path / "other", seed=1)
    made = study("search.sampler=random", "search.trials=1", f"axes.data.root=[{images},{other}]", "data.val=1")
    search = Search.plan(made)
    assert search is not None
    one, two = search.parts
    assert one.stream != two.stream
    assert config.identity(one.first) != config.identity(two.first)


def test_images_of_another_content_are_refused(images: Path) -> None:
    content = load(DataSpec("folder", root=str(images))).fingerprint
    assert load(DataSpec("folder", root=str(images), content=content)).fingerprint == content
    other_pixels(images)
    with pytest.raises(EnvironmentProblem, match=f"must have the content {content} of folder, but has"):
        load(DataSpec("folder", root=str(images), content=content))


def test_one_process_reads_what_is_there_now(images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "cache"))
    asked = ("data=folder", f"data.root={images}", "method=promptfl", *SMALL)
    first = fpl_tune.run(*asked)
    another_set(images)
    second = fpl_tune.run(*asked)
    elsewhere = paint(tmp_path / "fresh", seed=1)
    columns = ["train/loss", "val/acc_mean", "test/acc_mean"]
    assert second[columns].equals(fpl_tune.run(*asked, f"data.root={elsewhere}")[columns])
    assert not second[columns].equals(first[columns])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_tensors(load_file(weights_path()), tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def change_weights(path: Path) -> None:
    before, tensors = path.stat(), load_file(path)
    save_tensors({name: value * 1.01 if value.is_floating_point() else value for name, value in tensors.items()}, path)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_weights_that_change_in_place(study: Make, weights: Path, tmp_path: Path) -> None:
    made = study(f"clip.pretrained={weights}")
    run(made, tmp_path / "out")
    assert run(made, tmp_path / "out").cells == []
    first = fpl_tune.run("method=zeroshot", f"clip.pretrained={weights}", "data.max_test=2", "data.max_train=2")
    kept = shutil.copyfile(weights, tmp_path / "kept.safetensors")
    change_weights(weights)
    again = run(made, tmp_path / "out")
    assert (again.stales, again.cells) == ([], ["base"]), "other weights are another cell"
    assert len(Store.open(tmp_path / "out", "own").table().frame()) == 1
    assert run(study(f"clip.pretrained={kept}"), tmp_path / "out").cells == [], "whose results are still there"
    second = fpl_tune.run("method=zeroshot", f"clip.pretrained={weights}", "data.max_test=2", "data.max_train=2")
    assert second["test/loss"].tolist() != first["test/loss"].tolist()


def test_a_study_moves_with_its_weights(
    study: Make, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(study(f"clip.pretrained={weights}"), tmp_path / "out")
    moved = weights.rename(tmp_path / "images" / "moved.safetensors")
    monkeypatch.chdir(moved.parent)
    assert run(study("clip.pretrained=moved.safetensors"), tmp_path / "out").cells == []
    (stored,) = Store.open(tmp_path / "out", "own").cells()
    moved.unlink()
    assert [cell.id for cell in Store.open(tmp_path / "out", "own").cells()] == [stored.id], "read without its files"
    with pytest.raises(ConfigError, match=r"clip.pretrained='moved.safetensors' is no file"):
        start_study(study("clip.pretrained=moved.safetensors"), root=tmp_path / "out")


def test_prompts_are_served_with_their_own_weights(study: Make, weights: Path, tmp_path: Path) -> None:
    from fpl_tune.study.export import export

    run(study(f"clip.pretrained={weights}"), tmp_path / "out")
    store = Store.open(tmp_path / "out", "own")
    export(store, store.cells()[0], tmp_path / "best")
    assert fpl_tune.load_prompts(tmp_path / "best").classes == ("blue", "red")
    change_weights(weights)
    with pytest.raises(ConfigError, match=r"learned with other weights than clip.name=compact clip.pretrained=.*now"):
        fpl_tune.load_prompts(tmp_path / "best")


def test_a_split_file_that_changes(study: Make, images: Path, tmp_path: Path) -> None:
    def export(seed: int) -> str:
        spec = config.compose_run(["data=folder", f"data.root={images}", *SMALL[:-1]])
        dataset = load(spec.data)
        return str(export_split(split(dataset, spec.data, spec.partition, seed), dataset, tmp_path / "split.json"))

    made = study("partition=file", f"partition.file={export(1)}")
    run(made, tmp_path / "out")
    moved = Path(export(1)).rename(tmp_path / "moved.json")
    assert run(study("partition=file", f"partition.file={moved}"), tmp_path / "out").cells == []
    assert export(2)
    assert run(made, tmp_path / "out").cells == ["base"]


METHOD = """
from dataclasses import dataclass
from fpl_tune.methods.promptfl import PromptFL
from own_helper import SCALE

@dataclass(frozen=True)
class Mine(PromptFL):
    pass
"""


def test_a_module_that_a_method_imports(study: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "own_method.py").write_text(METHOD)
    (code / "own_helper.py").write_text("SCALE = 1\n")
    monkeypatch.syspath_prepend(code)

    def start() -> Heard:  # as a new process, which imports the modules as they are
        for name in ("own_method", "own_helper"):
            sys.modules.pop(name, None)
        return run(study("method=own_method:Mine"), tmp_path / "out")

    assert start().cells == ["base"]
    (code / "own_helper.py").write_text("SCALE = 1  # of nothing\n")
    assert start().cells == []
    table = Store.open(tmp_path / "out", "own").table()
    assert edited.note(table) == ""
    (code / "own_helper.py").write_text("SCALE = 2\n")
    for name in ("own_method", "own_helper"):
        sys.modules.pop(name, None)
    assert edited.note(Store.open(tmp_path / "out", "own").table()).startswith(
        "Results of own_method:Mine are stale (method source): the code has changed since"
    )
    again = start()
    assert (again.stales, again.cells) == (["base: method source"], ["base"])
    for name in ("own_method", "own_helper"):
        sys.modules.pop(name, None)


class Meddling(Heard):
    """Changes images after the study's start has looked at them."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__()
        self.change = change

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self.change()


def test_images_that_change_while_a_study_runs_end_it(study: Make, images: Path, tmp_path: Path) -> None:
    meddling = Meddling(lambda: other_pixels(images))
    with pytest.raises(EnvironmentProblem, match=r"^The data of base on \S+ differ from what the study started with"):
        start_study(study(), root=tmp_path / "out", callbacks=[meddling])
    store = Store.open(tmp_path / "out", "own")
    assert store.row(store.cells()[0]).results == {}
    assert run(study(), tmp_path / "out").cells == ["base"]


@pytest.mark.parametrize("part", ["method", "data", "weights"])
def test_a_worker_with_other_files_is_no_worker(images: Path, tmp_path: Path, part: str) -> None:
    spec = config.compose_run(["data=folder", f"data.root={images}", *SMALL[:-1]])
    context = ExecutionContext(tmp_path / "out", tmp_path / "cache")
    cell, prints = Cell("1", 0, "base", "cell", {}, spec), fingerprints(spec)
    same = JobRun(Job(cell, (1,), prints), context, resumes=False)
    assert same.step(0.0, lambda: False).failure is None
    report = JobRun(Job(cell, (1,), {**prints, part: "other"}), context, resumes=False).step(0.0, lambda: False)
    assert report.failure is not None
    assert report.failure.kind == "environment"
    assert "from what the study started with" in report.failure.error


def test_versions_do_not_count(study: Make, tmp_path: Path) -> None:
    run(study(), tmp_path / "out")
    store = Store.open(tmp_path / "out", "own")
    path: Any = store.seed_folder(store.cells()[0], 1) / "result.json"
    node = json.loads(path.read_text())
    path.write_text(json.dumps({**node, "fingerprints": {**node["fingerprints"], "versions": {"torch": "1"}}}))
    assert run(study(), tmp_path / "out").cells == []
