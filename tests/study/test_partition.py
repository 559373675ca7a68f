"""The partition of a stored cell, drawn again."""

import numpy as np

from fpl_tune import config, data
from fpl_tune.study.partition import shares


def test_shares_are_those_that_the_run_trains_on():
    run = config.compose_run(["data.shots=2"])
    found = shares(run, 1)
    drawn = data.split(data.load(run.data), run.data, run.partition, 1)
    assert found.hash == drawn.hash
    assert found.counts.sum(1).tolist() == [len(index) for index in drawn.train]
    assert found.counts.shape == (10, len(found.classes))
    assert (found.counts > 0).sum(0).tolist() == np.ones(len(found.classes)).tolist()  # disjoint classes
    assert set(found.domains) == {"mixed"}  # all styles are dealt


def test_clients_of_one_domain_are_named_by_it():
    run = config.compose_run(["partition=domain_dirichlet", "data.domains=[photo,sketch]", "partition.n_clients=2"])
    found = shares(run, 1)
    assert found.domains == ("photo", "photo", "sketch", "sketch")
