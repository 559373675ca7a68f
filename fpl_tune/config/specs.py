"""The specifications of runs and studies."""

from __future__ import annotations

import itertools
from dataclasses import field, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass

from fpl_tune import methods
from fpl_tune.clip.sentences import Position
from fpl_tune.core.spec import LOOKS, SPEC, UNTIL_DECIDED, AtLeastOne, Rate, Seed, Seeds, with_place
from fpl_tune.data import DataSpec, PartitionSpec
from fpl_tune.method import Method

SEEDS = 10_000
"""Largest number of seeds of a study."""
Epochs = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)]
Rounds = Annotated[int, Field(ge=1, le=100_000)]
Points = Annotated[float, Field(allow_inf_nan=False)]
Picks = dict[str, Any]
"""Axis -> a value or a list of values. An axis may be named by its last part, a bundle by its label."""


def _rule(value: Any) -> Any:
    """Accepts `auto`, `halving` and None."""
    if value not in ("auto", "halving", None):
        raise ValueError(
            "must be auto, halving or null (other pruners and schedulers: in a program of your own, with "
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


def _looks(value: list[int]) -> list[int]:
    """Accepts growing numbers of seeds."""
    if not value or value[0] < 2 or value[-1] > SEEDS or any(a >= b for a, b in itertools.pairwise(value)):
        raise ValueError(f"must be growing numbers of seeds from 2 to {SEEDS}, such as [3, 5, 8, 12, 20]")
    return value


def _template(text: str) -> str:
    return text if text in ("generic", "dataset") else with_place(text, "'generic', 'dataset' or ")


@dataclass(frozen=True, config=SPEC)
class ClipSpec:
    """The frozen towers and how class names become prompts."""

    name: str = "compact"
    """`compact` (shipped), a model of open_clip (RN50, ViT-B-16, ...), or `local-dir:<folder>` for one of your own."""
    pretrained: str | None = None
    """None, an open_clip tag such as `openai`, or the path of a local checkpoint."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The towers' arithmetic. What is learned stays float32."""
    template: Annotated[str, AfterValidator(_template)] = "generic"
    """Hand-written prompts: `generic` ("a photo of a {}."), `dataset` (the data set's own), or a string with {}."""
    quick_gelu: Literal["auto", True, False] = "auto"
    """auto: what the name, the tag or the checkpoint says; true or false where they do not."""
    class_position: Position = "end"
    """Where the class name stands among the context tokens."""


@dataclass(frozen=True, config=SPEC)
class OptimSpec:
    """The clients' optimiser. Defaults are those of CoOp and its federated descendants (SGD)."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """adam adds the weight decay to the gradient, as SGD does; adamw decays the weights themselves."""
    lr: Rate = 0.002
    """Learning rate of every leaf that `groups` does not name. 0 trains nothing."""
    groups: dict[str, Rate] = field(default_factory=dict)
    """Learning rates by leaf name or by the part of it before the first dot, e.g. {gate: 0.01}."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum; 0 is plain gradient descent."""
    weight_decay: Rate = 5e-4
    """Weight decay of every leaf."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's and AdamW's."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's and AdamW's, added to the root of the second moment."""
    batch: AtLeastOne = 32
    """Images per step and client."""
    schedule: Literal["constant", "cosine", "rounds_cosine", "shared_cosine"] = "constant"
    """constant; cosine over a client's local epochs; rounds_cosine: over the rounds of a stage (FedTPG); shared_cosine:
    one cosine scheduler that all clients of all rounds step in turn, as the released code of PromptFL and pFedMoAP
    does (a client's rate then depends on its place), while the rates of `groups` stay constant."""

    def rate(self, leaf: str) -> float:
        """Learning rate of a leaf by its name."""
        return self.groups.get(leaf, self.groups.get(leaf.split(".")[0], self.lr))

    def follows(self, leaf: str) -> bool:
        """Whether a leaf's rate follows the schedule: the released shared scheduler belongs to one optimiser."""
        return self.schedule != "shared_cosine" or not {leaf, leaf.split(".")[0]} & self.groups.keys()


@dataclass(frozen=True, config=SPEC)
class ProtocolSpec:
    """The schedule of a simulation."""

    rounds: Rounds = 10
    """Communication rounds."""
    epochs: Epochs = 5.0
    """Local epochs per round; 0.5 goes through a half of a client's images in one round and the other in the next."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that train in a round, drawn without replacement."""
    sampling: Literal["uniform", "domain"] = "uniform"
    """uniform, or domain: the share is drawn among the clients of each domain, one of each at least."""
    first_round_all: bool = False
    """All clients train in round 1 whatever the participation, as the released FedOTP and FedPGP do."""
    eval_every: AtLeastOne = 1
    """Rounds between evaluations; the last round is always evaluated."""
    unseen: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the clients that never train, drawn by the seed, and are tested as new ones: `test/unseen/acc_mean`.

    Their main test set is scored by the models that new clients receive. Validation and other test sets are those of
    the clients that train."""
    global_model: bool = False
    """Whether the model that new clients receive is tested beside the personal ones: `test/global/acc_mean`.

    Testing on the main set then takes up to twice as long."""
    own_classes: bool = False
    """Whether clients are also tested among the classes of their own training images: `test/own_classes/acc_mean`.

    The images are those of the main test set that show such a class, as in FedTPG and FedMVP."""
    cross: list[str] = field(default_factory=list)
    """Other data sets whose test images are classified among their own classes: `test/cross/<name>/acc_mean`, and
    `test/cross/acc_mean`, their mean. `shapes/object` names a variant of the classes.

    Files are looked for as those of `data`, and `data.max_test` holds for them. Every client's model is tested on
    all images, which takes as long for each client where methods are personal or read pixels."""
    validation: Literal["own", "everyone"] = "own"
    """Images that a client's model is validated on: its own validation images, or, with `everyone`, those of all
    clients that train.

    `everyone` chooses what serves classes of other clients too, but no client of a real federation could compute it.
    Methods that validate by themselves still see their own clients' images."""


@dataclass(frozen=True, config=SPEC)
class Stage:
    """One stage of a run: most methods train in one."""

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
    method: Method = field(default_factory=_promptfl)
    stages: tuple[Stage, ...] = ()
    """In the order of training. In YAML each has a `method` (nothing: the run's own; `inner`: the one it wraps; fields
    that differ from it; or another one with its `name`), and `rounds` and `epochs` (nothing: the protocol's). An empty
    list is one stage of `protocol.rounds` rounds."""

    @property
    def learns(self) -> bool:
        """Whether any stage trains anything."""
        return any(stage.method.learns for stage in self.stages)

    @property
    def rounds(self) -> int:
        """Communication rounds of all stages together; one where nothing is learned."""
        return sum(stage.rounds for stage in self.stages) if self.learns else 1


@dataclass(frozen=True, config=SPEC)
class SearchSpec:
    """The search of the method's space in each cell of the axes. Without a sampler there is no search."""

    sampler: Any = None
    """auto (gp for at most three fields without conditions and one objective, in its first 250 trials; else tpe), a
    sampler of Optuna (tpe, gp, random, cma_es, nsgaii, qmc ...), of a plug-in or of `package.module:Class`;
    {name: ..., argument: ...} with arguments; None: no search."""
    trials: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Trials in each axis cell, the published defaults included. None: `budget`."""
    budget: Annotated[float, Field(ge=1, le=100_000)] | None = None
    """Instead of `trials`: as many trials in each axis cell as this number of full ones pays, of all rounds and seeds.
    None for both: a budget of 20 where halving stops trials early, else 20 trials."""
    space: dict[str, Any] = field(default_factory=dict)
    """Overrides of the space in search_spaces/<method>.yaml, by dotted field."""
    only: list[str] = field(default_factory=list)
    """Dotted fields searched; empty: the whole space."""
    objectives: list[str] = field(default_factory=lambda: ["val/acc_mean"])
    """Validation metrics or costs (`comm/total_bytes`, `time/seconds`), each in its direction.

    One chooses the best cell; several leave a front."""
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
    """Early stopping of the trials of a search; cells of a grid run whole."""

    rule: Annotated[Literal["auto", "halving"] | None, PlainValidator(_rule)] = "auto"
    """halving (successive halving that pauses and resumes, with the seeds after the first as last rung), or None. auto:
    halving in a search for `val/acc_mean` by tpe, gp, random or qmc, where a validated round precedes the last one;
    else None."""
    reduction: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """Reduction factor of successive halving: the best 1 / `reduction` continue at each rung."""
    first_rung: AtLeastOne | None = None
    """Round of the first rung; None: 1 / `reduction` of the rounds. Each rung moves to the next validated round."""
    hedge: AtLeastOne | Literal["auto"] | None = "auto"
    """In a search with halving, every `hedge`-th trial that is suggested passes all rungs of rounds, in case that early
    rounds mislead; the rung of seeds stays. auto: 3; None: no trial."""


@dataclass(frozen=True, config=SPEC)
class ExecutionSpec:
    """Execution of trials. Not part of a cell's identity."""

    executor: Literal["ray", "inline"] = "ray"
    """ray: trials run in processes that Ray Tune places on the machine or the cluster; inline: one after another in
    this process, which a debugger can follow."""
    address: str | None = None
    """Ray cluster: None starts one on this machine; `auto` or host:port joins one."""
    parallel: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Trials at once; None: as many as cores and GPUs allow."""
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """CPU threads per trial; None: one for the compact towers and on a GPU, up to four for large ones."""
    gpus: Annotated[float, Field(ge=0, le=1_024)] | None = None
    """GPUs per trial; None: the share that its estimated memory takes where there is a GPU, else 0."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where trials compute; auto: on a GPU if there is one, else on the CPU."""
    block: AtLeastOne | None = None
    """Clients (over all seeds) trained at once; None: as many as memory allows."""
    graphs: Literal["auto"] | bool = "auto"
    """Whether steps are recorded once as a CUDA graph and replayed; auto: on CUDA, where that saves time."""
    checkpoint_every: AtLeastOne = 5
    """Rounds between checkpoints."""
    checkpoints: str | None = None
    """Storage of checkpoints: None is the study's folder, which all nodes of a cluster must share; else an fsspec URL
    such as s3://bucket/studies."""
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    """Retries of a failed trial."""


@dataclass(frozen=True, config=SPEC)
class TrackingSpec:
    """MLflow, at MLFLOW_TRACKING_URI, else SQLite in the output folder."""

    enabled: bool = True
    """Whether the study is recorded in MLflow."""


@dataclass(frozen=True, config=SPEC)
class ClaimSpec:
    """One claim: each of `cells` is better than each of `versus` by more than a margin, or level with it."""

    says: Annotated[str, Field(min_length=1)]
    """The claim in one sentence."""
    cells: Annotated[Picks, Field(min_length=1)]
    """Cells that are claimed to be better."""
    versus: Annotated[Picks, Field(min_length=1)]
    """Cells that they are compared with; on axes that it does not name, they stand where `cells` stand."""
    source: str = ""
    """Table or figure that shows it."""
    at: Picks = field(default_factory=dict)
    """Values of axes that both sides share."""
    margin: Points = 0.0
    """Smallest difference that supports the claim: points of accuracies, units of other metrics."""
    within: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Instead of a margin: the largest difference, of either sign, at which cells count as level."""
    metric: str | None = None
    """None: the report's."""

    def __post_init__(self) -> None:
        if self.within is not None and self.margin:
            raise ValueError("A claim has a margin or a range `within`, but has both. Remove one.")


@dataclass(frozen=True, config=SPEC)
class ReportSpec:
    """The report: metric, rule, axis and reference."""

    metric: str = "test/acc_mean"
    """The metric that tables and charts show, by its name in the records."""
    rule: str = "final"
    """The round that counts: `final`, `best_val` (the highest validation accuracy), or `best_test` and `mean_last5`,
    which read test figures."""
    x: str | None = None
    """Axis of the curve; None: the first numeric axis."""
    reference: str | None = None
    """Cell label that others are tested against."""
    rope: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Region of practical equivalence: smaller differences of accuracies, in points, do not matter."""
    paper: dict[str, Any] = field(default_factory=dict)
    """{table: ..., protocol: ..., expected: "...", defects: [...]}: the printed figures the study answers to."""
    claims: dict[str, ClaimSpec] = field(default_factory=dict)
    """Name -> claim: qualitative statements that the report judges; see `ClaimSpec`."""


@dataclass(frozen=True, config=SPEC)
class StudySpec(Seeds, RunSpec):
    """A study: a run, what varies, and how it is searched, run and reported."""

    name: str = "study"
    """Name of the study and of its folder of results. The default takes the name of the file."""
    title: str = ""
    """What the study shows, in a line: the heading of its page."""
    note: str = ""
    """A remark for readers of the file."""
    axes: dict[str, Any] = field(default_factory=dict)
    """Dotted field (or group) -> list of values; always gridded."""
    references: list[Any] = field(default_factory=list)
    """Overrides of cells shown as reference lines, e.g. {method: promptfl}."""
    seeds: Annotated[int | list[int] | str, PlainValidator(_seeds)] = 3
    """Number of seeds (1..n), a list of seeds, or `until_decided`: the seeds of the first of `looks`, then, look by
    look, further ones of the cells whose comparison with the reference is not decided."""
    looks: Annotated[list[int], AfterValidator(_looks)] = field(default_factory=lambda: list(LOOKS))
    """Numbers of seeds after which `seeds=until_decided` compares, fixed once there are results. Each look has its
    share of the error: five have intervals of 99 %, so that all verdicts hold together with 95 %."""
    scale: Literal["small", "paper"] = "small"
    """small (embedded world) or paper: a `paper` block of overrides in the study file replaces the small one."""
    paper_scale: list[str] = field(default_factory=list)
    """Overrides applied by scale=paper."""
    let: dict[str, Any] = field(default_factory=dict)
    """Values that the file names in several places as ${let.<name>}, e.g. what scale=paper changes inside axes."""
    search: SearchSpec = field(default_factory=SearchSpec)
    """The search of the method's space; its fields are below."""
    prune: PruneSpec = field(default_factory=PruneSpec)
    """Early stopping of trials; its fields are below."""
    execution: ExecutionSpec = field(default_factory=ExecutionSpec)
    """How trials are run; its fields are below."""
    tracking: TrackingSpec = field(default_factory=TrackingSpec)
    """Recording in MLflow; its field is below."""
    report: ReportSpec = field(default_factory=ReportSpec)
    """What the page and the tables show; its fields are below."""
    ablate: Literal["best"] | None = None
    """best: also runs the steps from the published point of a finished search to its best cell, one field at a time."""

    def most_together(self) -> int:
        """The largest number of seeds that a cell trains side by side."""
        looks = self.declared_looks()
        return max(b - a for a, b in zip((0, *looks), looks, strict=False)) if looks else len(self.seed_list())


@dataclass(frozen=True, config=SPEC)
class Study(StudySpec):
    """A study with the plain dict that it was composed of, whose run the axes, references and searches vary."""

    node: dict[str, Any] = field(default_factory=dict, repr=False)
    """Partly open where the run depends on what varies, such as the rates of `optim=tuned`. Copy before changing."""


RUN_FIELDS = tuple(f.name for f in fields(RunSpec))
