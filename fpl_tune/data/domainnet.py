"""DomainNet with 10 or 345 classes, and Office-Caltech10: images in folders by domain, listed in text or pickles."""

from __future__ import annotations

from fpl_tune.core.errors import EnvironmentProblem, unknown
from fpl_tune.data.files import FolderLayout, Rows, assemble, class_names, lines_of, locate
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.unpickle import unpickle


def load_domainnet(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists all 345 classes by the official lists, or the ten classes of federated papers by FedBN's pickled lists.

    The official lists are `splits/<domain>_{train,test}.txt` with "path label" in each line, where the second part of a
    path is the class. Lists of domains that are not used may be missing.

    Raises:
        ConfigError: `spec.classes` is neither 10 nor 345.
        EnvironmentProblem: the images or lists are not below the data root.
    """
    if spec.classes not in ("", "10", "345"):
        raise unknown("data.classes of domainnet", spec.classes, ("10", "345"))
    if spec.classes != "345":
        return load_pickled(spec, layout)
    root = locate(spec, layout, ("splits",))
    rows: tuple[Rows, Rows] = ([], [])
    try:
        for split, into in zip(("train", "test"), rows, strict=True):
            for number, domain in enumerate(layout.domains):
                if spec.domains is None or domain in spec.domains:
                    lines = [line.rsplit(" ", 1) for line in lines_of(root / "splits" / f"{domain}_{split}.txt")]
                    into += [(image, int(label), number) for image, label in lines]
        names = class_names((label, image.split("/")[1]) for side in rows for image, label, _ in side)
    except (ValueError, IndexError) as error:
        raise EnvironmentProblem(
            f'{root}/splits has lists that are damaged ({error}): lines should be "domain/class/image label". '
            "Download them again."
        ) from None
    return assemble(spec, layout, root, names, rows, listed_in="the lists")


def load_pickled(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Reads FedBN's lists `<domain>_{train,test}.pkl` of image paths, which end in domain/class/image, and class names.

    Raises:
        EnvironmentProblem: the images or lists are not below the data root.
    """
    root = locate(spec, layout, (f"{next(iter(layout.domains))}_train.pkl",))
    rows: tuple[Rows, Rows] = ([], [])
    for split, into in zip(("train", "test"), rows, strict=True):
        for number, domain in enumerate(layout.domains):
            path = root / f"{domain}_{split}.pkl"
            try:
                listed = zip(*unpickle(path), strict=True)
                into += [
                    ("/".join(image.split("/")[-3:]), layout.classes.index(name), number) for image, name in listed
                ]
            except (ValueError, TypeError, AttributeError) as error:
                raise EnvironmentProblem(
                    f"{path} does not hold image paths and as many class names ({error}). Download it again."
                ) from None
    return assemble(spec, layout, root, layout.classes, rows, listed_in="the lists")
