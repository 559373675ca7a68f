"""Measures the compact CLIP: its features, its hand-written prompts, its patches, and the effect of the context.

python benchmarks/world/measure.py [compact.safetensors]      without a file: the shipped weights
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fpl_tune.clip import Towers, load_towers
from fpl_tune.data import shapes

N_CONTEXT = 16
PROBE_IMAGES = 40  # of every shape and style


class Features(NamedTuple):
    """Unit features [n, D] of the class token and of the mean patch, labels [n], styles [n]."""

    pooled: Tensor
    patch: Tensor
    label: Tensor
    style: Tensor


def features(towers: Towers, split: str, per_class: int, seed: int) -> Features:
    """Features of `per_class` images of every shape in every style."""
    parts = []
    for number, style in enumerate(shapes.STYLES):
        images, labels = shapes.pool(style, split, per_class=per_class, seed=seed)
        pixels = towers.normalise(images)
        pooled = F.normalize(towers.encode_images(pixels), dim=-1)
        patches = F.normalize(towers.encode_images(pixels, patches=True), dim=-1)
        style_of = torch.full((len(labels),), number)
        parts.append((pooled, F.normalize(patches.mean(1), dim=-1), torch.from_numpy(labels), style_of))
    return Features(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def probe(train: Features, test: Features) -> Tensor:
    """Predictions [n] of a logistic regression on the class token's features of all styles together."""
    linear = torch.nn.Linear(train.pooled.shape[1], len(shapes.SHAPES))
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    solver = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(linear(10 * train.pooled), train.label) + 1e-3 * linear.weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return linear(10 * test.pooled).argmax(-1)


def measure(towers: Towers, per_class: int = 50, seed: int = 0) -> dict[str, Tensor]:
    """Which predictions over the 20 shapes are right, bool [styles, images].

    All but `probe` have "a photo of a {}." as prompt, with one change each: `style` names the image's style, `context`
    has sixteen random tokens before the name, `patch` compares with the mean patch.
    """
    test = features(towers, "test", per_class, seed)
    names = shapes.class_names("shape")

    def text(article: str) -> Tensor:
        return F.normalize(towers.encode_text([f"{article} of a {name}." for name in names]), dim=-1)

    drawn = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2 * 256, towers.tokenizer.eot - 1, (N_CONTEXT,), generator=drawn)  # words, not bytes
    with torch.no_grad():
        lead = towers.encode_prompts(towers.text.token_embedding(tokens), towers.sentences(names, N_CONTEXT))
    styled = torch.stack([text(f"a {style}") for style in shapes.STYLES])
    predicted = {
        "zero-shot": test.pooled @ text("a photo").T,
        "style": torch.einsum("nd,nkd->nk", test.pooled, styled[test.style]),
        "context": test.pooled @ F.normalize(lead, dim=-1).T,
        "patch": test.patch @ text("a photo").T,
    }
    right = {name: logits.argmax(-1) == test.label for name, logits in predicted.items()}
    right["probe"] = probe(features(towers, "train", PROBE_IMAGES, seed), test) == test.label
    return {name: found.view(len(shapes.STYLES), -1) for name, found in right.items()}


def main(path: str | None = None) -> None:
    """Print accuracy per style and in the mean, in percent."""
    print("accuracy over 20 shapes, percent")
    print(" " * 10 + "  ".join(f"{name:>9}" for name in (*shapes.STYLES, "mean")))
    for name, right in measure(load_towers("compact", path)).items():
        row = (*right.float().mean(1).tolist(), right.float().mean().item())
        print(f"{name:<10}" + "  ".join(f"{100 * value:9.1f}" for value in row))


if __name__ == "__main__":
    main(*sys.argv[1:2])
