"""The specifications of this room: which data set, and how it is dealt to clients."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fpl_tune.errors import ConfigError
from fpl_tune.spec import SPEC, AtLeastOne, Seed

Share = Annotated[float, Field(gt=0, lt=1)]
Evaluation = Literal["personal", "domains", "base_to_novel", "leave_one_domain_out"]


@dataclass(frozen=True, config=SPEC)
class DataSpec:
    """Which data set, and how much of it. `fpl-tune ls data` lists the data sets."""

    name: str = "shapes"
    """Name of the data set, or `folder` (one folder a class) / `domains` (folders domain/class) for your own images."""
    root: str | None = None
    """Folder that holds the data set's own folder, or is it. Not used by the drawn world."""
    domains: list[str] | None = None
    """Domains to keep, in this order; None keeps all in the data set's order."""
    classes: str = ""
    """Variant of the classes. shapes: `shape` (20) or `object` (200, "red star")."""
    shots: AtLeastOne | None = 16
    """Training images per client and class (with disjoint classes that is per class); None takes all."""
    val: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Validation images per client and class as a share of its training images, at least one where there are two.

    They come from outside the few-shot draw where the client holds more images of the class, so that `shots` stays
    the number trained on. 0 leaves every client without validation images.
    """
    views: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Random resized crops with flips that each training image is drawn from, encoded once and cached.

    0 trains on the image itself, as FedAPT and the CIFAR protocols do. CoOp and its kin crop anew at every step; a few
    views come close.
    """
    max_train: AtLeastOne | None = None
    """Cap on the training images per class and domain, for quick runs; the images beyond it are not seen at all."""
    max_test: AtLeastOne | None = None
    """Cap on the test images per class and domain, for quick runs."""
    test_share: Share = 0.2
    """Share of every class of every domain that is held out for testing where a data set has no split of its own."""
    split_seed: Seed = 1
    """Seed of that split: part of the data set, not of the run."""
    train_per_class: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Drawn world: training images per class and style."""
    test_per_class: Annotated[int, Field(ge=1, le=10_000)] = 25
    """Drawn world: test images per class and style."""
    transform: str = "auto"
    """`clip` (bicubic resize, centre crop), `cifar` (CIFAR statistics, bilinear enlargement); `auto` as the papers."""
    whole_test: list[str] = field(default_factory=list)
    """Domains all of whose images are test images: the whole target domain of leave-one-domain-out."""
    drop_missing: bool = False
    """Go on without the images that a list names and the folder lacks, instead of refusing."""
    permute_classnames: Seed | None = None
    """A defect of published DomainNet and Office code: class names in the order of an unordered set.

    A number is the seed of the permutation, None leaves every name with its label.
    """


@dataclass(frozen=True, config=SPEC)
class PartitionSpec:
    """How the images are dealt to clients and what the clients are tested on.

    Fields left None take the value that is natural for the data set.
    """

    name: str = "auto"
    """`disjoint`, `classes`, `dirichlet`, `dirichlet_coarse`, `domain`, `domain_dirichlet`, `iid`, `file`, `auto`."""
    n_clients: AtLeastOne | None = None
    """Number of clients; for `domain_dirichlet` clients per domain, for `domain` one per domain whatever is said."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Concentration of the Dirichlet distribution: small is skewed, infinity is IID."""
    min_size: AtLeastOne | None = None
    """Least number of training and of test images of a client under `dirichlet` and `domain_dirichlet`."""
    classes_per_client: AtLeastOne = 5
    """Classes that each client draws under `classes`."""
    balanced: bool = True
    """Dirichlet: a client that holds its fair share of images gets no further class."""
    seed: Seed = 2023
    """Seed of the class assignment, and with the run's seed of everything else that is drawn."""
    vary: bool = True
    """Whether partition and few-shot draw follow the run's seed. The class assignment never does."""
    evaluation: Evaluation = "personal"
    """What clients are tested on.

    `personal`: test images dealt as the training images are; `domains`: every domain's whole test set;
    `base_to_novel`: train on the first half of the classes, test on own, base and novel classes;
    `leave_one_domain_out`: the domains `held_out` have no client and are what is tested on.
    """
    held_out: list[str] = field(default_factory=list)
    """Domains without a client."""
    file: str | None = None
    """JSON file of an exported split, for `file`."""
    compat_scrambled_labels: bool = False
    """A defect of published DomainNet and Office code: labels follow the client's images, image files do not.

    Images then say nothing about labels, and the best that can be learned is each client's most frequent class.
    """
    compat_fixed_split: bool = False
    """A defect of published DomainNet and Office code: the generator starts at 0 for each class and for every seed."""

    @model_validator(mode="after")
    def _fits(self) -> PartitionSpec:
        if (self.name == "file") != (self.file is not None):
            raise ConfigError("partition.file and partition=file go together: name the JSON file of an exported split.")
        if self.evaluation == "leave_one_domain_out" and not self.held_out:
            raise ConfigError("leave_one_domain_out needs partition.held_out=[<domain>]: what is tested on.")
        return self
