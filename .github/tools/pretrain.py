"""Trains the weights of the compact CLIP on captioned images of *Shapes* (Radford et al., ICML 2021).

    python .github/tools/pretrain.py --out compact.safetensors

Like alt text from the web, a caption is often wrong, omits attributes, may name the style, and may start with words
without content. Some styles are rare and some colours of a shape never occur, so that zero-shot accuracy differs
between styles and leaves room for learned prompts.

A linear map from features to the words of the caption, shared by both towers, is trained as well and discarded
(predicting words from images: Joulin et al., ECCV 2016): with the contrastive loss alone, zero-shot accuracy over
shapes and colours was still near chance after 600 steps of 256. Equal captions are positives of each other (UniCL,
Yang et al., CVPR 2022): with 20 shapes a batch holds many.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fpl_tune.clip import compact
from fpl_tune.data import shapes
from fpl_tune.data.pool import Ints

if TYPE_CHECKING:
    from open_clip import CLIP

    from fpl_tune.clip.compact import CompactTokenizer

N_IMAGES, STEPS, PEAK_RATE = 30_000, 4_000, 1e-3
BATCH, PAIRS = 128, 64  # every image is asked for its caption's words, the first `PAIRS` meet their captions
LEAD = 0.3  # share of batches whose captions start with random tokens, as a learned prompt may
SHARES = {
    "photo": 0.40,
    "clipart": 0.30,
    "infograph": 0.12,
    "sketch": 0.10,
    "painting": 0.06,
    "quickdraw": 0.02,
}
WRONG = 0.15
PLAIN = 0.20  # share of captions that are "a photo of a {shape}.", whatever the style


def absent(shape: Ints, colour: Ints) -> np.ndarray:
    """Which (shape, colour) pairs the training images leave out: one in seven, bool like the arguments."""
    return (3 * shape + 5 * colour) % 7 == 0


def corrupt(what: shapes.Attributes, rng: np.random.Generator) -> shapes.Attributes:
    """What the captions claim: for a share `WRONG` of the images the shape and colour are another's."""
    wrong = rng.random(len(what.shape)) < WRONG
    shape = np.where(wrong, rng.integers(len(shapes.SHAPES), size=wrong.shape), what.shape)
    colour = np.where(wrong, rng.integers(len(shapes.COLOURS), size=wrong.shape), what.colour)
    return shapes.Attributes(shape, colour, what.texture)


def write(style: str, claims: shapes.Attributes, row: int, rng: np.random.Generator) -> str:
    """One caption that says what `claims` has in this row."""
    shape, colour, texture = (values[row] for values in claims)
    name = shapes.SHAPES[shape]
    if rng.random() < PLAIN:
        return f"a photo of a {name}."
    if rng.random() < 0.4:
        name = f"{shapes.TEXTURES[texture]} {name}"
    if rng.random() < 0.5:
        name = f"{shapes.COLOURS[colour]} {name}"
    frames = compact.STYLED if rng.random() < 0.5 else compact.FRAMES
    return frames[rng.integers(len(frames))].replace("{style}", style).replace("{}", name)


class Corpus(NamedTuple):
    """Training pairs: uint8 images [n, 32, 32, 3], style names [n], what the captions claim."""

    images: Tensor
    styles: np.ndarray
    claims: shapes.Attributes


def corpus(n: int, seed: int) -> Corpus:
    """Draw about `n` images in the styles' shares, without the attribute pairs that are to be absent."""
    rng = np.random.default_rng([seed, n])
    images, styles, claims = [], [], []
    for style, share in SHARES.items():
        stream = (seed, shapes.SPLITS.index("pretraining"))
        drawn, what = shapes.draw(round(n * share), style=style, seed=stream)
        kept = ~absent(what.shape, what.colour)
        images.append(drawn[kept])
        styles.append(np.full(int(kept.sum()), style))
        claims.append(corrupt(shapes.Attributes(*(values[kept] for values in what)), rng))
    merged = shapes.Attributes(*(np.concatenate(values) for values in zip(*claims, strict=True)))
    return Corpus(torch.from_numpy(np.concatenate(images)), np.concatenate(styles), merged)


def text_features(model: CLIP, tokens: Tensor) -> Tensor:
    """Unit text features [n, D] of tokens [n, L], L up to `N_POSITIONS`: a causal tower needs no padding."""
    length = tokens.shape[1]
    mask, positions = cast(Tensor, model.attn_mask), cast(Tensor, model.positional_embedding)
    embed, norm = cast(torch.nn.Module, model.token_embedding), cast(torch.nn.Module, model.ln_final)
    x = embed(tokens) + positions[:length]
    x = norm(model.transformer(x, attn_mask=mask[:length, :length]))
    ends = x[torch.arange(len(x)), tokens.argmax(-1)]
    return F.normalize(ends @ cast(Tensor, model.text_projection), dim=-1)


def tokenise(texts: list[str], tokenizer: CompactTokenizer, lead: list[int] | None = None) -> Tensor:
    """Token ids [n, L], L the longest of these texts (at most `n_positions`); `lead` follows the start token."""
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


class WordHead(torch.nn.Module):
    """Which words of the vocabulary a caption holds, from unit features of either tower."""

    def __init__(self, n_vocabulary: int) -> None:
        super().__init__()
        self.words = range(2 * 256, n_vocabulary - 2)  # neither bytes nor start and end
        self.linear = torch.nn.Linear(compact.EMBED_DIM, len(self.words))
        torch.nn.init.constant_(self.linear.bias, -3.0)

    def loss(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Logistic loss, summed over words, of features [n, D] for the captions' tokens [n, L]."""
        held = (tokens[:, :, None] == torch.tensor(self.words)).any(1).float()
        logits = self.linear(10 * features)
        return F.binary_cross_entropy_with_logits(logits, held, reduction="sum") / len(features)


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
    """Train from scratch; `save` is written on the way. Same seed and threads, same weights."""
    torch.manual_seed(seed)
    model, tokenizer = compact.build()
    pairs = corpus(n_images, seed)
    rng = np.random.default_rng([seed, steps])
    head = WordHead(tokenizer.n_vocabulary)
    trained = [*model.parameters(), *head.parameters()]
    decayed = [p for p in trained if p.ndim > 1]
    rest = [p for p in trained if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, pct_start=0.1)
    start = time.perf_counter()
    model.train()
    for step in range(1, steps + 1):
        rows = rng.choice(len(pairs.images), BATCH, replace=False)
        texts = [write(str(pairs.styles[r]), pairs.claims, r, rng) for r in rows]
        n_lead = int(rng.integers(1, 17)) if rng.random() < LEAD else 0
        lead = rng.integers(tokenizer.sot, size=n_lead).tolist()
        image = model.encode_image(compact.pixels(pairs.images[torch.from_numpy(rows)]), normalize=True)
        plain, paired = tokenise(texts, tokenizer), texts[:PAIRS]
        text = text_features(model, tokenise(paired, tokenizer, lead))
        loss = contrastive_loss(image[:PAIRS], text, paired, model.logit_scale.exp())
        loss = loss + 0.3 * (head.loss(image, plain) + head.loss(text, plain[:PAIRS]))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 5.0)
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
    print(
        "  ".join(f"{style} {100 * value:.1f}" for style, value in accuracy.items()),
        f" mean {100 * mean:.1f}",
    )
    return mean


def main() -> None:
    """Train, store, and compare with the shipped weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file to write, .safetensors")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--images", type=int, default=N_IMAGES)
    parser.add_argument("--per-class", type=int, default=100, help="test images of a shape and style")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(steps=arguments.steps, seed=arguments.seed, n_images=arguments.images, save=arguments.out)
    print("zero-shot accuracy over 20 shapes, percent")
    new = report(zero_shot(*compact.load(arguments.out), per_class=arguments.per_class))
    if compact.weights_path().exists():
        print("shipped weights")
        shipped = report(zero_shot(*compact.load(), per_class=arguments.per_class))
        print(f"difference of means {100 * (new - shipped):+.2f} points; within one: {abs(new - shipped) <= 0.01}")


if __name__ == "__main__":
    main()
