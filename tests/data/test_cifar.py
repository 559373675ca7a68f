from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.unpickle import unpickle


def write_cifar10(root: Path, each: int = 4) -> np.ndarray:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [f"kind_{k}" for k in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    images = rng.integers(0, 256, (6, 10 * each, 3072), dtype=np.uint8)
    for k, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        batch = {"data": images[k], "labels": list(range(10)) * each}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))
    return images


def write_cifar100(root: Path, each: int = 2) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"kind_{k}" for k in range(100)]}))
    for file in ("train", "test"):
        fine = list(range(100)) * each
        batch = {
            "data": np.zeros((len(fine), 3072), np.uint8),
            "fine_labels": fine,
            "coarse_labels": [k // 5 for k in fine],
        }
        (folder / file).write_bytes(pickle.dumps(batch))


def test_batches_are_read_in_order_and_channels_come_last(tmp_path: Path) -> None:
    images = write_cifar10(tmp_path)
    data = load(DataSpec("cifar10", root=str(tmp_path)))
    assert data.classes[3] == "kind 3"
    assert (len(data.train), len(data.test)) == (200, 40)
    assert data.train.label[:12].tolist() == [*range(10), 0, 1]
    read = np.asarray(data.train.read(43))
    assert np.array_equal(read[..., 2].reshape(-1), images[1, 3, 2048:])
    assert data.train.transform == "cifar10"
    assert load(DataSpec("cifar10", root=str(tmp_path), transform="clip")).train.transform == "clip"


def test_super_classes_come_with_cifar100(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    spec = DataSpec("cifar100", root=str(tmp_path), shots=None)
    data = load(spec)
    assert data.coarse is not None
    assert data.coarse.tolist() == [k // 5 for k in range(100)]
    drawn = split(data, spec, PartitionSpec("dirichlet_coarse", n_clients=4), 0)
    held = zip(drawn.train, drawn.val, drawn.tests["test"].index, strict=True)
    assert [sum(len(rows) for rows in mine) for mine in held] == [100] * 4


def test_a_batch_without_labels_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({"data": []}))
    with pytest.raises(EnvironmentProblem, match="test_batch lacks 'labels'"):
        load(DataSpec("cifar10", root=str(tmp_path)))
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(EnvironmentProblem, match=r"There is no .*data_batch_3"):
        load(DataSpec("cifar10", root=str(tmp_path)))


class _Malicious:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize(
    "content",
    [_Malicious(), [_Malicious()], np.array([_Malicious()], dtype=object), Path("x"), print],
    ids=["call", "in a list", "in an array", "class", "builtin"],
)
def test_pickles_that_ask_for_more_than_lists_are_refused(tmp_path, content, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(EnvironmentProblem, match="which is not allowed"):
        unpickle(tmp_path / "x.pkl")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "content",
    [
        (["a", "b"], ["x", "y"]),
        [np.array(["a", "b"]), np.array(["x", "y"], dtype=object)],
        {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "n": np.int64(3), "name": np.str_("x")},
    ],
    ids=["lists", "arrays", "dict"],
)
def test_lists_and_arrays_are_read(tmp_path: Path, content: object, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    read = unpickle(tmp_path / "x.pkl")
    assert str(read) == str(content)
