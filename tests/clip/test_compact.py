"""The compact CLIP, its tokenizer, and `.github/tools/pretrain.py`, which trained its weights."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fpl_tune.clip import compact
from fpl_tune.data import shapes

SCRIPT = Path(__file__).resolve().parents[2] / ".github" / "tools" / "pretrain.py"
pretrain = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture(scope="module")
def shipped():
    return compact.load()


def test_every_caption_round_trips() -> None:
    tokenizer = compact.CompactTokenizer()
    rng = np.random.default_rng(0)
    n_bytes = 512
    claims = shapes.Attributes(*(rng.integers(n, size=300) for n in (20, 10, 4)))
    for row in range(300):
        text = pretrain.write(str(rng.choice(shapes.STYLES)), claims, row, rng)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")
        words = [i for i in ids if i >= n_bytes]
        assert len(words) >= len([w for w in text.rstrip(".").split() if len(w) > 1])


@pytest.mark.parametrize("word", ["elephant", "giraffe", "café", "x-ray", "鼠"])
def test_unknown_words_are_spelled(word: str) -> None:
    tokenizer = compact.CompactTokenizer()
    ids = tokenizer.encode(word)
    assert max(ids) < tokenizer.sot
    assert tokenizer.decode(ids).replace(" ", "") == word


def test_end_token_is_the_largest_id() -> None:
    tokenizer = compact.CompactTokenizer()
    model, _ = compact.build()
    assert tokenizer.eot == tokenizer.n_vocabulary - 1 == model.vocab_size - 1
    assert len(model.state_dict()["positional_embedding"]) == tokenizer.n_positions


def test_names_of_real_data_fit_with_sixteen_context_tokens() -> None:
    tokenizer = compact.CompactTokenizer()
    for name in ("elephant", "guitar", "person", "the great wall of china"):
        assert 1 + 16 + len(tokenizer.encode(name + ".")) + 1 <= tokenizer.n_positions, name


def test_cut_text_encoding_is_open_clips() -> None:
    torch.manual_seed(0)
    model, tokenizer = compact.build()
    model = model.double().eval()
    tokens = pretrain.tokenise(["a photo of a red star.", "{}", "my blue striped ring."], tokenizer)
    full = torch.zeros(3, tokenizer.n_positions, dtype=torch.long)
    full[:, : tokens.shape[1]] = tokens
    # open_clip keeps the causal mask in the type the model was built in.
    model.attn_mask = model.attn_mask.double()
    with torch.no_grad():
        expected = model.encode_text(full, normalize=True)
        torch.testing.assert_close(pretrain.text_features(model, tokens), expected, rtol=1e-10, atol=1e-12)


def test_loss_shares_the_mass_among_equal_texts() -> None:
    image, text = torch.nn.functional.normalize(
        torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    text[1] = text[0]
    logits = 7 * image @ text.T
    rows, columns = logits.log_softmax(1), logits.log_softmax(0)
    by_image = -((rows[0, :2].sum() + rows[1, :2].sum()) / 2 + rows[2, 2]) / 3
    by_text = -((columns[:2, 0].sum() + columns[:2, 1].sum()) / 2 + columns[2, 2]) / 3
    loss = pretrain.contrastive_loss(image, text, ["same", "same", "other"], torch.tensor(7.0))
    torch.testing.assert_close(loss, (by_image + by_text) / 2)


def test_corpus_is_skewed_noisy_and_incomplete() -> None:
    pairs = pretrain.corpus(4000, seed=0)
    share = {style: float((pairs.styles == style).mean()) for style in shapes.STYLES}
    assert share["photo"] > share["clipart"] > share["infograph"] > share["painting"] > share["quickdraw"] > 0
    drawn, what = shapes.draw(1000, style="photo", seed=1)
    claims = pretrain.corrupt(what, np.random.default_rng(0))
    wrong = (claims.shape != what.shape).mean()
    assert abs(wrong - pretrain.WRONG * 0.95) < 0.04
    assert 0.1 < pretrain.absent(what.shape, what.colour).mean() < 0.2
    assert len(drawn) == 1000


def test_training_is_deterministic(tmp_path) -> None:
    first, again = (pretrain.train(steps=2, seed=5, n_images=600) for _ in range(2))
    for (name, a), b in zip(first.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    pretrain.store(first, tmp_path / "weights.safetensors")
    loaded, _ = compact.load(tmp_path / "weights.safetensors")
    torch.testing.assert_close(loaded.state_dict(), first.state_dict(), rtol=1e-3, atol=1e-4)


def test_shipped_weights_fit_the_model_and_are_small() -> None:
    assert compact.weights_path().stat().st_size <= 4 * 2**20
    stored = load_file(compact.weights_path())
    model, _ = compact.build()
    assert {k: v.shape for k, v in stored.items()} == {k: v.shape for k, v in model.state_dict().items()}
    assert 1.5e6 < sum(p.numel() for p in model.parameters()) < 2e6


def test_zero_shot_accuracy_of_the_shipped_weights(shipped) -> None:
    """Well above chance (5 %) everywhere; clearly better in the styles that make up most of the training images."""
    accuracy = pretrain.zero_shot(*shipped, per_class=25)
    covered = {style: accuracy[style] for style, share in pretrain.SHARES.items() if share >= 0.3}
    rare = {style: accuracy[style] for style, share in pretrain.SHARES.items() if share <= 0.06}
    assert set(covered) == {"photo", "clipart"}
    assert set(rare) == {"painting", "quickdraw"}
    assert min(covered.values()) >= 0.60, accuracy
    assert max(rare.values()) <= min(covered.values()) - 0.15, accuracy
    assert min(rare.values()) >= 0.20, accuracy


def test_word_head_asks_for_the_words_of_the_caption() -> None:
    tokenizer = compact.CompactTokenizer()
    head = pretrain.WordHead(tokenizer.n_vocabulary)
    tokens = pretrain.tokenise(["red star.", "blue ring."], tokenizer)
    wanted = torch.full((2, len(head.words)), -20.0)
    for row, text in enumerate(("red star", "blue ring")):
        for index in tokenizer.encode(text):
            wanted[row, head.words.index(index)] = 20.0
    # Features that are the identity's rows make the map's columns the logits.
    features = torch.eye(compact.EMBED_DIM)[:2]
    with torch.no_grad():
        head.linear.bias.zero_()
        head.linear.weight.zero_()
        head.linear.weight[:, :2] = wanted.T / 10
        assert head.loss(features, tokens) < 1e-6
        head.linear.weight[:, :2] *= -1
        assert head.loss(features, tokens) > 20 * len(head.words) - 1


def test_the_script_trains_stores_and_compares(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "compact.safetensors"
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), "--out", str(out), "--steps", "1", "--images", "300", "--per-class", "1"]
    )
    runpy.run_path(str(SCRIPT), run_name="__main__")
    model, tokenizer = compact.load(out)
    assert (
        model.encode_text(pretrain.tokenise(["star"], tokenizer).new_zeros(1, tokenizer.n_positions)).isfinite().all()
    )
    assert "difference of means" in capsys.readouterr().out
