"""The shipped groups of options name data sets and partitions that exist, with values that are valid."""

from pathlib import Path

import pytest
import yaml

import fpl_tune
from fpl_tune.data import DataSpec, PartitionSpec, load, resolve, split
from fpl_tune.data.sources import SOURCES

CONF = Path(fpl_tune.__file__).parent / "config" / "conf"
DATA = sorted((CONF / "data").glob("*.yaml"))
PARTITION = sorted((CONF / "partition").glob("*.yaml"))


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_data_options_are_typed_and_explained(path: Path) -> None:
    text = path.read_text()
    spec = DataSpec(**yaml.safe_load(text))
    assert text.startswith("# ")
    assert resolve(spec, PartitionSpec()).n_clients


def test_every_data_set_has_options() -> None:
    assert {DataSpec(**yaml.safe_load(path.read_text())).name for path in DATA} == set(SOURCES)


@pytest.mark.parametrize("path", PARTITION, ids=lambda path: path.stem)
def test_partition_options_are_typed_explained_and_feasible_on_the_drawn_world(path: Path) -> None:
    text = path.read_text()
    partition = PartitionSpec(**yaml.safe_load(text))
    assert text.startswith("# ")
    if partition.name in ("file", "dirichlet_coarse"):
        return  # of a file that is yet to be, and of CIFAR-100 only
    spec = DataSpec("shapes", train_per_class=64, test_per_class=25, shots=None)
    data = load(spec)
    drawn = split(data, spec, partition, 0)
    assert drawn.n_clients > 1
