"""On the real files, where there are any (see `real_data`)."""

from pathlib import Path

import numpy as np
import pytest

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import DataSpec, PartitionSpec, features, load, split
from fpl_tune.data.inspection import check
from fpl_tune.testing import toy_towers

SETS = {
    "pacs": (9991, 7, 4),
    "caltech101": (4128 + 2465, 100, 1),
}


def real(root: Path, name: str, **options: object) -> DataSpec:
    spec = DataSpec(name, root=str(root), **options)  # pyright: ignore[reportArgumentType]
    try:
        load(spec)
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    return spec


@pytest.mark.parametrize("name", SETS)
def test_published_sizes_and_every_image_can_be_read(real_data: Path, name: str) -> None:
    spec = real(real_data, name)
    n, n_classes, n_domains = SETS[name]
    data = load(spec)
    assert (len(data.train) + len(data.test), len(data.classes), len(data.domains)) == (n, n_classes, n_domains)
    found = check(spec)
    assert found["sound"], found["findings"]


@pytest.mark.parametrize("name", SETS)
def test_names_belong_to_the_folders_of_their_images(real_data: Path, name: str) -> None:
    data = load(real(real_data, name))
    called = {"face": "Faces", "leopard": "Leopards", "motorbike": "Motorbikes", "airplane": "airplanes"}
    for row in np.random.default_rng(0).integers(0, len(data.train), 50).tolist():
        folder = data.train.names[row].split("/")[-2]
        label = data.classes[data.train.label[row]]
        assert called.get(label, label.replace(" ", "_")) == folder


@pytest.mark.parametrize("name", SETS)
def test_the_natural_partition_and_its_features(real_data: Path, name: str, tmp_path: Path) -> None:
    spec = real(real_data, name, max_train=3, max_test=1, shots=None)
    data = load(spec)
    partition = PartitionSpec() if name == "caltech101" else PartitionSpec("domain")
    drawn = split(data, spec, partition, 0)
    towers = toy_towers("vit")
    held = features(data.train, towers, cache_dir=tmp_path)
    assert held.shape == (len(data.train), towers.embed_dim)
    assert held.isfinite().all()
    assert sum(len(rows) for rows in drawn.train) + sum(len(rows) for rows in drawn.val) == len(data.train)
