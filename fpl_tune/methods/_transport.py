"""Entropic optimal transport between the patches of an image and the prompts of a class."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

import fpl_tune.method as fl

Entropy = Annotated[float, Field(ge=0.005)]
"""ε, the weight of the entropy. With smaller values, the kernel underflows in double precision."""


def transported(
    scale: float, image: Tensor, text: Tensor, gamma: float, epsilon: float, iterations: int, *, capped: bool = True
) -> Tensor:
    """s · Σ_mn T_mn · cos(patch_m, text_n) for every image and class; T has no gradient.

    Args:
        scale: s.
        image: patch features [C, B, M, D].
        text: unit text features of N prompts [C, N, K, D].
        gamma: γ, the mass that is transported.
        epsilon: ε, weight of the entropy.
        iterations: of the scaling.
        capped: True if patches may give less than their share; see `transport`.

    Returns:
        Logits [C, B, K].
    """
    rows = text.transpose(1, 2).flatten(1, 2).unsqueeze(1)  # [C, 1, K N, D]
    alike = (rows @ fl.normalize(image).mT).unflatten(2, (-1, text.shape[1]))  # [C, B, K, N, M]
    with torch.no_grad():
        plan = transport(alike, gamma, epsilon, iterations, capped=capped)
    return scale * (plan * alike).sum((-1, -2))


def transport(alike: Tensor, gamma: float, epsilon: float, iterations: int, *, capped: bool = True) -> Tensor:
    """Plans T [..., N, M] between M patches and N prompts with cosine similarities `alike` [..., N, M].

    Maximises Σ T · alike + ε · entropy such that every prompt receives γ/N. With `capped`, no patch gives more than 1/M
    (FedOTP, Eqs. 8 to 11; Dykstra's iteration u = min(1 / (M K v), 1), v = γ/N / Kᵀ u). Otherwise every patch gives
    1/M, and γ is 1 (PLOT; Sinkhorn's iteration, the same without the minimum). The mass that prompts receive is exact
    after any number of iterations, that which patches give only in the limit.
    """
    most = alike.amax(-1, keepdim=True)
    # A prompt's kernel is divided by its largest entry, which v restores. It then lies between exp(-2 / ε) and 1, which
    # does not underflow in double precision.
    kernels = ((alike - most).double() / epsilon).exp().unbind(-2)
    scalings = list(((most - 1).double() / epsilon).exp().unbind(-2))
    share = gamma / len(kernels)
    u = torch.ones_like(kernels[0])
    for _ in range(iterations):
        u = kernels[0] * scalings[0]
        for kernel, v in zip(kernels[1:], scalings[1:], strict=True):
            u = u.addcmul_(kernel, v)
        u = u.mul_(alike.shape[-1]).reciprocal_()
        if capped:
            u = u.clamp_(max=1)
        scalings = [share / torch.linalg.vecdot(kernel, u).unsqueeze(-1) for kernel in kernels]
    plans = [kernel * v * u for kernel, v in zip(kernels, scalings, strict=True)]
    return torch.stack(plans, -2).to(alike.dtype)
