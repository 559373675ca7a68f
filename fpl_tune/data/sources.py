"""The catalogue of data sets: description, origin, loader and usual partition."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fpl_tune import plugins
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec, PartitionSpec
from fpl_tune.errors import unknown

DISJOINT = PartitionSpec("disjoint", n_clients=10)
DOMAINS = PartitionSpec("domain_dirichlet", n_clients=5, alpha=0.3, min_size=2)
LABEL_SKEW = PartitionSpec("dirichlet", n_clients=100, alpha=0.5, min_size=10)
ALL = "all"
Sizes = Mapping[str, int | tuple[int, int]]
"""Published numbers of images by domain, or of `ALL`: (training, test), or both together if no split is official."""


@dataclass(frozen=True)
class Source:
    """A data set as described before its files are read."""

    what: str
    """One-line description."""
    loader: str | Callable[[DataSpec], Dataset]
    """Lists its images; `module:function` below `fpl_tune.data` is imported on use."""
    natural: PartitionSpec
    layout: str
    """Expected files below `data.root`, in one line."""
    origin: str
    """Where to get it."""
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    """By `data.classes`."""

    def list(self, spec: DataSpec) -> Dataset:
        if not isinstance(self.loader, str):
            return self.loader(spec)
        module, function = self.loader.split(":")
        call: Callable[[DataSpec], Dataset] = getattr(importlib.import_module(f"fpl_tune.data.{module}"), function)
        return call(spec)


def _coop(what: str, images: str, split: str, origin: str, classes: int, sizes: tuple[int, int]) -> Source:
    layout = f"{images}/, {images.split('/')[0]}/{split}"
    return Source(f"{classes} {what}", "coop:load_coop", DISJOINT, layout, origin, {"": {ALL: sizes}})


_LISTS = "The split list is linked from DATASETS.md of github.com/KaiyangZhou/CoOp."
_DOMAINNET: Sizes = {
    "clipart": (33525, 14604),
    "infograph": (36023, 15582),
    "painting": (50416, 21850),
    "quickdraw": (120750, 51750),
    "real": (120906, 52041),
    "sketch": (48212, 20916),
}
_TEN: Sizes = {ALL: (18278, 4573)}
_OFFICE: Sizes = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
_HOME: Sizes = {"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357}
_PACS: Sizes = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
SOURCES: dict[str, Source] = {
    "shapes": Source(
        "procedurally drawn world: 20 shapes or 200 coloured shapes in six styles",
        "world:load_shapes",
        DISJOINT,
        "nothing: drawn when needed",
        "Ships with fpl-tune.",
    ),
    "oxford_pets": _coop(
        "breeds of cats and dogs",
        "oxford_pets/images",
        "split_zhou_OxfordPets.json",
        f"Images: robots.ox.ac.uk/~vgg/data/pets. {_LISTS}",
        37,
        (2944, 3669),
    ),
    "flowers102": _coop(
        "flowers",
        "oxford_flowers/jpg",
        "split_zhou_OxfordFlowers.json",
        f"Images: robots.ox.ac.uk/~vgg/data/flowers/102. {_LISTS}",
        102,
        (4093, 2463),
    ),
    "food101": _coop(
        "dishes",
        "food-101/images",
        "split_zhou_Food101.json",
        f"Images: data.vision.ee.ethz.ch/cvl/datasets_extra/food-101. {_LISTS}",
        101,
        (50500, 30300),
    ),
    "caltech101": _coop(
        "kinds of objects",
        "caltech-101/101_ObjectCategories",
        "split_zhou_Caltech101.json",
        f"Images: data.caltech.edu/records/mzrjq-6wc02. {_LISTS}",
        100,
        (4128, 2465),
    ),
    "dtd": _coop(
        "textures",
        "dtd/images",
        "split_zhou_DescribableTextures.json",
        f"Images: robots.ox.ac.uk/~vgg/data/dtd. {_LISTS}",
        47,
        (2820, 1692),
    ),
    "ucf101": _coop(
        "actions, the middle frame of each video",
        "ucf101/UCF-101-midframes",
        "split_zhou_UCF101.json",
        f"Frames and list: DATASETS.md of github.com/KaiyangZhou/CoOp. {_LISTS}",
        101,
        (7639, 3783),
    ),
    "cifar10": Source(
        "10 kinds of objects, 32x32",
        "cifar:load_cifar",
        LABEL_SKEW,
        "cifar-10-batches-py/",
        "Python version from cs.toronto.edu/~kriz/cifar.html, unpacked.",
        {"": {ALL: (50000, 10000)}},
    ),
    "cifar100": Source(
        "100 kinds of objects in 20 super-classes, 32x32",
        "cifar:load_cifar",
        LABEL_SKEW,
        "cifar-100-python/",
        "Python version from cs.toronto.edu/~kriz/cifar.html, unpacked.",
        {"": {ALL: (50000, 10000)}},
    ),
    "domainnet": Source(
        "six domains; 10 classes (FedBN's) or 345 (data.classes=345)",
        "domainnet:load_domainnet",
        DOMAINS,
        "DomainNet/<domain>/<class>/, with <domain>_{train,test}.pkl or splits/<domain>_{train,test}.txt",
        "Images and lists (cleaned version): ai.bu.edu/M3SDA; pickles: github.com/med-air/FedBN.",
        {"": _TEN, "10": _TEN, "345": _DOMAINNET},
    ),
    "office_caltech10": Source(
        "four domains, 10 kinds of office objects",
        "domainnet:load_office",
        DOMAINS,
        "office_caltech_10/<domain>/<class>/, with or without office_caltech_10/<domain>_{train,test}.pkl",
        "With pickles: github.com/med-air/FedBN.",
        {"": _OFFICE},
    ),
    "officehome": Source(
        "four domains, 65 kinds of everyday objects",
        "folders:load_officehome",
        DOMAINS,
        "OfficeHome/{Art,Clipart,Product,Real World}/<class>/",
        "hemanthdv.org/officeHomeDataset.html",
        {"": _HOME},
    ),
    "pacs": Source(
        "four domains, 7 classes",
        "folders:load_pacs",
        DOMAINS,
        "PACS/{photo,art_painting,cartoon,sketch}/<class>/",
        "Images: domaingeneralization.github.io",
        {"": _PACS},
    ),
    "folder": Source(
        "your own images, one folder a class",
        "folders:load_folder",
        DISJOINT,
        "<data.root>/<class>/*, or <data.root>/{train,test}/<class>/*",
        "Yours.",
    ),
    "domains": Source(
        "your own images of several domains",
        "folders:load_domains",
        DOMAINS,
        "<data.root>/<domain>/<class>/*",
        "Yours.",
    ),
}


def source(name: str) -> Source:
    """The catalogue's entry of a data set. Raises `ConfigError` for an unknown name."""
    if name in SOURCES:
        return SOURCES[name]
    if name not in plugins.names("data"):
        raise unknown("data set", name, (*SOURCES, *plugins.names("data")))
    return plugins.load("data", name)
