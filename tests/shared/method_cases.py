"""Every method and composition in the forms that the contract is checked in, on the CPU, a GPU or a simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from fpl_tune import methods
from fpl_tune.config import choose

GATED = {
    "name": "pfedmoap", "n_ctx": 2, "experts": 4, "d_gating": 24, "aggregate_gate": True, "attention_scale": "sqrt"
}  # fmt: skip
"""A method that averages a part of what it is personalised with, which a client without experts does not send."""

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("zeroshot", {}),
    ("coop", {"n_ctx": 2}),
    ("promptfl", {"n_ctx": 2}),
    ("promptfl", {"n_ctx": 2, "weights": "last"}),
    ("pfedmoap", {"n_ctx": 2, "experts": 3, "d_gating": 12, "heads": 3}),
    ("pfedmoap", {"n_ctx": 2, "experts": 3, "gate": "linear", "selection": "random"}),
    ("pfedmoap", {"n_ctx": 2, "experts": 4, "d_gating": 24, "aggregate_gate": True, "attention_scale": "sqrt"}),
    ("pfedmoap", {"n_ctx": 2, "experts": 3, "pooling": "mean", "similarity": "cosine"}),
    ("fedpgp", {"n_ctx": 3, "rank": 2}),
    ("fedpgp", {"n_ctx": 3, "rank": "full", "pairs": "negative"}),
    ("fedpgp", {"n_ctx": 3, "rank": 0, "pairs": "positive", "anchor": "placeholder"}),
    ("fedpgp", {"n_ctx": 3, "rank": 2, "copies": 2}),
    ("fedper", {"n_ctx": 3, "n_own": 1}),
    ("fedper", {"n_ctx": 2, "n_own": 0}),
    ("fedamp", {"n_ctx": 2, "lam": 0.01, "alpha": 0.1}),
    ("pfedprompt", {"n_ctx": 2}),
    ("pfedprompt", {"n_ctx": 2, "alpha": 1.0, "memory": "image", "features": "patches", "weighted": True}),
    ("fedotp", {"n_ctx": 2, "iterations": 5}),
    ("fedprox", {"inner.n_ctx": 2, "mu": 0.5}),
    ("promptfl_ft", {"inner.n_ctx": 2}),
    ("promptfl_dp", {"inner.n_ctx": 2}),
    ("fedprox_dp", {"inner.inner.n_ctx": 2}),
    ("pfedmoap_dp", {"inner.n_ctx": 2, "inner.experts": 3, "inner.d_gating": 12, "inner.heads": 3}),
    ("fedavgm", {"inner.n_ctx": 2}),
    ("fedadam", {"inner.n_ctx": 2}),
    ("fedadam", {"inner.n_ctx": 2, "optimizer": "yogi"}),
    ("promptfl_scaffold", {"inner.n_ctx": 2}),
    ("promptfl_ditto", {"inner.n_ctx": 2}),
    ("promptfl_moon", {"inner.n_ctx": 2}),
    ("promptfl_robust", {"inner.n_ctx": 2}),
    ("promptfl_robust", {"inner.n_ctx": 2, "rule": "trimmed_mean"}),
    ("promptfl_robust", {"inner.n_ctx": 2, "rule": "krum", "liars": 0.0}),
    ("promptfl_robust", {"inner.n_ctx": 2, "rule": "geometric_median", "bucket": 2, "liars": 0.0}),
    ("promptfl_robust", {"inner.n_ctx": 2, "rule": "centered_clipping"}),
    ("promptfl_robust", {"inner": GATED, "rule": "multi_krum", "liars": 0.0}),
    ("promptfl_robust", {"inner": GATED, "rule": "norm_bound"}),
    ("fedclip", {}),
    ("fedclip", {"form": "softmax", "objective": "contrastive"}),
    ("fedclip", {"broadcast": False}),
    ("fedclip_unsupervised", {}),
    ("fedclip_unsupervised", {"phase": 2, "form": "softmax"}),
    ("clip_fc", {}),
    ("linear_head", {}),
    ("linear_head_fedprox", {}),
    ("feddpt", {"n_ctx": 2}),
    ("feddpt", {"n_ctx": 2, "visual": "split", "objective": "cosine"}),
    ("feddpt", {"n_ctx": 2, "text": "shared", "visual": "none"}),
    ("fedapt", {"n_ctx": 2}),
    ("fedapt", {"n_ctx": 2, "keys": "none"}),
    ("fedapt_unsupervised", {"n_ctx": 2}),
    ("fedapt_unsupervised", {"n_ctx": 2, "phase": 2}),
    ("fedapt_unsupervised", {"n_ctx": 2, "phase": 2, "keys": "none"}),
    ("fedcocoop", {"n_ctx": 2, "words": ""}),
    ("fedmaple", {"n_ctx": 2, "depth": 3}),
    ("vpt", {"n_tokens": 2}),
    ("vpt", {"n_tokens": 1, "depth": 3}),
    ("ivlp", {}),
    ("ivlp", {"n_ctx": 1, "n_tokens": 2, "depth": 2}),
    ("promptsrc", {"n_ctx": 2, "n_tokens": 2, "depth": 2, "templates": ["{}", "a {}."]}),
    ("promptsrc", {"n_ctx": 2, "n_tokens": 1, "depth": 1, "gaussian": "sent"}),
    ("promptsrc", {"n_ctx": 2, "n_tokens": 1, "depth": 1, "gaussian": "none"}),
    ("pfedmma", {"blocks": 2, "rank": 3}),
    ("pfedmma", {"blocks": 1, "rank": 2, "gradient": "true", "alpha": 1.0, "text_features": "first"}),
    ("fedlora", {}),
    ("fedlora", {"scaling": "alpha/rank", "objective": "contrastive"}),
    ("fedlora", {"shared": "a"}),
    ("fedlora", {"shared": "b"}),
    ("fedlora", {"average": "exact"}),
    ("fedlora", {"average": "fair"}),
    ("fedlora", {"towers": "image", "shared": "a"}),
    ("fedlora", {"towers": "both", "average": "exact"}),
    ("fedlora", {"average": "robust", "sparse": 3.0}),
    ("capt", {"n_own": 1}),
    ("capt", {"n_own": 1, "rows": "released", "prior": 0.5}),
    ("capt", {"n_own": 1, "rows": "size"}),
    ("fedmvp", {"n_tokens": 2, "attributes": ["{}", "a {}."]}),
    ("fedmvp", {"n_tokens": 1, "weights": "size", "consistency": 0.0}),
    ("full_model", {}),
    ("full_model_fedprox", {}),
    ("promptfolio", {"n_ctx": 2}),
    ("kgcoop", {"n_ctx": 2}),
    ("plot", {"n_ctx": 2, "prompts": 3, "iterations": 5}),
    ("prograd", {"n_ctx": 2}),
    ("prograd", {"n_ctx": 2, "form": "distil"}),
    ("fedtpg", {"n_ctx": 2}),
    ("fedtpg", {"n_ctx": 2, "scope": "all", "weights": "size"}),
    ("fedpha", {"n_ctx": 3}),
    ("fedpha", {"n_ctx": 2, "lengths": [1, 3]}),
    ("fedmgp", {"groups": 3, "select": 2}),
    ("fedmgp", {"groups": 3, "select": 2, "diversity": "l1", "inference": "features"}),
    ("fedmap", {"n_tokens": 2, "depth": 2}),
    ("pfedpg", {"n_tokens": 2, "server_lr": 0.5}),
    ("pfedpg", {"n_tokens": 1, "depth": 2, "heads": 2, "descriptor": "tokens", "head": "linear"}),
    ("pfedpg", {"n_tokens": 1, "output": "attention", "signs": "released", "deployed": "generated"}),
    ("sgpt", {"groups": 3, "shared_blocks": 2, "group_blocks": 1}),
    ("sgpt", {"groups": 2, "shared_blocks": 1, "group_blocks": 2, "choice": "batch", "query": "relu", "momentum": 0.0}),
    ("sgpt", {"groups": 3, "shared_blocks": 1, "group_blocks": 1, "keys": "released", "head": "linear"}),
    ("focoop", {"n_ctx": 2, "outer": 3, "rate": 0.1}),
    ("focoop", {"n_ctx": 2, "outer": 3, "form": "released"}),
    ("dpfpl", {"n_ctx": 3, "rank": 2}),
    ("dpfpl", {"n_ctx": 3, "rank": "full", "noise": 50.0, "clip": 1.0}),
    ("dpfpl_dp", {"inner.n_ctx": 3, "inner.rank": 2}),
    ("fedsept", {"experts": 3, "rank": 2, "n_ctx": 2}),
    ("fedsept", {"experts": 2, "rank": 2, "n_ctx": 2, "gate": "linear", "residual": "released"}),
    ("fedsept", {"experts": 1, "rank": 4, "n_ctx": 2, "clip": 0.1, "noise": 0.5}),
    ("fedsept_dp", {"inner.experts": 2, "inner.rank": 2, "inner.n_ctx": 2}),
    ("tofa", {}),
    ("tofa", {"alpha": 0.0, "prior": True, "inference": "visual"}),
]
"""Name of the method or composition, and what the toy towers (D=24, d=32, K=6, N=4) ask for."""


def node(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method or composition as composed, with overrides by dotted field."""
    found = deepcopy(choose("method", name)["method"])
    for field, value in overrides.items():
        at = found
        *outer, last = field.split(".")
        for step in outer:
            at = at[step]
        assert last in at, f"{name} has no field {field}"
        at[last] = value
    return found


def one_of_each_base() -> list[tuple[str, dict[str, Any]]]:
    """The first listed form of the methods that derive from each class of `fpl_tune.methods` or `fpl_tune.wrappers`."""
    first: dict[type, tuple[str, dict[str, Any]]] = {}
    for name, how in METHODS:
        first.setdefault(type(methods.build(node(name, how))).__mro__[1], (name, how))
    return [*first.values()]
