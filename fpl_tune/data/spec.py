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
    """Name of the data set, or `folder` (one folder a class) / `domains` (folders domain/class) for your own images."""
    root: str | None = None
    """The data set's folder, or the folder that contains it. The drawn world needs none."""
    domains: list[str] | None = None
    """Domains to keep, in this order; None keeps all in the data set's order."""
    classes: str = ""
    """Variant of the classes. shapes: `shape` (20) or `object` (200, "red star")."""
    names: dict[str, Name] = field(default_factory=dict)
    """Class -> its name in prompts, such as {n02012849: crane bird, n03126707: crane machine}.

    A class goes by its folder (ImageNet: its identifier) or listed name; where several have that name, by its label, a
    number from 0. Classes whose names differ in case, blanks and underscores alone share a prompt, and are warned of.
    """
    shots: AtLeastOne | None = 16
    """Training images per client and class; None takes all."""
    val: Annotated[float, Field(ge=0, le=100)] = 0.25
    """Validation images per client and class as a multiple of its training images, at least one where there are two.

    They are drawn in addition to the `shots` images where the client holds more images of the class. With 0 no client
    has validation images.
    """
    views: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Random resized crops with flips that each training image is drawn from, encoded once and cached.

    0 trains on the image itself, as FedAPT and the CIFAR protocols do. CoOp and methods derived from it crop anew at
    every step; a few views approximate that.
    """
    max_train: AtLeastOne | None = None
    """Maximum number of training images per class and domain, for quick runs; others are not used."""
    max_test: AtLeastOne | None = None
    """Maximum number of test images per class and domain, for quick runs."""
    test_share: Share = 0.2
    """Share of each class and domain held out for testing if the data set has no official split. The images are drawn
    once and do not follow the run's seed."""
    train_per_class: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Drawn world: training images per class and style."""
    test_per_class: Annotated[int, Field(ge=1, le=10_000)] = 25
    """Drawn world: test images per class and style."""
    transform: Literal["auto", "clip"] = "auto"
    """`clip`: bicubic resize and centre crop. `auto`: of CIFAR as in PromptFL's papers, enlarged bilinearly and
    normalised by CIFAR's statistics; else `clip`."""
    whole_test: list[str] = field(default_factory=list)
    """Domains whose training images become test images, as the target domain of leave-one-domain-out."""
    content: str | None = None
    """Fingerprint of the images and labels that must be found, as `fpl-tune data show` prints it; others are refused.
    None takes any. A study that names several roots sets it, so that cells of different images are different cells."""
    drop_missing: bool = False
    """Continue without listed images whose files are missing, with a warning; otherwise they are an error."""
    permute_classnames: Seed | None = None
    """Seed that shuffles class names against labels; None does not shuffle.

    Reproduces a defect of published DomainNet and Office code, which lists class names in the order of a set.
    """


@dataclass
class PartitionSpec:
    """The distribution of images over clients and the test sets.

    Fields that are None take the data set's default.
    """

    name: str = "auto"
    """`disjoint`, `classes`, `dirichlet`, `dirichlet_coarse`, `domain`, `domain_dirichlet`, `iid`, `file`, `auto`."""
    n_clients: AtLeastOne | None = None
    """Number of clients; `domain_dirichlet`: per domain; `domain` ignores it, as each domain has one client."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Concentration of the Dirichlet distribution: small values give skewed clients, infinity gives IID clients. A
    client that holds its fair share of the training images receives none of later classes."""
    min_size: AtLeastOne | None = None
    """Minimum number of training and of test images per client under `dirichlet` and `domain_dirichlet`."""
    classes_per_client: AtLeastOne = 5
    """Classes that each client draws under `classes`."""
    seed: Seed = 2023
    """Seed of the class assignment; combined with the run's seed, of all other draws."""
    vary: bool = True
    """True: partition and few-shot draw follow the run's seed. The class assignment never does."""
    evaluation: Evaluation = "personal"
    """The test sets.
    `personal`: test images distributed as the training images; `domains`: the test images of each whole domain;
    `base_to_novel`: train on the first half of the classes, test on own, base and novel classes;
    `leave_one_domain_out`: test on the domains `held_out`, which have no client;
    `open_set`: train on the first half of the classes, and tell images of the others from those of the first (AUROC).
    """
    held_out: list[str] = field(default_factory=list)
    """Domains without a client."""
    file: str | None = None
    """JSON file of an exported split, for `file`."""
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of wrong labels among the training and validation images of the last client; it grows evenly from 0 at the
    first client. A wrong label is any other class. Test labels are right."""
    compat_scrambled_labels: bool = False
    """Pair labels with the wrong images, a defect of published DomainNet and Office code.

    Images then carry no information about labels; the best prediction is each client's most frequent class.
    """
    compat_fixed_split: bool = False
    """Seed the generator with 0 for each class in every run, a defect of published DomainNet and Office code."""

    @model_validator(mode="after")
    def _fits(self) -> PartitionSpec:
        if (self.name == "file") != (self.file is not None):
            raise ConfigError(
                "partition=file and partition.file need each other; set both, the second to the JSON file of an "
                "exported split."
            )
        if self.evaluation == "leave_one_domain_out" and not self.held_out:
            raise ConfigError("leave_one_domain_out needs domains to test on; set partition.held_out=[<domain>].")
        return self


def cross_data(data: DataSpec, named: str) -> DataSpec:
    """The specification of another data set to test on, `name` or `name/classes`, whose files lie as those of `data`.

    Its class names are its own and in order, and all of its domains are kept.
    """
    name, _, classes = named.partition("/")
    own = {"domains": None, "names": {}, "whole_test": [], "permute_classnames": None, "content": None}
    return replace(data, name=name, classes=classes, **own)


def kept_domains(name: str, known: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The domains to keep, in the order of `wanted`.

    Args:
        name: the data set, for messages.
        known: its domains.
        wanted: the domains to keep; None keeps all.

    Raises:
        ConfigError: a domain is unknown or repeated, or none is named.
    """
    if wanted is None:
        return tuple(known)
    for domain in wanted:
        if domain not in known:
            raise unknown(f"domain of {name}", domain, known)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"data.domains must name one or more different domains, but is {list(wanted)}. Known: {list(known)}."
        )
    return tuple(wanted)
