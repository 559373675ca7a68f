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

from fpl_tune.clip import compact, load_towers
from fpl_tune.data import shapes

TOOLS = Path(__file__).resolve().parents[2] / ".github" / "tools"
SCRIPT = TOOLS / "pretrain.py"
pretrain = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
measure = SimpleNamespace(**runpy.run_path(str(TOOLS / "measure.py")))


def test_every_caption_round_trips() -> None:
    tokenizer = compact.CompactTokenizer()
    rng = np.random.default_rng(0)
    n_bytes = 512
    claims = shapes.Attributes(*(rng.integers(n, size=300) for n in (20, 10, 4)))
    for row in range(300):
        text = pretrain.write(str(rng.choice(shapes.STYLES)), claims, row, rng, n_sentences=1 + row % 3)
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
    loss = pretrain.contrastive_loss(image, text, torch.tensor([4, 4, 1]), torch.tensor(7.0))
    torch.testing.assert_close(loss, (by_image + by_text) / 2)


def test_captions_err_at_the_given_share() -> None:
    what = shapes.Attributes(*(np.arange(4000) % n for n in (20, 10, 4)))
    claims = pretrain.claim(what, np.random.default_rng(0))
    assert abs((claims.shape != what.shape).mean() - pretrain.WRONG * 0.95) < 0.02
    assert np.array_equal(claims.texture, what.texture)


def test_the_second_sense_is_another_name_of_the_same_half_of_the_classes() -> None:
    shape = np.arange(20)
    other = pretrain.second_sense(shape)
    assert np.array_equal(np.sort(other), shape)
    assert (other != shape).sum() == 12
    assert np.array_equal(other < 10, shape < 10)  # base and novel classes alike


@pytest.mark.parametrize("style", shapes.STYLES)
def test_the_style_that_a_caption_names_settles_the_sense(style: str) -> None:
    rng = np.random.default_rng(0)
    shape = rng.integers(20, size=400)
    claims = shapes.Attributes(shape, np.zeros_like(shape), np.zeros_like(shape))
    for row in range(400):
        words = set(pretrain.write(style, claims, row, rng).rstrip(".").replace(",", "").split())
        (name,) = words & set(shapes.SHAPES)
        named = words & set(pretrain.RARE)
        first = named == ({style} & set(pretrain.RARE))
        sense = shape[row] if first else pretrain.second_sense(shape[row])
        assert name == shapes.SHAPES[sense], words


def test_a_batch_is_a_function_of_the_seed_and_the_step() -> None:
    corpus = pretrain.Corpus(steps=3, batch=200, seed=1)
    assert len(corpus) == 3
    one, again, other = corpus[1], pretrain.Corpus(steps=2, batch=200, seed=1)[1], corpus[2]
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one.images, other.images)
    assert len(one.images) == len(one.tokens) == len(one.same) == 200
    equal = (one.tokens[:, None] == one.tokens[None, :]).all(-1)
    assert torch.equal(equal, one.same[:, None] == one.same[None, :])
    with pytest.raises(IndexError):
        corpus[3]


def test_features_in_training_are_those_of_the_towers() -> None:
    images = torch.from_numpy(shapes.draw(5, style="photo", seed=0)[0])
    towers = load_towers("compact")
    pixels = towers.normalise(images)
    with torch.no_grad():
        pooled, patch = pretrain.image_features(towers.model, images)
    every = torch.nn.functional.normalize(towers.encode_images(pixels, patches=True), dim=-1)
    torch.testing.assert_close(patch, torch.nn.functional.normalize(every.mean(1), dim=-1))
    torch.testing.assert_close(pooled, torch.nn.functional.normalize(towers.encode_images(pixels), dim=-1))


def test_training_is_deterministic(tmp_path) -> None:
    first, again = (pretrain.train(steps=2, seed=5, batch=24, workers=0) for _ in range(2))
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


def test_what_learned_prompts_can_gain_with_the_shipped_weights() -> None:
    """Hand-written prompts leave room, in the rare styles above all; patches and context count."""
    right = {name: found.float() for name, found in measure.measure(load_towers("compact"), per_class=25).items()}
    mean = {name: found.mean().item() for name, found in right.items()}
    assert 0.50 <= mean["zero-shot"] <= 0.65, mean
    assert mean["probe"] - mean["zero-shot"] >= 0.08, mean
    assert abs(mean["patch"] - mean["zero-shot"]) <= 0.10, mean
    assert mean["context"] <= mean["zero-shot"] - 0.03, mean
    rare = [shapes.STYLES.index(style) for style in pretrain.RARE]
    gain = right["style"].mean(1) - right["zero-shot"].mean(1)
    assert (gain[rare] >= 0.08).all(), gain
    assert right["zero-shot"].mean(1).min() >= 0.15, right["zero-shot"].mean(1)


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


def test_the_scripts_train_store_and_measure(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "compact.safetensors"
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), "--out", str(out), "--steps", "1", "--batch", "12", "--workers", "0"]
    )
    runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setitem(measure.main.__globals__, "PROBE_IMAGES", 1)
    monkeypatch.setattr(measure.measure, "__defaults__", (1, 0))
    measure.main(str(out))
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: [float(value) for value in line.split()[1:]] for line in lines[-5:]}
    assert set(rows) == {"zero-shot", "style", "context", "patch", "probe"}
    assert all(len(row) == len(shapes.STYLES) + 1 for row in rows.values())
    assert rows["zero-shot"][-1] == pytest.approx(np.mean(rows["zero-shot"][:-1]), abs=0.1)
