"""The data sets in the layout of CoOp (Zhou et al., 2022): a folder of images and `split_zhou_<Name>.json`.

The list gives [path, label, class name] for training, validation and test. As in the federated papers' code, its
validation images are not used; clients validate on some of their own training images. Without the list, the images
are split as the layout's documentation describes, with `data.split_seed`.
"""

from __future__ import annotations

from pathlib import Path

from fpl_tune.data.coop_lists import LAYOUTS, Listed, read_json
from fpl_tune.data.files import Rows, assemble, locate, present
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem


def load_coop(spec: DataSpec, origin: str) -> Dataset:
    """Lists one of the data sets of `LAYOUTS`, by `spec.name`.

    Args:
        spec: the data set.
        origin: where to download it, for messages.

    Raises:
        EnvironmentProblem: the list has another format, or names images that are missing.
    """
    layout = LAYOUTS[spec.name]
    folder = locate(spec, layout.folders, layout.markers, origin)
    images = folder / layout.images
    if not (folder / layout.markers[1]).is_dir():
        raise EnvironmentProblem(f"{folder} has {layout.split} but no {layout.markers[1]}/. {origin}")
    notes: tuple[str, ...] = ()
    if not layout.official and (folder / layout.split).is_file():
        train, test, names = read_list(folder / layout.split)
        listed_in = layout.split
    else:
        train, test, names = layout.own(folder, spec)
        listed_in = "the data set's own list"
        if not layout.official:
            notes = (f"{layout.split} is missing: split again, seed {spec.split_seed}; not the papers' split",)
    train, test = (present(rows, images, spec, listed_in) for rows in (train, test))
    return assemble(spec.name, images, names, ("images",), layout.template, (train, test), notes)


def read_list(path: Path) -> Listed:
    """CoOp's list of a split. Raises `EnvironmentProblem` if it has another format."""
    content = read_json(path)
    name_of: dict[int, str] = {}
    parts = []
    try:
        for part in ("train", "test"):
            rows = Rows()
            for image, label, name in content[part]:
                if name_of.setdefault(int(label), str(name)) != name:
                    raise ValueError(f"label {label} is both {name_of[label]!r} and {name!r}")
                rows.add([str(image)], int(label))
            parts.append(rows)
        if sorted(name_of) != list(range(len(name_of))):
            raise ValueError("labels are not 0, 1, 2, ...")
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentProblem(
            f"{path} is not a list of this layout ({error}): it should be "
            '{"train": [[path, label, class name], ...], "val": ..., "test": ...}. Download it again.'
        ) from None
    return parts[0], parts[1], [name_of[label] for label in range(len(name_of))]
