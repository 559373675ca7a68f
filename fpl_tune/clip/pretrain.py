"""Contrastive training of the compact CLIP on captioned images of the embedded world (Radford et al., ICML 2021).

Captions that read the same are one class of positives (Yang et al., UniCL, CVPR 2022): with 20 shapes a batch holds
many, and calling them negatives would teach that equal texts differ.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fpl_tune.clip import captions, compact
from fpl_tune.data import shapes

if TYPE_CHECKING:
    from open_clip import CLIP

    from fpl_tune.clip.compact import CompactTokenizer

N_IMAGES, BATCH, STEPS, PEAK_RATE = 40_000, 256, 2_000, 2e-3
LEAD = 0.3  # share of batches whose captions start with tokens that say nothing, as a learned prompt's may


class Corpus(NamedTuple):
    """Training pairs: uint8 images [n, 32, 32, 3], style names [n], what the captions claim."""

    images: Tensor
    styles: np.ndarray
    claims: shapes.Attributes


def corpus(n: int, seed: int) -> Corpus:
    """Draw about `n` images in the styles' shares, without the attribute pairs that are to be absent."""
    rng = np.random.default_rng([seed, n])
    images, styles, claims = [], [], []
    for style, share in captions.SHARES.items():
        stream = (seed, shapes.SPLITS.index("pretraining"))
        drawn, what = shapes.draw(round(n * share), style=style, seed=stream)
        kept = ~captions.absent(what.shape, what.colour)
        images.append(drawn[kept])
        styles.append(np.full(int(kept.sum()), style))
        claims.append(captions.corrupt(shapes.Attributes(*(values[kept] for values in what)), rng))
    merged = shapes.Attributes(*(np.concatenate(values) for values in zip(*claims, strict=True)))
    return Corpus(torch.from_numpy(np.concatenate(images)), np.concatenate(styles), merged)


def text_features(model: CLIP, tokens: Tensor) -> Tensor:
    """Unit text features [n, D] of tokens [n, L], L up to the model's positions: a causal tower needs no padding."""
    length = tokens.shape[1]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    assert model.attn_mask is not None and isinstance(model.text_projection, torch.nn.Parameter)
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return F.normalize(x[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection, dim=-1)


def tokenise(texts: list[str], tokenizer: CompactTokenizer, lead: list[int] | None = None) -> Tensor:
    """Token ids [n, L], L the longest of these texts, cut to the model's positions; `lead` follows the start token."""
    rows = [[tokenizer.sot, *(lead or []), *tokenizer.encode(text)] for text in texts]
    length = min(max(map(len, rows)) + 1, tokenizer.n_positions)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    for row, ids in zip(tokens, rows, strict=True):
        ids = [*ids[: length - 1], tokenizer.eot]
        row[: len(ids)] = torch.tensor(ids)
    return tokens


def contrastive_loss(image: Tensor, text: Tensor, texts: list[str], scale: Tensor) -> Tensor:
    """Symmetric cross-entropy over unit features [n, D]; equal texts share the target mass."""
    _, ids = np.unique(texts, return_inverse=True)
    same = torch.from_numpy(ids[:, None] == ids[None, :]).float()
    target, logits = same / same.sum(1, keepdim=True), scale * image @ text.T
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def zero_shot(model: CLIP, tokenizer: CompactTokenizer, per_class: int = 50, seed: int = 0) -> dict[str, float]:
    """Accuracy per style over the 20 shapes of the test split, prompt "a photo of a {}."."""
    names = [f"a photo of a {name}." for name in shapes.class_names("shape")]
    text = text_features(model, tokenise(names, tokenizer))
    accuracy = {}
    for style in shapes.STYLES:
        images, labels = shapes.pool(style, "test", per_class=per_class, seed=seed)
        features = model.encode_image(compact.pixels(torch.from_numpy(images)))
        right = (features @ text.T).argmax(-1) == torch.from_numpy(labels)
        accuracy[style] = right.float().mean().item()
    return accuracy


def train(*, steps: int = STEPS, seed: int = 0, n_images: int = N_IMAGES, save: Path | None = None) -> CLIP:
    """Train from scratch; `save` is written every 500 steps and at the end. Same seed and threads, same weights."""
    torch.manual_seed(seed)
    model, tokenizer = compact.build()
    pairs = corpus(n_images, seed)
    rng = np.random.default_rng([seed, steps])
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, pct_start=0.1)
    start = time.perf_counter()
    model.train()
    for step in range(1, steps + 1):
        rows = rng.choice(len(pairs.images), BATCH, replace=False)
        texts = [captions.write(pairs.styles[r], *(int(v[r]) for v in pairs.claims), rng) for r in rows]
        n_lead = int(rng.integers(1, 17)) if rng.random() < LEAD else 0
        lead = rng.integers(tokenizer.sot, size=n_lead).tolist()
        image = model.encode_image(compact.pixels(pairs.images[torch.from_numpy(rows)]), normalize=True)
        text = text_features(model, tokenise(texts, tokenizer, lead))
        loss = contrastive_loss(image, text, texts, model.logit_scale.exp())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if step % 50 == 0 or step == steps:
            left = (time.perf_counter() - start) / step * (steps - step)
            print(f"step {step}/{steps}  loss {loss.item():.3f}  {left / 60:.1f} min left", flush=True)
        if save is not None and (step % 500 == 0 or step == steps):
            store(model, save)
    return model.eval()


def store(model: CLIP, path: Path) -> None:
    """Write the weights in half precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.half().contiguous() for name, value in model.state_dict().items()}, path)


def report(accuracy: dict[str, float]) -> float:
    """Print accuracy per style in percent; returns the mean."""
    mean = sum(accuracy.values()) / len(accuracy)
    print("  ".join(f"{style} {100 * value:.1f}" for style, value in accuracy.items()), f" mean {100 * mean:.1f}")
    return mean


def main() -> None:
    """Train, store, and compare with the shipped weights."""
    parser = argparse.ArgumentParser(prog="python -m fpl_tune.clip.compact", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file to write, .safetensors")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(steps=arguments.steps, seed=arguments.seed, save=arguments.out)
    print("zero-shot accuracy over 20 shapes, percent")
    new = report(zero_shot(*compact.load(arguments.out), per_class=100))
    if compact.weights_path().exists():
        print("shipped weights")
        shipped = report(zero_shot(*compact.load(), per_class=100))
        print(f"difference of the means {100 * (new - shipped):+.2f} points (within one: {abs(new - shipped) <= 0.01})")
