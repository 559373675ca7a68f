"""Options and tasks that methods refuse, by the name of the field and with the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fpl_tune import methods
from fpl_tune.errors import ConfigError

OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("capt", {"n_own": 0}, "n_own must be >= 1, but is 0"),
    ("capt", {"prior": -1.0}, "prior must be >= 0"),
    ("capt", {"align": math.nan}, "align must be a finite number"),
    ("capt", {"temperature": 0}, "temperature must be > 0"),
    ("clip_fc", {"start_from": "zeros"}, "start_from 'zeros'"),
    ("coop", {"n_ctx": 0}, "n_ctx must be >= 1, but is 0"),
    ("dpfpl", {"rank": 17}, "rank must be 'full' or lie between 1 and method.n_ctx = 16, but is 17"),
    ("dpfpl", {"noise": 0.0}, "noise must be > 0"),
    ("dpfpl", {"clip": 0.0}, "clip must be > 0"),
    ("dpfpl", {"clip": math.inf}, "clip must be a finite number"),
    ("dpfpl", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedamp", {"lam": -1.0}, "lam must be >= 0"),
    ("fedamp", {"alpha": 0.0}, "alpha must be > 0"),
    ("fedamp", {"sigma": 0.0}, "sigma must be > 0"),
    ("fedapt", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedapt", {"temperature": -1.0}, "temperature must be > 0"),
    ("fedapt", {"keys": "ones"}, "keys 'ones'"),
    ("fedapt_unsupervised", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedapt_unsupervised", {"phase": 3}, "phase '3'"),
    ("fedapt_unsupervised", {"threshold": 1.0}, "threshold must be < 1"),
    ("fedapt_unsupervised", {"neighbours": -1}, "neighbours must be >= 0"),
    ("fedapt_unsupervised", {"disperse": -0.5}, "disperse must be >= 0"),
    ("fedapt_unsupervised", {"disperse": math.inf}, "disperse must be a finite number"),
    ("fedapt_unsupervised", {"temperature": 0.0}, "temperature must be > 0"),
    ("fedclip", {"form": "tanh"}, "form 'tanh'"),
    ("fedclip", {"objective": "mse"}, "objective 'mse'"),
    ("fedclip", {"weights": "median"}, "weights 'median'"),
    ("fedclip_unsupervised", {"phase": 3}, "phase '3'"),
    ("fedclip_unsupervised", {"threshold": 1.0}, "threshold must be < 1"),
    ("fedclip_unsupervised", {"neighbours": -1}, "neighbours must be >= 0"),
    ("fedclip_unsupervised", {"disperse": -1}, "disperse must be >= 0"),
    ("fedcocoop", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedcocoop", {"reduction": 0}, "reduction must be >= 1"),
    ("feddpt", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("feddpt", {"temperature": 0.0}, "temperature must be > 0"),
    ("feddpt", {"momentum": 1.0}, "momentum must be < 1"),
    ("feddpt", {"visual_momentum": -0.1}, "visual_momentum must be >= 0"),
    ("feddpt", {"visual": "none"}, "text must be shared or hand where visual is none"),
    ("feddpt", {"attention": "euclid"}, "attention 'euclid'"),
    ("fedlora", {"rank": 0}, "rank must be >= 1"),
    ("fedlora", {"alpha": -1.0}, "alpha must be >= 0"),
    ("fedmaple", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedmaple", {"depth": 0}, "depth must be >= 1"),
    ("fedmgp", {"groups": 0}, "groups must be >= 1"),
    ("fedmgp", {"select": 6}, "select must be at most method.groups = 5, but is 6"),
    ("fedmgp", {"temperature": 0.0}, "temperature must be > 0"),
    ("fedmgp", {"lam": -1.0}, "lam must be >= 0"),
    ("fedmgp", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedmgp", {"words": ""}, "words must not be empty"),
    ("fedmvp", {"n_tokens": 0}, "n_tokens must be >= 1"),
    ("fedmvp", {"consistency": -1.0}, "consistency must be >= 0"),
    ("fedmvp", {"attributes": ["red"]}, "attributes.0 must have {} for the class name, but is 'red'"),
    ("fedotp", {"gamma": 1.1}, "gamma must be <= 1, but is 1.1"),
    ("fedotp", {"epsilon": 0.0}, "epsilon must be >= 0.005, but is 0.0"),
    ("fedotp", {"iterations": 0}, "iterations must be >= 1"),
    ("fedper", {"n_own": 17}, "n_own must be at most method.n_ctx = 16, but is 17"),
    ("fedper", {"n_own": -1}, "n_own must be >= 0"),
    ("fedper", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedpgp", {"mu": -1.0}, "mu must be >= 0"),
    ("fedpgp", {"temperature": 0.0}, "temperature must be > 0, but is 0.0"),
    ("fedpgp", {"copies": 0}, "copies must be >= 1, but is 0"),
    ("fedpgp", {"signs": "printed"}, "signs must be 'meant' unless method.pairs is negative or positive"),
    ("fedpgp", {"rank": 17}, "rank must be 'full' or lie between 0 and method.n_ctx = 16, but is 17"),
    ("fedpha", {"alpha": 2.5}, "alpha must be <= 2, but is 2.5"),
    ("fedpha", {"ratio": 0.0}, "ratio must be > 0"),
    ("fedpha", {"pull": -1.0}, "pull must be >= 0"),
    ("fedpha", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedpha", {"lengths": [4, 0]}, "lengths.1 must be >= 1, but is 0"),
    ("fedtpg", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("fedtpg", {"heads": 0}, "heads must be >= 1"),
    ("ivlp", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("ivlp", {"n_tokens": 0}, "n_tokens must be >= 1"),
    ("ivlp", {"depth": 0}, "depth must be >= 1"),
    ("kgcoop", {"w": -1.0}, "w must be >= 0"),
    ("kgcoop", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("pfedmma", {"blocks": 0}, "blocks must be >= 1"),
    ("pfedmma", {"rank": 0}, "rank must be >= 1"),
    ("pfedmma", {"alpha": -1.0}, "alpha must be >= 0"),
    ("pfedmoap", {"lam": -0.1}, "lam must be >= 0, but is -0.1"),
    ("pfedmoap", {"experts": 1}, "experts must be >= 2"),
    ("pfedmoap", {"heads": 5, "d_gating": 128}, "d_gating must be a multiple of method.heads = 5"),
    ("pfedmoap", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("pfedmoap", {"attention_scale": math.inf}, "attention_scale must be a finite number, but is inf"),
    ("pfedprompt", {"alpha": -1.0}, "alpha must be >= 0, but is -1.0"),
    ("pfedprompt", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("plot", {"prompts": 0}, "prompts must be >= 1, but is 0"),
    ("plot", {"epsilon": 0.001}, "epsilon must be >= 0.005"),
    ("plot", {"iterations": 0}, "iterations must be >= 1"),
    ("plot", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("prograd", {"lam": 1.5}, "lam must be <= 1, but is 1.5"),
    ("prograd", {"temperature": 0.0}, "temperature must be > 0"),
    ("prograd", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("promptfl", {"n_ctx": 0}, "n_ctx must be >= 1, but is 0"),
    ("promptfolio", {"theta": 1.5}, "theta must be <= 1, but is 1.5"),
    ("promptfolio", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("promptsrc", {"n_ctx": 0}, "n_ctx must be >= 1"),
    ("promptsrc", {"text": -1.0}, "text must be >= 0"),
    ("promptsrc", {"agreement": math.inf}, "agreement must be a finite number"),
    ("promptsrc", {"spread": 0.0}, "spread must be > 0"),
    ("promptsrc", {"templates": ["a photo"]}, "templates.0 must have {} for the class name"),
    ("promptsrc", {"gaussian": "broadcast"}, "gaussian 'broadcast'"),
    ("tofa", {"alpha": -1.0}, "alpha must be >= 0"),
    ("tofa", {"shrink": 0.0}, "shrink must be > 0"),
    ("vpt", {"n_tokens": 0}, "n_tokens must be >= 1"),
    ("vpt", {"depth": 0}, "depth must be >= 1"),
    ("private", {"epsilon": 0.0}, "epsilon must be > 0"),
    ("private", {"delta": 1.0}, "delta must be < 1, but is 1.0"),
    ("private", {"clip": 0.0}, "clip must be > 0"),
    ("private", {"clip": math.inf}, "clip must be finite where epsilon is"),
    ("private", {"rounds": 8}, "rounds must be 1 where calibration is classical, but is 8. Set method.cal"),
    ("private", {"sampling": 0.1}, "sampling must be 1 where calibration is classical"),
    ("private", {"sampling": 1.5, "calibration": "accountant"}, "sampling must be <= 1"),
    ("proximal", {"mu": -1.0}, "mu must be >= 0, but is -1.0"),
]

NO_VIT = {"vision_width": None, "n_vision_blocks": None}
NOVEL = {"same_classes": False}
SHALLOW = {"n_text_blocks": 4}
TOY = {"n_clients": 4, "embed_dim": 24, "text_width": 32}
TASKS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *((name, {}, NO_VIT, f"name must be a method without visual prompts, .* but is '{name}'. Use clip=compact")
      for name in ("capt", "feddpt", "fedmaple", "fedmgp", "fedmvp", "ivlp", "pfedmma", "promptsrc", "vpt")),
    *((name, {}, NOVEL, f"name must be a method .*, as the partition tests on novel classes, but is '{name}'. Use ")
      for name in ("capt", "fedapt", "full_model", "linear_head", "pfedprompt", "tofa")),
    *((name, {}, {"n_patches": None}, f"name must be a method without patches, .* but is '{name}'. Use clip=compact")
      for name in ("fedotp", "plot")),
    ("capt", {"align": 1.0}, TOY, r"align must be 0 where tokens \(32\) are not as wide as features \(24\)"),
    ("dpfpl", {"rank": 40, "n_ctx": 64}, TOY, "rank must be at most the width of a context token, 32"),
    ("fedamp", {"alpha": 0.5}, TOY, r"alpha must be at most method.sigma / \(clients - 1\) = 0.333333 for convex"),
    ("fedapt", {"unlock": 6}, {}, "unlock must name one of the 6 domains"),
    ("fedapt", {"n_ctx": 1, "keys": "orthogonal"}, {"text_width": 4}, "keys can be orthogonal for at most"),
    ("fedapt_unsupervised", {"unlock": 6}, {}, "unlock must name one of the 6 domains"),
    ("fedapt_unsupervised", {"n_ctx": 1, "keys": "orthogonal"}, {"text_width": 4}, "keys can be orthogonal for at"),
    ("fedcocoop", {"reduction": 513}, {}, "reduction must be at most the feature width 512"),
    ("fedmaple", {}, SHALLOW, "depth must be at most 4"),
    ("fedmvp", {"heads": 5}, {}, "heads must divide 768"),
    ("fedmvp", {"n_tokens": 50}, {}, "n_tokens must be at most 49"),
    ("fedpgp", {"rank": 40, "n_ctx": 64}, TOY, "rank must be at most the width of a context token, 32, but is 40"),
    ("fedtpg", {"heads": 5}, TOY, "heads must divide 32, the width of a context token, but is 5"),
    ("ivlp", {"depth": 5}, SHALLOW, "depth must be at most 4"),
    ("pfedmoap", {"experts": 5, "d_gating": 12, "heads": 3}, TOY, "experts must be at most the number of clients, 4"),
    ("pfedmoap", {"experts": 4, "d_gating": 128}, TOY,
     r"d_gating must divide the width of the embedding, 24, but is 128\. Set method\.d_gating=24, or"),
    ("pfedmoap", {"experts": 4, "heads": 9}, TOY, r"heads must divide 24, .* but is 9\. Set method\.heads=3\."),
    ("pfedmoap", {"experts": 2, "experts_from": "random"}, NOVEL, "experts_from must name prompts"),
    ("pfedprompt", {"features": "patches"}, {"n_patches": None}, "features must be 'pooled' on an image tower"),
    ("promptsrc", {}, SHALLOW, "depth must be at most 4"),
    ("vpt", {"depth": 5}, {"n_vision_blocks": 4}, "depth must be at most 4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "rule"), OPTIONS, ids=lambda value: str(value))
def test_options_out_of_range_are_refused(name: str, fields: dict[str, Any], rule: str) -> None:
    inner = {"inner": {"name": "promptfl"}} if name in {"private", "proximal"} else {}
    with pytest.raises(ConfigError) as refused:
        methods.build({"name": name, **inner, **fields})
    assert rule in str(refused.value)


@pytest.mark.parametrize(("name", "fields", "sizes", "rule"), TASKS, ids=lambda value: str(value)[:40])
def test_tasks_that_do_not_fit_are_refused(
    name: str, fields: dict[str, Any], sizes: dict[str, Any], rule: str, paper_task: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=rule):
        methods.build({"name": name, **fields}).check(paper_task(**sizes))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("capt", {"align": 1.0}),
        ("fedapt", {"unlock": 5, "keys": "orthogonal"}),
        ("fedcocoop", {"reduction": 512}),
        ("fedmaple", {}),
        ("fedmvp", {}),
        ("full_model", {}),
        ("ivlp", {"depth": 12}),
        ("linear_head", {}),
        ("pfedmoap", {"experts": 6}),
        ("vpt", {"depth": 12}),
    ],
)
def test_sizes_of_the_papers_are_accepted(name: str, fields: dict[str, Any], paper_task: Callable[..., Any]) -> None:
    methods.build({"name": name, **fields}).check(paper_task())
