"""The specifications of runs and studies."""

from __future__ import annotations

import itertools
from dataclasses import field, fields
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, FiniteFloat, PlainValidator
from pydantic.dataclasses import dataclass

from fpl_tune import methods
from fpl_tune.clip.sentences import Position
from fpl_tune.core.clients import ClientsSpec
from fpl_tune.core.spec import (
    LOOKS,
    SPEC,
    UNTIL_DECIDED,
    AtLeastOne,
    Rate,
    Seed,
    Seeds,
    with_place,
)
from fpl_tune.data import DataSpec, PartitionSpec
from fpl_tune.method import Method

SEEDS = 10_000
"""Maximum number of seeds of a study."""
Epochs = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)]
Rounds = Annotated[int, Field(ge=1, le=100_000)]
Points = Annotated[float, Field(allow_inf_nan=False)]
Picks = dict[str, Any]
"""Axis -> a value or a list of values. An axis may be named by its last part, a bundle by its label."""


def _rule(value: Any) -> Any:
    """Accepts `auto`, `halving` and None."""
    if value not in ("auto", "halving", None):
        raise ValueError(
            "must be auto, halving or null (use other pruners and schedulers in your own program, with "
            "fpl_tune.objective or FederatedTrainable)"
        )
    return value


def _seeds(value: Any) -> int | list[int] | str:
    """Accepts a number of seeds, a list of different seeds, or `until_decided`."""
    if value == UNTIL_DECIDED:
        return value
    listed = value if isinstance(value, list) else [1]
    number = value if type(value) is int else len(listed)
    each = all(type(seed) is int and 0 <= seed < 2**63 for seed in listed)
    if type(value) not in (int, list) or not 1 <= number <= SEEDS or not each or len(set(listed)) < len(listed):
        raise ValueError(
            f"must be a number from 1 to {SEEDS}, a list of different seeds, none below 0 or above 2^63 - 1, or "
            f"{UNTIL_DECIDED}"
        )
    return value


def _confirm(value: Any) -> int | list[int] | str | None:
    """Accepts `auto`, None, a number of seeds, or a list of different seeds."""
    return value if value in ("auto", None) or (type(value) is int and value == 0) else cast(Any, _seeds(value))


def _looks(value: list[int]) -> list[int]:
    """Accepts increasing numbers of seeds."""
    if not value or value[0] < 2 or value[-1] > SEEDS or any(a >= b for a, b in itertools.pairwise(value)):
        raise ValueError(f"must be increasing numbers of seeds from 2 to {SEEDS}, such as [3, 5, 8, 12, 20]")
    return value


def _template(text: str) -> str:
    return text if text in ("generic", "dataset") else with_place(text, "'generic', 'dataset' or ")


@dataclass(frozen=True, config=SPEC)
class ClipSpec:
    """The frozen towers and how class names become prompts."""

    name: str = "compact"
    """`compact` (shipped), a model of open_clip (RN50, ViT-B-16, ...), or `local-dir:<folder>` for your own model."""
    pretrained: str | None = None
    """None, an open_clip tag such as `openai`, or the path of a local checkpoint."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the towers. Learned parameters stay float32."""
    template: Annotated[str, AfterValidator(_template)] = "generic"
    """Hand-written prompts: `generic` ("a photo of a {}."), `dataset` (the data set's own), or a string with {}."""
    quick_gelu: Literal["auto", True, False] = "auto"
    """auto: as the name, the tag or the checkpoint says; true or false if they do not say."""
    preprocess: str = "auto"
    """How images are resized and normalised. auto: as the tag, the folder or OpenAI's checkpoint says. For another
    file: the tag of weights that were trained alike, such as `dfn5b`, if tags of the model differ."""
    class_position: Position = "end"
    """Position of the class name among the context tokens."""


@dataclass(frozen=True, config=SPEC)
class OptimSpec:
    """The clients' optimiser. Defaults are those of CoOp and its federated descendants (SGD)."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """adam adds the weight decay to the gradient, as SGD does; adamw decays the weights themselves."""
    lr: Rate = 0.002
    """Learning rate of every leaf without a rate in `groups`. 0 trains nothing."""
    groups: dict[str, Rate | None] = field(default_factory=dict)
    """Learning rates by leaf name or by the part of it before the first dot, e.g. {gate: 0.01}; None: `lr`. Groups that
    are not given have the method's own rates, such as 0.01 of pFedMoAP's gate, or `lr`."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum; 0 is plain gradient descent."""
    weight_decay: Rate = 5e-4
    """Weight decay of every leaf."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of both moments, for Adam and AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Number that Adam and AdamW add to the root of the second moment."""
    batch: AtLeastOne = 32
    """Images per step and client."""
    schedule: Literal["constant", "cosine", "rounds_cosine", "shared_cosine"] = "constant"
    """constant; cosine over a client's local epochs; rounds_cosine: over the rounds of a stage (FedTPG); shared_cosine:
    one cosine scheduler that all clients of all rounds step in turn, as the released code of PromptFL and pFedMoAP
    does (a client's rate then depends on its place), while the rates of `groups` stay constant."""

    def rate(self, leaf: str) -> float:
        """Learning rate of a leaf by its name."""
        rate = self.groups.get(leaf, self.groups.get(leaf.split(".")[0]))
        return self.lr if rate is None else rate

    def follows(self, leaf: str) -> bool:
        """True if a leaf's rate follows the schedule: the released shared scheduler belongs to one optimiser."""
        own = {name for name, rate in self.groups.items() if rate is not None}
        return self.schedule != "shared_cosine" or not {leaf, leaf.split(".")[0]} & own


@dataclass(frozen=True, config=SPEC)
class ProtocolSpec:
    """The schedule of a simulation."""

    rounds: Rounds = 10
    """Communication rounds."""
    epochs: Epochs = 5.0
    """Local epochs per round; with 0.5, a client trains on half of its images in one round, and on the rest in the
    next. A client trains on at least one image a round."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that train in a round, drawn without replacement."""
    sampling: Literal["uniform", "domain"] = "uniform"
    """uniform; domain: the share is drawn among the clients of each domain, at least one of each."""
    first_round_all: bool = False
    """True to train all clients in round 1 regardless of the participation, as in the released FedOTP and FedPGP."""
    eval_every: AtLeastOne = 1
    """Rounds between evaluations; the last round is always evaluated."""
    unseen: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the clients that never train, drawn by the seed, and are tested as new ones: `test/unseen/acc_mean`.

    Their main test set is scored by the models that new clients receive. Validation and other test sets are those of
    the clients that train."""
    global_model: bool = False
    """True to also test the model that new clients receive: `test/global/acc_mean`.

    Testing on the main set then takes up to twice as long."""
    own_classes: bool = False
    """True to also test clients among the classes of their own training images: `test/own_classes/acc_mean`.

    The images are those of the main test set that show such a class, as in FedTPG and FedMVP."""
    cross: list[str] = field(default_factory=list)
    """Other data sets whose test images are classified among their own classes: `test/cross/<name>/acc_mean`, and
    `test/cross/acc_mean`, their mean. `shapes/object` names a variant of the classes.

    Files are searched like those of `data`, and `data.max_test` applies to them. Every client's model is tested on all
    images, which takes the full time for each client if methods are personal or read pixels."""
    validation: Literal["own", "everyone"] = "own"
    """Images on which a client's model is validated. own: its own validation images; everyone: those of all clients
    that train.

    `everyone` also values classes of other clients, but no client of a real federation could compute it. Methods that
    validate by themselves still only see their own clients' images."""


@dataclass(frozen=True, config=SPEC)
class Stage:
    """One stage of a run; most methods train in one."""

    method: Method
    rounds: Rounds
    epochs: Epochs


def _promptfl() -> Method:
    return methods.build({"name": "promptfl"})


@dataclass(frozen=True, config=SPEC)
class RunSpec:
    """One simulation without its seed. A cell's identity is computed from it.

    `config.to_run` makes one from plain values. A field that is replaced later does not change the stages.
    """

    clip: ClipSpec = field(default_factory=ClipSpec)
    data: DataSpec = field(default_factory=DataSpec)
    partition: PartitionSpec = field(default_factory=PartitionSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    protocol: ProtocolSpec = field(default_factory=ProtocolSpec)
    clients: ClientsSpec = field(default_factory=ClientsSpec)
    method: Method = field(default_factory=_promptfl)
    stages: tuple[Stage, ...] = ()
    """Stages in the order of training. In YAML each has a `method` (default: the run's own; `inner`: the one it wraps;
    fields that differ from it; or another one with its `name`), and `rounds` and `epochs` (default: the protocol's). An
    empty list is one stage of `protocol.rounds` rounds."""

    @property
    def learns(self) -> bool:
        """True if any stage trains parameters."""
        return any(stage.method.learns for stage in self.stages)

    @property
    def rounds(self) -> int:
        """Communication rounds of all stages together; one if nothing is learned."""
        return sum(stage.rounds for stage in self.stages) if self.learns else 1


@dataclass(frozen=True, config=SPEC)
class SearchSpec:
    """The search of the method's space in each cell of the axes. Without a sampler there is no search."""

    sampler: Any = None
    """auto (gp for at most three fields without conditions and one objective, in its first 250 trials; else tpe), a
    sampler of Optuna (tpe, gp, random, cma_es, nsgaii, qmc ...), of a plug-in or of `package.module:Class`;
    {name: ..., argument: ...} with arguments; None: no search."""
    trials: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Trials in each axis cell, the published points included. None: `budget`."""
    budget: Annotated[float, Field(ge=1, le=100_000)] | None = None
    """Instead of `trials`: the budget of each axis cell, in full trials of all rounds and seeds. None for both: a
    budget of 20 if halving stops trials early, else 20 trials."""
    space: dict[str, Any] = field(default_factory=dict)
    """Overrides of the space in search_spaces/<method>.yaml, by dotted field. A method that lacks a field is searched
    without it."""
    only: list[str] = field(default_factory=list)
    """Dotted fields that are searched, in each method those that it has; empty: the whole space."""
    without: list[str] = field(default_factory=list)
    """Dotted fields that are not searched."""
    published: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    """Points that are tried first, by dotted field, and that tuning is compared with. None: those of the space's file,
    and without any the run's own values."""
    objectives: list[str] = field(default_factory=lambda: ["val/acc_mean"])
    """Validation metrics or costs (`comm/total_bytes`, `time/seconds`), each in its direction.

    One chooses the best cell; several leave a front."""
    limits: dict[str, FiniteFloat] = field(default_factory=dict)
    """Limits by metric: upper ones of metrics that are minimised, such as `comm/total_bytes: 4.0e6`, lower ones of
    others, such as `val/acc_min: 0.6`. Accuracies are shares between 0 and 1. What is chosen is within all of them. A
    point whose costs are known to be outside is not run."""
    confirm: Annotated[int | list[int] | str | None, PlainValidator(_confirm)] = "auto"
    """Fresh seeds on which the chosen point of each search, its published point and the references run: a number or a
    list of seeds, none of which the search uses; 0 or None for none. auto: as many as `seeds`. Of a front, at most
    eight points run again, spread over it. All that is said of a search rests on them: a point that was chosen by a
    seed looks better there than it is."""
    across: Literal["settings"] | None = None
    """settings: one configuration for all settings of the axes (data, partition, protocol, clients). Every trial runs
    in each of them, and the mean over them chooses. None: a search in each setting."""
    seed: Seed = 0
    """Seed of the sampler."""

    def __post_init__(self) -> None:
        if self.trials is not None and self.budget is not None:
            raise ValueError(
                f"A search has a number of trials or a budget, but has both: trials={self.trials} and "
                f"budget={self.budget:g}. Remove one, as search.trials=null does."
            )


@dataclass(frozen=True, config=SPEC)
class PruneSpec:
    """Early stopping of the trials of a search; cells of a grid always complete."""

    rule: Annotated[Literal["auto", "halving"] | None, PlainValidator(_rule)] = "auto"
    """halving (successive halving that pauses and resumes, with the seeds after the first as last rung), or None. auto:
    halving in a search for `val/acc_mean`, alone or with costs (`comm/...`, `cost/...`), by tpe, gp, random or qmc,
    where a validated round precedes the last one; else None."""
    reduction: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """Reduction factor of successive halving: the best 1 / `reduction` continue at each rung."""
    first_rung: AtLeastOne | None = None
    """Round of the first rung; None: 1 / `reduction` of the rounds. Each rung moves to the next validated round."""
    hedge: AtLeastOne | Literal["auto"] | None = "auto"
    """In a search with halving, every `hedge`-th suggested trial passes all rungs of rounds, in case early rounds
    mislead; the rung of seeds applies to it. auto: 3; None: no trial."""


@dataclass(frozen=True, config=SPEC)
class ExecutionSpec:
    """Execution of trials. Not part of a cell's identity."""

    executor: Literal["ray", "inline"] = "ray"
    """ray: trials run in processes that Ray Tune places on the machine or the cluster; inline: one after another in
    this process, which a debugger can follow."""
    address: str | None = None
    """Ray cluster: None starts one on this machine, or uses the Ray of this process, such as a Tuner's; `auto` or
    host:port joins one."""
    parallel: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number of concurrent trials; None: as many as cores and GPUs allow."""
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """CPU threads per trial; None: one for the compact towers and on a GPU, up to four for large ones."""
    gpus: Annotated[float, Field(ge=0, le=1_024)] | None = None
    """GPUs per trial; None: the share that its estimated memory takes where there is a GPU, else 0."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of trials; auto: a GPU if there is one, else the CPU."""
    block: AtLeastOne | None = None
    """Number of clients (over all seeds) that are trained in parallel; None: as many as memory allows."""
    graphs: Literal["auto"] | bool = "auto"
    """True to record steps once as a CUDA graph and replay them; auto: on CUDA, if that saves time."""
    checkpoint_every: AtLeastOne = 5
    """Rounds between checkpoints."""
    checkpoints: str | None = None
    """Storage of checkpoints. None: the study's folder, which all nodes of a cluster must share; else an fsspec URL
    such as s3://bucket/studies."""
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of retries of a failed trial."""


_EXPERIMENT_LENGTH = 200
"""MLflow's names have up to 250 characters, of which a study's name may take a hundred."""


def _with_study(text: str) -> str:
    if text.count("{study}") != 1 or len(text) > _EXPERIMENT_LENGTH:
        raise ValueError(
            f"has {{study}} once, as each study has an experiment of its own, and at most {_EXPERIMENT_LENGTH} "
            f"characters, but is {text!r}"
        )
    return text


@dataclass(frozen=True, config=SPEC)
class TrackingSpec:
    """MLflow, at MLFLOW_TRACKING_URI, else SQLite in the output folder."""

    enabled: bool = True
    """True to record the study in MLflow."""
    experiment: Annotated[str, AfterValidator(_with_study)] = "{study}"
    """Name of its experiment, with {study} for the study's name, such as fpl/{study}."""


@dataclass(frozen=True, config=SPEC)
class ClaimSpec:
    """One claim: each of `cells` is better than each of `versus` by more than a margin, or equal to it."""

    says: Annotated[str, Field(min_length=1)]
    """The claim in one sentence."""
    cells: Annotated[Picks, Field(min_length=1)]
    """Cells that are claimed to be better."""
    versus: Annotated[Picks, Field(min_length=1)]
    """Cells that they are compared with; on axes that it does not name, they have the values of `cells`."""
    source: str = ""
    """Table or figure of the paper that shows it."""
    at: Picks = field(default_factory=dict)
    """Values of axes that both sides share."""
    margin: Points = 0.0
    """Minimum difference that supports the claim: in points for accuracies, in the metric's unit for others."""
    within: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Instead of a margin: the maximum difference, of either sign, at which cells count as equal."""
    metric: str | None = None
    """Metric of the comparison; None: the report's."""

    def __post_init__(self) -> None:
        if self.within is not None and self.margin:
            raise ValueError("A claim has a margin or a range `within`, but has both. Remove one.")


@dataclass(frozen=True, config=SPEC)
class ReportSpec:
    """The report: metric, rule, axis and reference."""

    metric: str = "test/acc_mean"
    """The metric that tables and charts show, by its name in the records."""
    rule: str = "final"
    """The round that is reported: `final`, `best_val` (the highest validation accuracy), or `best_test` and
    `mean_last5`, which read test metrics."""
    x: str | None = None
    """Axis of the curve; None: the first numeric axis."""
    reference: str | None = None
    """Label of the cell that others are compared with."""
    rope: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Region of practical equivalence: smaller differences of accuracies, in points, do not matter."""
    paper: dict[str, Any] = field(default_factory=dict)
    """{table: ..., protocol: ..., expected: "...", defects: [...]}: the printed figures the study answers to."""
    claims: dict[str, ClaimSpec] = field(default_factory=dict)
    """Name -> claim: statements that the report judges, see [Claims](studies.md#claims)."""


@dataclass(frozen=True, config=SPEC)
class StudySpec(Seeds, RunSpec):
    """A study: a run, what varies, and how it is searched, run and reported."""

    name: str = "study"
    """Name of the study and of its folder of results. Default: the name of the file."""
    title: str = ""
    """One line on what the study shows: the heading of its page."""
    note: str = ""
    """A remark for readers of the file."""
    axes: dict[str, Any] = field(default_factory=dict)
    """Dotted field (or group) -> list of values. The study runs every combination. A value may be a mapping of the
    fields that it sets and a `label`, which names it in tables, figures and MLflow: {label: Ours, method: "mine:Mine"}.
    """
    references: list[Any] = field(default_factory=list)
    """Overrides of cells shown as reference lines, e.g. {method: promptfl}."""
    seeds: Annotated[int | list[int] | str, PlainValidator(_seeds)] = 3
    """Number of seeds (1..n), a list of seeds, or `until_decided`: the seeds of the first of `looks`, then, look by
    look, further seeds of the cells whose comparison with the reference is not decided."""
    looks: Annotated[list[int], AfterValidator(_looks)] = field(default_factory=lambda: list(LOOKS))
    """Numbers of seeds after which `seeds=until_decided` compares, fixed once there are results. Each look has its
    share of the error: with five looks, intervals are of 99 %, so all verdicts hold jointly at the 95 % level."""
    scale: Literal["small", "paper"] = "small"
    """small: the embedded data; paper: the overrides in `paper_scale` are applied."""
    paper_scale: list[str] = field(default_factory=list)
    """Overrides applied by scale=paper."""
    let: dict[str, Any] = field(default_factory=dict)
    """Values that the file uses in several places as ${let.<name>}, e.g. those that scale=paper changes inside axes."""
    search: SearchSpec = field(default_factory=SearchSpec)
    """The search of the method's space; its fields are below."""
    prune: PruneSpec = field(default_factory=PruneSpec)
    """Early stopping of trials; its fields are below."""
    execution: ExecutionSpec = field(default_factory=ExecutionSpec)
    """Execution of trials; its fields are below."""
    tracking: TrackingSpec = field(default_factory=TrackingSpec)
    """Recording in MLflow; its field is below."""
    report: ReportSpec = field(default_factory=ReportSpec)
    """Content of the page and the tables; its fields are below."""
    ablate: Literal["best"] | None = None
    """best: also run the steps from the published point of a finished search to its best cell, one field at a time."""


@dataclass(frozen=True, config=SPEC)
class Study(StudySpec):
    """A study with the plain dict from which it was composed, whose run the axes, references and searches vary."""

    node: dict[str, Any] = field(default_factory=dict, repr=False)
    """The plain dict. Fields that depend on varied ones, such as rates of `optim=tuned`, are open. Copy before
    changing."""


RUN_FIELDS = tuple(f.name for f in fields(RunSpec))
