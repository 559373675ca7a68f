"""The contracts of data sets and towers in other packages."""

from __future__ import annotations

import pickle

import numpy as np
import torch
from PIL import Image

from fpl_tune.clip import Towers
from fpl_tune.data import Dataset, Pool


def check_dataset(dataset: Dataset) -> None:
    """Checks labels, domains, image access and pickling of a data set.

    Raises:
        AssertionError: a check fails; its message states the rule.
    """
    assert len(set(dataset.classes)) == len(dataset.classes) > 1, "class names differ"
    assert "{}" in dataset.template, "the template has a place for the class name"
    assert dataset.train.key != dataset.test.key, "pools have different keys in the feature cache"
    assert set(np.unique(dataset.train.label)) == set(range(len(dataset.classes))), "every class can be learned"
    for pool in (dataset.train, dataset.test):
        _check_pool(pool, len(dataset.classes), len(dataset.domains))
    again: Dataset = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint, "the fingerprint is a function of the data"


def _check_pool(pool: Pool, n_classes: int, n_domains: int) -> None:
    n = len(pool)
    assert n > 0
    assert len(pool.names) == len(pool.label) == len(pool.domain) == n
    assert len(set(pool.names)) == n, "every image has a name of its own"
    assert pool.label.dtype == pool.domain.dtype == np.int64
    assert 0 <= pool.label.min() <= pool.label.max() < n_classes
    assert 0 <= pool.domain.min() <= pool.domain.max() < max(n_domains, 1)
    few = pool.take(np.array([n - 1, 0]))
    assert (few.label == pool.label[[n - 1, 0]]).all()
    for place, row in enumerate((n - 1, 0)):
        image, same = pool.read(row), few.read(place)
        assert (np.asarray(image) == np.asarray(same)).all(), "a part of a pool holds the same images"
        assert np.asarray(image).shape[2:] == (3,), "images are RGB"
        assert isinstance(image, Image.Image) or image.dtype == np.uint8
    assert pool.stamp() == pickle.loads(pickle.dumps(pool)).stamp()


def check_towers(towers: Towers, *, tolerance: float = 1e-4) -> None:
    """Checks that the fast path for prompts agrees with open_clip's own modules, and that only the context is trained.

    Raises:
        AssertionError: a check fails; its message states the rule.
    """
    names, rng = ("cat", "sea lion", "red star"), torch.Generator().manual_seed(0)
    sentences = towers.sentences(names, 2)
    context = 0.02 * torch.randn(2, 2, towers.text_width, generator=rng).to(towers.device, towers.dtype)
    context.requires_grad_()
    fast, plain = (towers.encode_prompts(context, sentences, plain=slow) for slow in (False, True))
    assert fast.shape == (2, len(names), towers.embed_dim)
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(fast.sum(), context)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any()), "a context learns"
    size = towers.image_size
    pixels = towers.normalise(torch.randint(256, (3, 3, size, size), generator=rng).to(torch.uint8).to(towers.device))
    assert towers.encode_images(pixels.to(towers.dtype)).shape == (3, towers.embed_dim)
    assert not towers.encode_images(pixels.to(towers.dtype)).requires_grad
    assert towers.fingerprint, "features in the cache are found by it"
