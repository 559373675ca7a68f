"""Options and tasks that methods refuse, by the name of the field and with the rule."""

import math
import re
from typing import Any

import pytest

from fpl_tune import methods
from fpl_tune.core.errors import ConfigError

# One field of each kind of range, which the field's type states, and every rule that a method adds.
OPTIONS: list[tuple[str, Any, str]] = [
    ("promptfl.n_ctx", 0, "must be >= 1, but is 0"),
    ("fedper.n_own", -1, "must be >= 0, but is -1"),
    ("fedamp.lam", -0.5, "must be >= 0, but is -0.5"),
    ("fedamp.lam", math.nan, "must be a finite number, but is nan"),
    ("fedamp.sigma", 0.0, "must be > 0, but is 0.0"),
    ("dpfpl.clip", math.inf, "must be a finite number"),
    ("promptfolio.theta", 1.5, "must be <= 1"),
    ("feddpt.momentum", 1.0, "must be < 1, but is 1.0"),
    ("fedlora.shared", "c", "'c'"),
    ("fedlora.sparse", 2.0, "must be 1 unless method.average is robust, but is 2.0"),
    ("fedotp.epsilon", 0.001, "must be >= 0.005, but is 0.001"),
    ("fedclip.form", "none?", "'none?'"),
    ("fedapt_unsupervised.phase", 3, "'3'"),
    ("fedpha.lengths", [4, 0], ".1 must be >= 1, but is 0"),
    ("fedmgp.words", "", "must not be empty, but is ''"),
    (
        "fedmvp.attributes",
        ["red"],
        ".0 must be a string with {} once for the class name, and no other braces, but is 'red'",
    ),
    ("dpfpl.rank", 17, "must be 'full' or lie between 1 and method.n_ctx = 16, but is 17"),
    ("fedpgp.rank", 17, "must be 'full' or lie between 0 and method.n_ctx = 16, but is 17"),
    ("fedper.n_own", 17, "must be at most method.n_ctx = 16, but is 17"),
    ("fedmgp.select", 6, "must be at most method.groups = 5, but is 6"),
    ("fedpgp.signs", "printed", "must be 'meant' unless method.pairs is negative or positive"),
    ("feddpt.visual", "none", "text must be shared or hand where visual is none"),
    ("fedsept.noise", 1.0, "clip must be finite where noise is not 0, but is inf. Noise is scaled to the clip."),
    ("fedsept.rank", 0, "must be >= 1, but is 0"),
    ("focoop.rate", 1.0, "must be at most 0.5 / method.steps, here 0.125, but is 1"),
    ("pfedmoap.experts", 1, "must be >= 2, but is 1"),
    ("pfedpg.signs", "printed", "'printed'"),
    ("pfedmoap.d_gating", 12, "must be a multiple of method.heads = 8, but is 12"),
    ("private.clip", math.inf, "must be finite where epsilon is"),
    ("private.rounds", 8, "must be 1 where calibration is classical, but is 8. Set method.calibration=accountant."),
    ("private.sampling", "secret", "must be seen where calibration is classical"),
    ("sgpt.momentum", 1.0, "must be < 1, but is 1.0"),
]

NO_VIT = {"vision_width": None, "n_vision_blocks": None}
NOVEL = {"same_classes": False}
SHALLOW = {"n_text_blocks": 4}
TOY = {"n_clients": 4, "embed_dim": 24, "text_width": 32}
TASKS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *((name, {}, NO_VIT, f"{kind} needs a vision transformer, .* Use clip=compact")
      for name, kind in (("capt", "CAPT"), ("feddpt", "FedDPT"), ("fedmap", "FedMAP"), ("fedmaple", "FedMaPLe"),
                         ("fedmgp", "FedMGP"), ("fedmvp", "FedMVP"), ("ivlp", "IVLP"), ("pfedmma", "PFedMMA"),
                         ("pfedpg", "PFedPG"), ("promptsrc", "PromptSRC"), ("sgpt", "SGPT"), ("vpt", "VPT"))),
    *((name, {}, NOVEL, f"{kind} needs test images of the training classes, .* Use a partition without novel classes")
      for name, kind in (("capt", "CAPT"), ("fedapt", "FedAPT"), ("focoop", "FOCoOp"), ("full_model", "FullModel"),
                         ("linear_head", "LinearHead"), ("pfedprompt", "PFedPrompt"), ("tofa", "TOFA"))),
    *((name, {}, {"n_patches": None}, f"{kind} needs patch features, .* Use clip=compact")
      for name, kind in (("fedotp", "FedOTP"), ("plot", "PLOT"))),
    ("proximal", {"inner": {"name": "fedotp"}}, {"n_patches": None}, "FedOTP needs patch features"),
    ("fedlora", {"towers": "image"}, NO_VIT, "FedLoRA needs a vision transformer"),
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
    ("fedsept", {"rank": 40}, TOY, "rank must be at most the width of a context token, 32, but is 40"),
    ("fedtpg", {"heads": 5}, TOY, "heads must divide 32, the width of a context token, but is 5"),
    ("ivlp", {"depth": 5}, SHALLOW, "depth must be at most 4"),
    ("pfedmoap", {"experts": 5, "d_gating": 12, "heads": 3}, TOY, "experts must be at most the number of clients, 4"),
    ("pfedmoap", {"experts": 4, "d_gating": 128}, TOY,
     r"d_gating must divide the width of the embedding, 24, but is 128\. Set method\.d_gating=24, or"),
    ("pfedmoap", {"experts": 4, "heads": 9}, TOY, r"heads must divide 24, .* but is 9\. Set method\.heads=3\."),
    ("pfedmoap", {"experts": 2, "experts_from": "random"}, NOVEL, "experts_from must name prompts"),
    ("pfedpg", {"depth": 5}, {"n_vision_blocks": 4}, "depth must be at most 4"),
    ("pfedpg", {"heads": 5}, {}, "heads must divide 768, the width of a token, but is 5"),
    ("pfedpg", {"head": "linear"}, NOVEL, "head must be text where test sets have other classes than training"),
    ("pfedprompt", {"features": "patches"}, {"n_patches": None}, "PFedPrompt needs patch features"),
    ("promptsrc", {}, SHALLOW, "depth must be at most 4"),
    ("sgpt", {}, {"n_vision_blocks": 4}, "group_blocks must be at most 0, the blocks of the image tower behind the"),
    ("sgpt", {"groups": 30}, TOY, "groups must be at most 24, the width of the embedding, for orthogonal keys"),
    ("sgpt", {"head": "linear"}, NOVEL, "head must be text where test sets have other classes than training"),
    ("vpt", {"depth": 5}, {"n_vision_blocks": 4}, "depth must be at most 4"),
]  # fmt: skip

# The last value that each rule allows.
LIMITS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("dpfpl", {"rank": 1}, {}),
    ("dpfpl", {"rank": 16}, {}),
    ("dpfpl", {"rank": 32, "n_ctx": 64}, TOY),
    ("fedamp", {"alpha": 1 / 3, "sigma": 1.0}, TOY),
    ("fedapt", {"unlock": 0}, {}),
    ("fedapt", {"unlock": 5}, {}),
    ("fedapt", {"n_ctx": 1, "keys": "orthogonal"}, {"text_width": 6}),
    ("fedcocoop", {"reduction": 512}, {}),
    ("fedmaple", {"depth": 4}, SHALLOW),
    ("fedmgp", {"select": 5}, {}),
    ("fedmvp", {"n_tokens": 49}, {}),
    ("fedotp", {"epsilon": 0.005}, {}),
    ("fedper", {"n_own": 0}, {}),
    ("fedper", {"n_own": 16}, {}),
    ("fedpgp", {"rank": 0}, {}),
    ("fedpgp", {"rank": 16}, {}),
    ("fedpgp", {"rank": 32, "n_ctx": 64}, TOY),
    ("fedsept", {"rank": 32}, TOY),
    ("focoop", {"rate": 0.125, "steps": 4}, {}),
    ("focoop", {"rate": 1.0, "form": "released"}, {}),
    ("pfedmoap", {"experts": 4, "d_gating": 24, "heads": 3}, TOY),
    ("pfedpg", {"depth": 4}, {"n_vision_blocks": 4}),
    ("promptfolio", {"theta": 1.0}, {}),
    ("sgpt", {"shared_blocks": 2, "group_blocks": 2}, {"n_vision_blocks": 4}),
    ("sgpt", {"groups": 24}, TOY),
    ("vpt", {"depth": 4}, {"n_vision_blocks": 4}),
]


@pytest.mark.parametrize(("option", "value", "rule"), OPTIONS)
def test_options_out_of_range_are_refused(option: str, value: Any, rule: str) -> None:
    name, field = option.split(".")
    inner = {"inner": {"name": "promptfl"}} if name in {"private", "proximal"} else {}
    with pytest.raises(ConfigError) as refused:
        methods.build({"name": name, **inner, field: value})
    assert re.search(rf"\b{field}\b.*{re.escape(rule)}|method\.{re.escape(rule)}", str(refused.value))


@pytest.mark.parametrize(("name", "fields", "sizes", "rule"), TASKS, ids=lambda value: str(value)[:40])
def test_tasks_that_do_not_fit_are_refused(name, fields, sizes, rule, paper_task) -> None:
    with pytest.raises(ConfigError, match=rule):
        methods.build({"name": name, **fields}).check(paper_task(**sizes))


@pytest.mark.parametrize(("name", "fields", "sizes"), LIMITS, ids=lambda value: str(value)[:40])
def test_what_a_rule_names_as_its_limit_is_accepted(name, fields, sizes, paper_task) -> None:
    methods.build({"name": name, **fields}).check(paper_task(**sizes))
