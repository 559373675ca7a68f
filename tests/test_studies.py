"""Every study file: composes at both scales, answers to printed figures that exist, and runs a round."""

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fpl_tune import config, methods
from fpl_tune.config import RunSpec, Study
from fpl_tune.core.files import save_tensors
from fpl_tune.core.paths import list_studies
from fpl_tune.execute.plan import preflight
from fpl_tune.findings import claims, rates
from fpl_tune.findings.names import without_data
from fpl_tune.report.paper import BEST, printed_results
from fpl_tune.search.compose import compose
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.simulation.worlds import needs_of
from fpl_tune.study.cells import Cell

from .conftest import Asked

PAPERS = """
pfedmoap_t1 pfedmoap_t2 pfedmoap_t3 pfedmoap_t4 pfedmoap_t6 pfedmoap_t7 pfedmoap_t8 pfedmoap_t9 pfedmoap_f3 pfedmoap_f4
pfedmoap_f5 pfedmoap_f6 pfedprompt_t1 pfedprompt_t2 pfedprompt_t4 pfedprompt_t5 pfedprompt_t6 pfedprompt_f4
pfedprompt_f5 pfedprompt_f6 fedpgp_t1 fedpgp_t2 fedpgp_t3 fedpgp_t4 fedpgp_t5 fedpgp_t6 fedpgp_t7 fedpgp_t9 fedpgp_t11
fedpgp_f2 fedpgp_f4 feddpt_t1 feddpt_t2 feddpt_t3 feddpt_t4a feddpt_t4b feddpt_t4c feddpt_t4d feddpt_t5 feddpt_t6
fedapt_t1 fedapt_t2 fedapt_t3 fedapt_t4 fedapt_t5 fedapt_t6 fedapt_t8 fedapt_t9 fedapt_t10 fedapt_f5 fedapt_f6
fedmgp_t1 fedmgp_t2 fedtpg_sets fedtpg_cross pfedmma_sets fedmvp_domains tofa_sets
""".split()
"""Tables and figures with experiments of the papers, as far as they are valid targets."""
TABLES = [name for name in PAPERS if not re.search(r"_f\d", name)]
NATURAL = [name for name in list_studies() if name.startswith("natural_")]
"""Studies of real images: in part on a user's data, by weights that are not CLIP's."""
OURS = (
    "claims lambda_sweep mu_sweep rank_sweep joint_search zoo zoo2026 defects trade_off within_budget privacy".split()
)
STUDIES = sorted({*PAPERS, *OURS, *list_studies()})

Composed = tuple[Study, list[Cell]]


_composed: dict[str, dict[str, Composed]] = {"small": {}, "paper": {}}


def composed(name: str, scale: str) -> Composed:
    if name not in _composed[scale]:
        with warnings.catch_warnings():
            if name in ("fedapt_t1", "fedapt_t10") and scale == "small":  # the embedded world has one backbone for two
                warnings.filterwarnings("ignore", "'ViT-.*' has the same configuration as 'ResNet-")
            study = compose(name, [f"scale={scale}"])  # warns of settings without effect: warnings are errors
        _composed[scale][name] = study.spec, study.cells
    return _composed[scale][name]


@pytest.fixture(autouse=True, scope="module")
def _composed_once() -> Iterator[None]:
    """The cells of all studies take 200 MB, which no other module needs."""
    yield
    for made in _composed.values():
        made.clear()


@pytest.fixture(scope="module")
def _papers_freed() -> None:
    """Nothing trains at the papers' scale."""
    _composed["paper"].clear()


def header(name: str) -> str:
    lines = list_studies()[name].read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(lines[:end])


@pytest.mark.parametrize("name", STUDIES)
def test_header_names_command_and_cost(name: str) -> None:
    said = header(name)
    assert f"fpl-tune study {name}" in said
    assert "Cost:" in said
    if composed(name, "small")[0].paper_scale:
        assert "scale=paper" in said or "whose file says more" in said
        assert "scale=paper departs from the paper: " in said or "whose file says more" in said


# -- configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_claims_have_cells(name: str) -> None:
    spec, cells = composed(name, "small")
    claims.check(spec, cells)
    assert all(claim.source for claim in spec.report.claims.values())


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.filterwarnings("ignore:partition.compat_|data.permute_classnames")
def test_small_cells_fit_their_task(name: str) -> None:
    spec, cells = composed(name, "small")
    assert len({cell.label for cell in cells}) == len(cells) >= 1
    ours = [cell for cell in cells if cell.run.data.name == "shapes"]
    assert {cell.run.clip.name for cell in ours} == ({"compact"} if name != "natural_zoo" else set())
    assert {cell.run.clip.name for cell in cells if cell not in ours} == ({"natural"} if name in NATURAL else set())
    if spec.search.sampler is None:
        assert spec.report.x is None or any(spec.report.x in cell.varied for cell in ours)
        preflight.check([cell.run for cell in ours])
    else:
        search = Search.plan(spec)
        assert search is not None
        assert len(search.parts) == sum(cell.role == "cell" for cell in cells)


def test_studies_of_one_optimiser_and_its_protocol_say_nothing_of_rates() -> None:
    said = {name for name in list_studies() if rates.note(*composed(name, "small"))}
    known = "feddpt_t1 feddpt_t2 feddpt_t5 feddpt_t6 zoo zoo2026 pfedmoap_f6 robust_table robust_rules backdoor dropout"
    assert said == {*known.split()}


# Facts of OpenAI's towers: widths of embedding, text and vision, patches, blocks of text and vision.
TOWERS = {
    "RN50": (1024, 512, None, 49, None),
    "ViT-B-16": (512, 512, 768, 196, 12),
    "ViT-B-32": (512, 512, 768, 49, 12),
}
DOMAINS = {"domainnet": 6, "office_caltech10": 4, "officehome": 4, "pacs": 4, "vlcs": 4, "terra_incognita": 4}


def paper_sizes(run: RunSpec) -> Any:
    embed, text, vision, patches, blocks = TOWERS[run.clip.name]
    partition, domains = run.partition, DOMAINS.get(run.data.name, 1) - len(run.partition.held_out)
    clients = {"domain": domains, "domain_dirichlet": domains * (partition.n_clients or 0)}.get(partition.name)
    return SimpleNamespace(
        n_clients=clients if clients is not None else partition.n_clients or 0,
        n_classes=10, n_domains=domains, embed_dim=embed, text_width=text, vision_width=vision, n_patches=patches,
        n_text_blocks=12, n_vision_blocks=blocks, same_classes=partition.evaluation != "base_to_novel",
    )  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_paper_scale_is_the_papers_data_and_towers(name: str) -> None:
    spec, cells = composed(name, "paper")
    assert spec.paper_scale
    for cell in cells:
        assert cell.run.data.name != "shapes", cell.label
        assert cell.run.optim.lr < 0.02, cell.label  # the drawn world's rate
        for stage in cell.run.stages:
            stage.method.check(paper_sizes(cell.run))
            assert stage.method.needs != "patches" or cell.run.clip.name in TOWERS


@pytest.mark.parametrize(
    "name",
    "zoo zoo2026 defects privacy joint_search trade_off within_budget fedmgp_ablation".split()
    + "robust_table robust_rules dropout backdoor".split(),
)
def test_paper_scale_of_our_own_studies(name: str) -> None:
    spec, cells = composed(name, "paper")
    assert "shapes" not in {cell.run.data.name for cell in cells}
    if spec.search.sampler is not None:
        assert Search.plan(spec) is not None


# -- printed figures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_printed_rows_have_cells(name: str) -> None:
    spec, cells = composed(name, "paper")
    asked: Mapping[str, Any] = spec.report.paper
    assert asked["expected"]
    results = list(printed_results(asked, spec.report.metric))
    assert spec.report.metric in {metric for metric, _, _ in results}
    labels = {without_data(cell) for cell in (*cells, *composed(name, "small")[1])}
    assert {cell for _, cell, _ in results} <= {*labels, BEST}
    data = {name for c in cells for name in (c.run.data.name, c.run.data.name + c.run.data.classes)}
    printed = {figure.place.partition("/")[0] for _, _, figures in results for figure in figures}
    assert data & printed or printed == {"average"}


def test_printed_values_are_those_of_the_papers() -> None:
    """How many values each paper prints, and their sum: a slip of the pen in a study file shows here."""
    found: dict[str, list[float]] = {}
    for name in TABLES:
        spec, _ = composed(name, "paper")
        rows = printed_results(spec.report.paper, spec.report.metric)
        found.setdefault(spec.report.paper["paper"], []).extend(f.mean for _, _, figures in rows for f in figures)
    assert {paper: (len(values), round(sum(values), 2)) for paper, values in found.items()} == PRINTED


PRINTED = {
    "Fed-DPT": (241, 16111.2),
    "FedAPT": (591, 47720.76),
    "FedMGP": (93, 6727.09),
    "FedMVP": (20, 1399.44),
    "FedPGP": (544, 44191.33),
    "FedTPG": (53, 3938.82),
    "TOFA": (15, 1208.87),
    "pFedMMA": (24, 1792.06),
    "pFedMoAP": (262, 16291.03),
    "pFedPrompt": (147, 11695.49),
}


@pytest.mark.parametrize("name", [n for n in PAPERS if n not in TABLES])
def test_figures_say_what_they_show(name: str) -> None:
    asked = composed(name, "paper")[0].report.paper
    number = re.fullmatch(r"\w+_f(\d+)", name)
    assert number
    assert str(asked["figure"]) == number.group(1)
    assert asked["expected"]
    assert str(asked["paper"]) in PRINTED


# -- a round -------------------------------------------------------------------------------------------------


def tiny(run: RunSpec) -> RunSpec:
    """The same run on a few images: one round of one epoch, each stage too, of a few clients; of all where some attack,
    as rules of robust aggregation need more updates than attackers."""
    fine, some = run.data.classes == "object", 1.0 if run.clients.malicious.share else 0.2
    deal = run.partition
    return replace(
        run,
        data=replace(
            run.data, shots=1, max_test=None, train_per_class=3 if fine else 6, test_per_class=1 if fine else 2
        ),
        # Even shares: an uneven draw of so few images leaves clients without one, and is drawn again.
        partition=replace(deal, alpha=deal.alpha and 100.0, min_size=deal.min_size and 1),
        optim=replace(run.optim, batch=min(run.optim.batch, 4)),
        protocol=replace(run.protocol, rounds=1, epochs=1, eval_every=1, participation=some, first_round_all=False),
        stages=tuple(replace(stage, rounds=1, epochs=1) for stage in run.stages),
    )


_ran: dict[str, tuple[list[Record], set[str]]] = {}


def what_trains(run: RunSpec) -> str:
    """The methods with their settings, their towers, and which classes they meet: cells that agree in it run once.

    But for numbers, which choose no path; data sets, partitions and rates are checked by `preflight` and by tests of
    their own.
    """
    node = config.as_dict(run)
    methods = [node["method"], *(stage["method"] for stage in node["stages"])]
    agree = [methods, node["clip"], node["data"]["classes"], node["partition"]["evaluation"]]
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "0", json.dumps(agree, default=str))


def one_round(cell: Cell, cache_dir: Path, folder: Path) -> tuple[list[Record], set[str]]:
    """Records of the cell's tiny run, and names of the leaves that it moved.

    What it learned is stored in the folder and read again.
    """
    run = tiny(cell.run)
    key = what_trains(run)
    if key not in _ran:
        trial = Simulation(run, [1], cache_dir=cache_dir)
        before = {name: leaf.clone() for name, leaf in trial.prompts()[1].items()}  # a round reuses their memory
        (records,) = trial.run_all()
        after = trial.prompts()[1]
        leaves, facts = trial.deployed()[1]
        save_tensors({**after, **leaves}, folder / "prompts.safetensors", facts)
        assert load_file(folder / "prompts.safetensors").keys() == {*after, *leaves}
        moved = {name for name, leaf in after.items() if name not in before or not torch.equal(leaf, before[name])}
        _ran[key] = records, moved
    return _ran[key]


@pytest.mark.usefixtures("_papers_freed")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OURS and name != "defects" else pytest.mark.system)
        for name in STUDIES
        if name not in ("pfedmoap_f4", "mu_sweep", "rank_sweep", "natural_zoo")
    ],
)
@pytest.mark.filterwarnings("ignore:partition.compat_|data.permute_classnames")
def test_one_round_of_every_method(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    spec, cells = composed(name, "small")
    if spec.search.sampler is not None:
        asked = Asked(spec)
        trials = islice(iter(asked.request, None), 4 * len(asked.search.parts))
        cells = [*(cell for cell in cells if cell.role == "reference"), *trials]
    first: dict[str, Cell] = {}
    for cell in cells:
        if cell.run.data.name != "shapes":
            continue
        first.setdefault(repr(kinds(cell)), cell)
    assert first
    for cell in sorted(first.values(), key=lambda cell: str(needs_of(cell.run))):  # one world is kept at a time
        records, moved = one_round(cell, tmp_path_factory.getbasetemp().parent / "features-of-studies", tmp_path)
        assert [record["round"] for record in records] == list(range(1, 1 + len(cell.run.stages))), cell.label
        for record in records:
            assert 0 <= record["test/acc_mean"] <= 1, cell.label
            assert math.isfinite(record.get("train/loss", 0.0)), cell.label
        assert bool(moved) == (methods.name_of(cell.run.method) != "zeroshot"), cell.label


def kinds(cell: Cell) -> list[str]:
    """Names of a cell's method and of what it wraps."""
    method, names = cell.run.method, []
    while method is not None:
        names.append(methods.name_of(method))
        method = getattr(method, "inner", None)
    return names
