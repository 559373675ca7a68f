"""What many methods have in common: published numbers of parameters, averages, collapses, states that fit a server."""

from typing import Any

import pytest
import torch

from fpl_tune import methods
from fpl_tune.method import Method, generator
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.fedamp import FedAMP
from fpl_tune.methods.fedpgp import FedPGP
from fpl_tune.methods.kgcoop import KgCoOp
from fpl_tune.methods.prograd import ProGrad
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.testing import play, toy_task
from fpl_tune.wrappers.finetuned import FineTuned

# Name, options, sizes that differ from DomainNet's under ViT-B, and scalars that a client sends and receives.
SENT: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, int] | int]] = [
    ("capt", {}, {"n_classes": 100}, 548_096 + 100),  # and the histogram of labels
    ("clip_fc", {}, {}, 262_656),
    ("dpfpl", {}, {}, {"prompt": 8_192}),
    ("fedapt", {}, {}, 2_829_312),
    ("fedapt", {"keys": "none"}, {}, 2_826_240),  # Table 1: 2.829 and, without keys, 2.826 million
    ("fedapt", {"n_ctx": 8}, {}, 1_416_192),
    ("fedapt_unsupervised", {}, {}, 11_264),
    ("fedapt_unsupervised", {"keys": "none"}, {}, 8_192),  # section 5.2: 0.011 and, without keys, 0.008 million
    ("fedclip", {}, {}, 525_312),
    ("fedcocoop", {"words": ""}, {}, 33_312 + 4 * 512),
    ("fedlora", {}, {}, 24_576),
    ("fedmap", {}, {}, 12 * 768 + 345 * 512 + 345),  # prompts, prototypes and which classes were seen
    # MaPLe's paper counts 3.55 M parameters: nine prompts of 2 x 512 and nine maps from 512 to 768.
    ("fedmaple", {"words": ""}, {}, 9 * 2 * 512 + 9 * (512 * 768 + 768)),
    ("fedmgp", {}, {}, 5_120),
    ("fedmvp", {}, {}, 9_845_760),
    ("fedper", {}, {}, {"base": 4_096}),
    ("fedpgp", {}, {}, {"prompt": 8_192}),
    ("fedpha", {}, {}, {"prompt": 8_192}),
    ("fedsept", {}, {}, {"a": 4 * 16 * 16}),
    ("focoop", {}, {}, (345 + 100) * 8_192),
    ("fedtpg", {}, {}, 4_206_080),
    ("ivlp", {"words": ""}, {}, 2_560),  # FedMGP's baseline
    ("ivlp", {"n_ctx": 4, "n_tokens": 4, "depth": 9, "words": ""}, {}, 46_080),  # PromptSRC's
    ("kgcoop", {"words": ""}, {}, {"prompt": 2_048}),
    ("linear_head", {}, {}, 176_985),
    ("linear_head", {}, {"embed_dim": 2048}, 706_905),
    ("pfedmma", {}, {}, 8_448),
    ("pfedpg", {}, {}, {"visual": 7_680}),  # Table 1
    ("plot", {}, {}, {"prompt": 32_768}),
    ("prograd", {"words": ""}, {}, {"prompt": 2_048}),
    ("promptfolio", {}, {}, {"prompt": 8_192}),
    ("promptsrc", {"words": ""}, {}, 46_080),
    ("sgpt", {}, {}, (4 + 20 * 3) * 768 + 20 * 512 + 20),  # prompts, keys and how often groups were chosen
    ("vpt", {}, {}, {"visual": 3_072}),  # FedMGP's baseline sends 4 tokens of width 768; deep prompts J times as many
    ("vpt", {"depth": 9}, {}, {"visual": 27_648}),
]


@pytest.mark.parametrize(("name", "fields", "sizes", "wanted"), SENT)
def test_sent_scalars_are_the_published_ones(name, fields, sizes, wanted, paper_task) -> None:
    known = {"hand_text": torch.zeros(345, 512), "words": lambda _: torch.zeros(2, 512)}
    task, method = paper_task(**known, **sizes), methods.build({"name": name, **fields})
    sent = method.traffic(task, method.init(task, generator("size")), torch.arange(6))
    for way in sent:
        assert (way if isinstance(wanted, dict) else sum(way.values())) == wanted


@pytest.mark.parametrize(
    ("name", "fields", "wanted"),
    [
        ("fedmgp", {}, 12_800),  # five groups of texts and images
        ("fedpgp", {}, 4_224),
        ("fedpgp", {"rank": "full"}, 8_192),
        ("pfedmma", {}, 674_560 - 8_448),
    ],
)
def test_personal_scalars_are_the_published_ones(name, fields, wanted, paper_task) -> None:
    task, method = paper_task(words=lambda _: torch.zeros(2, 512)), methods.build({"name": name, **fields})
    personal = method.init(task, generator("size")).personal
    assert sum(leaf[0].numel() for leaf_name, leaf in personal.items() if "place" not in leaf_name) == wanted


BY_SIZE = "fedcocoop fedlora fedmaple fedotp fedper full_model ivlp linear_head pfedmoap plot promptfl promptfolio vpt"
UNIFORM = "clip_fc fedapt fedapt_unsupervised fedclip fedclip_unsupervised fedmvp fedtpg pfedprompt"
SMALL = {"words": "", "depth": 2, "experts": 3, "heads": 1}
ENDS = {"size": 2.0, "uniform": 3.0}
"""The average of leaves of ones and of fives, of clients with 9 and with 3 images."""


@pytest.mark.parametrize("name", [*BY_SIZE.split(), *UNIFORM.split()])
def test_what_is_shared_is_averaged_and_what_is_personal_stays(name: str) -> None:
    """By the paper's weights, and by the others where there is a choice."""
    fields = {f.name for f in methods.hyper_parameters(methods.find(name))}
    small = {"name": name, **{field: value for field, value in SMALL.items() if field in fields}}
    found = [(methods.build(small), ENDS["size" if name in BY_SIZE.split() else "uniform"])]
    if "weights" in fields:
        found += [(methods.build({**small, "weights": weights}), wanted) for weights, wanted in ENDS.items()]
    for method, wanted in found:
        task, clients = toy_task(method.needs, sizes=(9, 5, 7, 3)), torch.tensor([0, 3])
        state = method.init(task, generator("merge"))
        local = method.start(task, state, clients)
        ends = torch.tensor([1.0, 5.0], dtype=task.dtype)
        train = {n: ends.view(2, *[1] * (leaf.ndim - 1)).expand_as(leaf).clone() for n, leaf in local.params.items()}
        merged = method.merge(task, state, clients, local._replace(params=train))
        for leaf in merged.shared.values():
            torch.testing.assert_close(leaf, torch.full_like(leaf, wanted))
        for leaf in train.keys() & state.personal.keys() - {"gate.weight", "gate.bias"}:  # they rest in the first round
            assert torch.equal(merged.personal[leaf][clients], train[leaf])


PROMPT, ALONE = PromptFL(n_ctx=2), CoOp(n_ctx=2)
SAME: list[tuple[Method, Method]] = [
    (FedAMP(n_ctx=2, lam=0.0), ALONE),
    (FedPGP(n_ctx=2, mu=0.0, rank=0), PROMPT),
    (FineTuned(PROMPT), ALONE),
    (KgCoOp(w=0.0, n_ctx=2, words=""), PROMPT),
    (KgCoOp(w=0.0, n_ctx=2, words="", weights="uniform"), PromptFL(n_ctx=2, weights="uniform")),
    (ProGrad(lam=0.0, n_ctx=2, words=""), PROMPT),
    (ProGrad(lam=0.0, n_ctx=2, words="", form="distil"), PROMPT),
]


@pytest.mark.parametrize(("method", "plain"), SAME, ids=str)
def test_without_its_term_a_method_is_the_plain_one(method: Method, plain: Method) -> None:
    task = toy_task()
    found, wanted = (play(m, [task])[-1][0] for m in (method, plain))
    for part, kept in zip(found, wanted, strict=True):
        own = {name.removeprefix("own."): leaf for name, leaf in part.items()}
        for name, leaf in kept.items():
            torch.testing.assert_close(own[name], leaf, rtol=0, atol=1e-10)
