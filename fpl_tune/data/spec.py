"""Specifications of the data set and of its partition over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.spec import AtLeastOne, Seed, dataclass

Share = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Evaluation = Literal["personal", "domains", "base_to_novel", "leave_one_domain_out", "open_set"]


@dataclass
class DataSpec:
    """A data set and the part of it to use. `fpl-tune ls data` lists the data sets."""

    name: str = "shapes"
    """Name of the data set, or `folder` (one folder per class) or `domains` (domain/class) for your own images."""
    root: str | None = None
    """The data set's folder, or the folder that contains it. `shapes` needs none."""
    domains: list[str] | None = None
    """Domains to keep, in this order; None keeps all in the data set's order."""
    classes: str = ""
    """Variant of the classes. shapes: `shape` (20) or `object` (200, "red star")."""
    names: dict[str, Name] = field(default_factory=dict)
    """Names of classes in prompts, such as {n02012849: crane bird, n03126707: crane machine}.

    A class is given by its folder (ImageNet: its identifier) or its name in the list, or by its label, a number from 0,
    if several classes have that name. A warning lists classes whose prompts are the same, because their names differ
    only in case, blanks and underscores.
    """
    shots: AtLeastOne | None = 16
    """Training images per client and class; None takes all."""
    val: Annotated[float, Field(ge=0, le=100)] = 0.25
    """Validation images per client and class as a multiple of its training images, at least one if it has two images.

    They are drawn in addition to the `shots` images if the client has more images of the class. With 0, no client has
    validation images.
    """
    views: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of random resized crops with flips of each training image, which are encoded once and cached.

    A training step uses one of them. 0 trains on the image itself, as FedAPT and the CIFAR protocols do. CoOp and
    methods derived from it draw a new crop at every step; a few views approximate that.
    """
    max_train: AtLeastOne | None = None
    """Maximum number of training images per class and domain, for quick runs."""
    max_test: AtLeastOne | None = None
    """Maximum number of test images per class and domain, for quick runs."""
    test_share: Share = 0.2
    """Share of each class and domain that is held out for testing if the data set has no official split. The images are
    drawn once and do not depend on the run's seed."""
    train_per_class: Annotated[int, Field(ge=1, le=10_000)] = 64
    """`shapes`: training images per class and style."""
    test_per_class: Annotated[int, Field(ge=1, le=10_000)] = 25
    """`shapes`: test images per class and style."""
    transform: Literal["auto", "clip"] = "auto"
    """`clip`: bicubic resize and centre crop. `auto`: CIFAR's images are enlarged bilinearly and normalised by CIFAR's
    statistics, as in PromptFL's papers; `clip` for other data sets."""
    whole_test: list[str] = field(default_factory=list)
    """Domains whose training images become test images, such as the target domain of leave-one-domain-out."""
    content: str | None = None
    """Fingerprint that the images and labels must have, as `fpl-tune data show` prints it; None accepts any. A study
    with several roots sets it, so that cells with different images are different cells."""
    drop_missing: bool = False
    """Continue with a warning if files of listed images are missing. If False, this is an error."""
    permute_classnames: Seed | None = None
    """Seed with which class names are shuffled against labels; None does not shuffle.

    It reproduces a defect of published DomainNet and Office code, which lists class names in the order of a set.
    """


@dataclass
class PartitionSpec:
    """The distribution of images over clients and the test sets.

    Fields that are None take the data set's default.
    """

    name: str = "auto"
    """`disjoint`, `classes`, `dirichlet`, `dirichlet_coarse`, `domain`, `domain_dirichlet`, `iid`, `file`, `auto`."""
    n_clients: AtLeastOne | None = None
    """Number of clients, under `domain_dirichlet` per domain. `domain` ignores it, as each domain has one client."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Concentration of the Dirichlet distribution: small values give skewed clients, infinity gives IID clients. A
    client that has its fair share of the training images receives none of later classes."""
    min_size: AtLeastOne | None = None
    """Minimum number of training and of test images per client under `dirichlet` and `domain_dirichlet`."""
    classes_per_client: AtLeastOne = 5
    """Number of classes that each client draws under `classes`."""
    seed: Seed = 2023
    """Seed of the class assignment and, combined with the run's seed, of all other draws."""
    vary: bool = True
    """True if partition and few-shot draw depend on the run's seed. The class assignment never does."""
    evaluation: Evaluation = "personal"
    """The test sets.
    `personal`: test images distributed as the training images; `domains`: the test images of each whole domain;
    `base_to_novel`: train on the first half of the classes, test on own, base and novel classes;
    `leave_one_domain_out`: test on the domains `held_out`, which have no client;
    `open_set`: train on the first half of the classes, and detect images of the other classes (AUROC).
    """
    held_out: list[str] = field(default_factory=list)
    """Domains without a client."""
    file: str | None = None
    """JSON file of an exported split, for the partition `file`."""
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of wrong labels among the training and validation images of the last client; it grows evenly from 0 at the
    first client. A wrong label is any other class. Test labels are not changed."""
    compat_scrambled_labels: bool = False
    """Pair labels with the wrong images, a defect of published DomainNet and Office code.

    Images then have no information about labels, and the best prediction is each client's most frequent class.
    """
    compat_fixed_split: bool = False
    """Seed the generator with 0 for each class in every run, a defect of published DomainNet and Office code."""

    @model_validator(mode="after")
    def _fits(self) -> PartitionSpec:
        if (self.name == "file") != (self.file is not None):
            raise ConfigError(
                "partition=file and partition.file need each other. Set both, partition.file to the JSON file of an "
                "exported split."
            )
        if self.evaluation == "leave_one_domain_out" and not self.held_out:
            raise ConfigError("leave_one_domain_out needs domains to test on; set partition.held_out=[<domain>].")
        return self


def cross_data(data: DataSpec, named: str) -> DataSpec:
    """The specification of another data set to test on, `name` or `name/classes`, with the same root as `data`.

    It has its own class names in their order, and keeps all of its domains.
    """
    name, _, classes = named.partition("/")
    own = {"domains": None, "names": {}, "whole_test": [], "permute_classnames": None, "content": None}
    return replace(data, name=name, classes=classes, **own)


def kept_domains(name: str, available: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The domains to keep, in the order of `wanted`.

    Args:
        name: name of the data set, for messages.
        available: its domains.
        wanted: the domains to keep; None keeps all.

    Raises:
        ConfigError: a domain is unknown or repeated, or none is named.
    """
    if wanted is None:
        return tuple(available)
    for domain in wanted:
        if domain not in available:
            raise unknown(f"domain of {name}", domain, available)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"data.domains must name one or more different domains, but is {list(wanted)}. Known: {list(available)}."
        )
    return tuple(wanted)
