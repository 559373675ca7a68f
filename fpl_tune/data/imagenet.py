"""ImageNet in the layout of CoOp: images/{train,val}/<wnid>/ and `classnames.txt`; val/ holds the test images."""

from __future__ import annotations

from dataclasses import replace

from fpl_tune.data.files import Rows, assemble, images_in, locate, subfolders
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem


def load_imagenet(spec: DataSpec, origin: str) -> Dataset:
    """Lists ImageNet or a part of its classes: those that have folders, in the order of their identifiers.

    Args:
        spec: the data set.
        origin: where to download it, for messages.

    Raises:
        EnvironmentProblem: a folder or `classnames.txt` is missing, or they name different classes.
    """
    root = locate(spec, ("imagenet", "ImageNet"), ("classnames.txt", "images"), origin)
    parts = [root / "images" / part for part in ("train", "val")]
    for path in (*parts, root / "classnames.txt"):
        if not path.exists():
            raise EnvironmentProblem(f"{path} is missing. {origin}")
    named: dict[str, str] = {}
    for line in (root / "classnames.txt").read_text(encoding="utf-8").splitlines():
        identifier, _, name = line.strip().partition(" ")
        if identifier:
            named[identifier] = name.strip()
    held = [subfolders(path) for path in parts]
    wanted = sorted(held[0])
    for identifier in (*wanted, *held[1]):
        if not named.get(identifier):
            raise EnvironmentProblem(
                f"{root / 'classnames.txt'} has no name for {identifier}, a folder of images/. {origin}"
            )
        if identifier not in held[1] or identifier not in held[0]:
            raise EnvironmentProblem(
                f"Class {identifier} is in only one of images/train and images/val. Complete the download."
            )
    train, test = Rows(), Rows()
    for rows, folders in zip((train, test), held, strict=True):
        for label, identifier in enumerate(wanted):
            rows.add(images_in(folders[identifier], root), label)
    names = [named[identifier] for identifier in wanted]
    dataset = assemble(spec.name, root, names, ("images",), "a photo of a {}.", (train, test))
    return replace(dataset, published_names=True)
