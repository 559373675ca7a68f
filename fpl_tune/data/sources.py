"""The catalogue of data sets: description, origin, loader and usual partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fpl_tune import plugins
from fpl_tune.data.cifar import load_cifar
from fpl_tune.data.coop import load_coop
from fpl_tune.data.coop_lists import LAYOUTS
from fpl_tune.data.domainnet import load_domainnet, load_office
from fpl_tune.data.folders import load_domains, load_folder, load_published
from fpl_tune.data.imagenet import load_imagenet
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec, PartitionSpec
from fpl_tune.data.world import load_shapes
from fpl_tune.errors import ConfigError, unknown

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
    loader: Callable[[DataSpec], Dataset]
    """Lists its images."""
    natural: PartitionSpec
    layout: str
    """Expected files below `data.root`, in one line."""
    origin: str
    """Where to get it."""
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    """By `data.classes`."""


Loader = Callable[[DataSpec, str], Dataset]


def _files(
    what: str, loader: Loader, natural: PartitionSpec, layout: str, origin: str, sizes: Mapping[str, Sizes]
) -> Source:
    """A published data set. Its loader names the origin where files are missing."""
    return Source(what, lambda spec: loader(spec, origin), natural, layout, origin, sizes)


def _own(what: str, loader: Loader, natural: PartitionSpec, layout: str) -> Source:
    """Images of the user. The loader names the layout where files are missing."""
    return Source(what, lambda spec: loader(spec, layout), natural, layout, "Yours.")


def _coop(name: str, what: str, origin: str, classes: int, sizes: tuple[int, int]) -> Source:
    layout = LAYOUTS[name]
    folder = layout.folders[0]
    expected = f"{folder}/{layout.markers[1]}/, {folder}/{layout.split}"
    return _files(
        f"{classes} {what}",
        load_coop,
        DISJOINT,
        expected,
        origin if layout.official else f"{origin} {_LISTS}",
        {"": {ALL: sizes}},
    )


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
_VLCS: Sizes = {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}
SOURCES: dict[str, Source] = {
    "shapes": Source(
        "procedurally drawn world: 20 shapes or 200 coloured shapes in six styles",
        load_shapes,
        DISJOINT,
        "nothing: drawn when needed",
        "Ships with fpl-tune.",
    ),
    "oxford_pets": _coop(
        "oxford_pets", "breeds of cats and dogs", "Images: robots.ox.ac.uk/~vgg/data/pets.", 37, (2944, 3669)
    ),
    "flowers102": _coop("flowers102", "flowers", "Images: robots.ox.ac.uk/~vgg/data/flowers/102.", 102, (4093, 2463)),
    "food101": _coop(
        "food101", "dishes", "Images: data.vision.ee.ethz.ch/cvl/datasets_extra/food-101.", 101, (50500, 30300)
    ),
    "caltech101": _coop(
        "caltech101", "kinds of objects", "Images: data.caltech.edu/records/mzrjq-6wc02.", 100, (4128, 2465)
    ),
    "dtd": _coop("dtd", "textures", "Images: robots.ox.ac.uk/~vgg/data/dtd.", 47, (2820, 1692)),
    "ucf101": _coop(
        "ucf101",
        "actions, the middle frame of each video",
        "Frames and list: DATASETS.md of github.com/KaiyangZhou/CoOp.",
        101,
        (7639, 3783),
    ),
    "sun397": _coop("sun397", "scenes", "Images: vision.princeton.edu/projects/2010/SUN.", 397, (15880, 19850)),
    "stanford_cars": _coop(
        "stanford_cars", "makes and models of cars", "Images: ai.stanford.edu/~jkrause/cars.", 196, (6509, 8041)
    ),
    "fgvc_aircraft": _coop(
        "fgvc_aircraft",
        "variants of aircraft",
        "Images and lists (images_variant_*.txt, variants.txt): robots.ox.ac.uk/~vgg/data/fgvc-aircraft.",
        100,
        (3334, 3333),
    ),
    "eurosat": _coop("eurosat", "kinds of land use", "Images: github.com/phelber/EuroSAT.", 10, (13500, 8100)),
    "imagenet": _files(
        "1000 kinds of objects; the official validation images are the test set",
        load_imagenet,
        DISJOINT,
        "imagenet/images/{train,val}/<wnid>/, imagenet/classnames.txt",
        "Images: image-net.org. classnames.txt is linked from DATASETS.md of github.com/KaiyangZhou/CoOp.",
        {"": {ALL: (1281167, 50000)}},
    ),
    "cifar10": _files(
        "10 kinds of objects, 32x32",
        load_cifar,
        LABEL_SKEW,
        "cifar-10-batches-py/",
        "Python version from cs.toronto.edu/~kriz/cifar.html, unpacked.",
        {"": {ALL: (50000, 10000)}},
    ),
    "cifar100": _files(
        "100 kinds of objects in 20 super-classes, 32x32",
        load_cifar,
        LABEL_SKEW,
        "cifar-100-python/",
        "Python version from cs.toronto.edu/~kriz/cifar.html, unpacked.",
        {"": {ALL: (50000, 10000)}},
    ),
    "domainnet": _files(
        "six domains; 10 classes (FedBN's) or 345 (data.classes=345)",
        load_domainnet,
        DOMAINS,
        "DomainNet/<domain>/<class>/, with <domain>_{train,test}.pkl or splits/<domain>_{train,test}.txt",
        "Images and lists (cleaned version): ai.bu.edu/M3SDA; pickles: github.com/med-air/FedBN.",
        {"": _TEN, "10": _TEN, "345": _DOMAINNET},
    ),
    "office_caltech10": _files(
        "four domains, 10 kinds of office objects",
        load_office,
        DOMAINS,
        "office_caltech_10/<domain>/<class>/, with or without office_caltech_10/<domain>_{train,test}.pkl",
        "With pickles: github.com/med-air/FedBN.",
        {"": _OFFICE},
    ),
    "officehome": _files(
        "four domains, 65 kinds of everyday objects",
        load_published,
        DOMAINS,
        "OfficeHome/{Art,Clipart,Product,Real World}/<class>/",
        "hemanthdv.org/officeHomeDataset.html",
        {"": _HOME},
    ),
    "pacs": _files(
        "four domains, 7 classes",
        load_published,
        DOMAINS,
        "PACS/{photo,art_painting,cartoon,sketch}/<class>/",
        "Images: domaingeneralization.github.io",
        {"": _PACS},
    ),
    "vlcs": _files(
        "four photo collections, 5 classes",
        load_published,
        DOMAINS,
        "VLCS/{CALTECH,LABELME,PASCAL,SUN}/full/<class>/, or VLCS/{Caltech101,LabelMe,VOC2007,SUN09}/<class>/",
        "Images: domaingeneralization.github.io or github.com/facebookresearch/DomainBed",
        {"": _VLCS},
    ),
    "terra_incognita": _files(
        "four camera traps, 10 classes",
        load_published,
        DOMAINS,
        "terra_incognita/location_{38,43,46,100}/<class>/",
        "Images: beerys.github.io/CaltechCameraTraps, cut by github.com/facebookresearch/DomainBed",
        {},
    ),
    "folder": _own(
        "your own images, one folder a class",
        load_folder,
        DISJOINT,
        "<data.root>/<class>/*, or <data.root>/{train,test}/<class>/*",
    ),
    "domains": _own("your own images of several domains", load_domains, DOMAINS, "<data.root>/<domain>/<class>/*"),
}


def source(name: str) -> Source:
    """The catalogue's entry of a data set. Raises `ConfigError` for an unknown name."""
    if name in SOURCES:
        return SOURCES[name]
    if ":" in name:
        found = getattr(plugins.module_of(name, "data.name"), name.partition(":")[2], None)
        if not isinstance(found, Source):
            raise ConfigError(f"data.name {name!r} must name a fpl_tune.data.sources.Source, but is {found!r:.80}.")
        return found
    if name not in plugins.names("data"):
        raise unknown("data set", name, (*SOURCES, *plugins.names("data")))
    return plugins.load("data", name)
