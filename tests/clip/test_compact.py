"""The compact CLIP, its tokenizer, and `benchmarks/world/pretrain.py`, which trained its weights."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fpl_tune.clip import compact, load_towers
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.data import shapes

ensure_importable()
from open_clip.tokenizer import SimpleTokenizer  # noqa: E402

WORLD = Path(__file__).resolve().parents[2] / "benchmarks" / "world"
SCRIPT = WORLD / "pretrain.py"
pretrain = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
measure = SimpleNamespace(**runpy.run_path(str(WORLD / "measure.py")))


@pytest.mark.parametrize("word", ["elephant", "giraffe", "café", "x-ray", "鼠"])
def test_unknown_words_are_spelled(word: str) -> None:
    tokenizer = compact.CompactTokenizer()
    ids = tokenizer.encode(word)
    assert max(ids) < tokenizer.sot
    letters = SimpleTokenizer().byte_encoder
    spelled = "".join(tokenizer.pieces[index].removesuffix("</w>") for index in ids)
    assert spelled == "".join(letters[byte] for byte in word.encode())


@pytest.mark.parametrize("text", ["", "a fox's café, x-ray 鼠", "İ ﬁ &amp; ﷺ", "ǅ" * 50, "the <end_of_text> of"])
def test_pieces_are_those_of_open_clips_tokenizer(text: str) -> None:
    tokenizer = SimpleTokenizer()
    assert compact._pieces(text) == [tokenizer.decoder[index] for index in tokenizer.encode(text)]


def test_end_token_is_the_largest_id() -> None:
    tokenizer = compact.CompactTokenizer()
    model, _ = compact.build()
    assert tokenizer.eot == tokenizer.n_vocabulary - 1 == model.vocab_size - 1
    assert len(model.state_dict()["positional_embedding"]) == tokenizer.n_positions


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


@pytest.mark.system
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
