"""Images that a list names more than once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fpl_tune.data.pool import Pool

_DIFFERENCES = ("on both sides of the split", "under different labels", "in different domains")


def once(pool: Pool) -> Pool:
    """The pool without the images that it repeats with the same label and domain."""
    if len(set(pool.names)) == len(pool):
        return pool
    first: dict[tuple[str, int, int], int] = {}
    for row, place in enumerate(zip(pool.names, pool.label.tolist(), pool.domain.tolist(), strict=True)):
        first.setdefault(place, row)
    return pool.take(np.array([*first.values()], dtype=np.int64))


def repeated(name: str, train: Pool, test: Pool, dropped: int) -> str:
    """A warning about images that a data set lists more than once; "" if there are none.

    Images that are listed on both sides, or with several labels, are not refused: lists that are published have some,
    and the figures that are published on them include them.

    Args:
        name: the data set.
        train: its training images, without those that `once` leaves out.
        test: its test images, likewise.
        dropped: number of images that `once` left out.
    """
    names = (*train.names, *test.names)
    if len(set(names)) == len(names) and not dropped:
        return ""
    places: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for side, pool in enumerate((train, test)):
        for image, label, domain in zip(pool.names, pool.label.tolist(), pool.domain.tolist(), strict=True):
            places[image].add((side, label, domain))
    kinds = [f"{dropped:,} with the same label, which count once"] if dropped else []
    remedy = ""
    for position, difference in enumerate(_DIFFERENCES):
        if cases := [image for image, of in places.items() if len({place[position] for place in of}) > 1]:
            kinds.append(f"{len(cases):,} {difference}, first {cases[0]}")
            remedy = (
                " Images that are listed differently stay, and clients may validate or be tested on what others train "
                "on; `fpl-tune data check` shows them."
            )
    return f"{name} lists images more than once: {'; '.join(kinds)}.{remedy}"
