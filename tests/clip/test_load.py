"""Towers by name and from files: whatever the layout, the features are those of the model that was saved."""

import hashlib
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fpl_tune.clip import Towers, compact, load_towers
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.clip.load import model_content, outline_towers, weights_here, weights_print
from fpl_tune.config import compose_run, identity
from fpl_tune.core.errors import ConfigError, EnvironmentProblem

_SMALL: dict[str, dict[str, Any]] = {
    "small-vit": {"layers": 2, "width": 64, "patch_size": 16, "image_size": 32},
    "small-resnet": {"layers": [1, 2, 1, 1], "width": 8, "image_size": 64},
}


@pytest.fixture(scope="module", autouse=True)
def _small_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Registers `small-vit`, `small-resnet` and their `-quickgelu` twins with open_clip."""
    ensure_importable()
    import open_clip

    folder = tmp_path_factory.mktemp("models")
    text = {"width": 128, "heads": 2, "layers": 2, "vocab_size": 49408, "context_length": 77}
    for name, vision in _SMALL.items():
        for quick in (False, True):
            config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text, "quick_gelu": quick}
            (folder / f"{name}{'-quickgelu' * quick}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def _small(kind: str, *, quick: bool) -> Any:
    import open_clip

    torch.manual_seed(0)
    return open_clip.create_model(f"small-{kind}", quick_gelu=quick).eval()


def _saved(model: Any, layout: str, path: Path) -> Path:
    """The file of a model in one of the layouts that people save; its path may be another one."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if layout == "openai":
        torch.save(state | {"input_resolution": torch.tensor(32), "context_length": torch.tensor(77)}, path)
    elif layout == "float32":
        torch.save(state, path)
    elif layout == "half":
        torch.save({k: v.half() if v.is_floating_point() else v for k, v in state.items()}, path)
    elif layout == "scripted":
        torch.jit.script(model).save(str(path))
    elif layout == "open_clip":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, path)
    else:
        path = path.with_suffix(".safetensors")
        safetensors.torch.save_file(state, path)
    return path


def _agree(model: Any, towers: Towers) -> None:
    """The towers give the features that open_clip's own forward gives."""
    import open_clip

    texts = ["a photo of a cat.", "a drawing"]
    with torch.no_grad():
        reference = model.encode_text(open_clip.tokenize(texts))
        torch.testing.assert_close(towers.encode_text(texts), reference, rtol=1e-4, atol=1e-5)
        pixels = torch.randn(2, 3, towers.image_size, towers.image_size)
        torch.testing.assert_close(towers.encode_images(pixels), model.encode_image(pixels))


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_openais_entries_tell_the_activation(tmp_path, kind):
    model = _small(kind, quick=True)
    towers = load_towers(f"small-{kind}", str(_saved(model, "openai", tmp_path / "weights.pt")))
    _agree(model, towers)
    assert towers.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_of_archives_with_code_only_openais_are_loaded(tmp_path, monkeypatch):
    model = _small("resnet", quick=True)
    path = _saved(model, "scripted", tmp_path / "RN50.pt")
    with pytest.raises(EnvironmentProblem, match="it holds more than tensors and plain values"):
        load_towers("small-resnet", str(path), quick_gelu=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("open_clip.get_pretrained_url", lambda *_: f"https://openaipublic/{found}/RN50.pt")
    with pytest.raises(ConfigError, match=r"does not fit .* Unexpected key\(s\) in state_dict: \"attn_mask\"\.\)"):
        load_towers("small-resnet", str(path), quick_gelu=True)  # read; open_clip scripts a mask that OpenAI's lack


@pytest.mark.parametrize("layout", ["float32", "half", "safetensors", "open_clip"])
def test_an_activation_that_nothing_tells_must_be_named(tmp_path, layout):
    model = _small("resnet", quick=True)
    if layout == "half":
        model = model.half().float()
    path = _saved(model, layout, tmp_path / "RN50.pt")
    with pytest.raises(
        ConfigError, match=r"RN50.* does not say .* set clip.quick_gelu=true .* or clip.quick_gelu=false"
    ):
        load_towers("small-resnet", str(path))
    _agree(model, load_towers("small-resnet", str(path), quick_gelu=True))
    _agree(model, load_towers("small-resnet-quickgelu", str(path)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_leaves_the_scale_at_100(tmp_path, dtype):
    model = _small("vit", quick=True)
    model.logit_scale.data.fill_(math.log(100))
    path = _saved(model, "float32", tmp_path / "weights.pt")
    assert load_towers("small-vit", str(path), quick_gelu=True, dtype=dtype).scale == pytest.approx(100, abs=1e-4)


def test_the_activation_of_random_weights_may_be_named():
    with pytest.warns(UserWarning, match="random weights"):
        towers = load_towers("small-vit", quick_gelu=True)
    assert type(towers.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    with pytest.raises(ConfigError, match=r"leave out clip\.quick_gelu=False"):
        load_towers("compact", quick_gelu=False)


@pytest.mark.parametrize(
    ("name", "tag", "remedy"),
    [
        ("RN50", "openai", r"download https://openaipublic\S+/RN50.pt and set .* clip.quick_gelu=true"),
        ("ViT-B-32", "laion2b_s34b_b79k", r"open_clip_model.safetensors and set .* clip.quick_gelu=false"),
    ],
)
def test_without_a_network_the_message_names_the_file(tmp_path, monkeypatch, name, tag, remedy):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match=remedy) as refused:
        load_towers(name, tag)
    assert "\n" not in str(refused.value)


def test_an_architecture_of_its_own_configuration(tmp_path):
    """Three layers, as no named model has; a file whose sizes differ is refused, not resized."""
    import open_clip

    text = {"width": 128, "heads": 2, "layers": 3, "vocab_size": 49408, "context_length": 77}
    vision = {"layers": 3, "width": 64, "patch_size": 16, "image_size": 32}
    path = tmp_path / "open_clip_config.json"
    with pytest.raises(ConfigError, match=f"There is no {path}"):
        load_towers(f"local-dir:{tmp_path}")
    path.write_text(json.dumps({"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}}))
    torch.manual_seed(0)
    model = open_clip.create_model(f"local-dir:{tmp_path}").eval()
    weights = _saved(model, "float32", tmp_path / "mine.pt")
    towers = load_towers(f"local-dir:{tmp_path}", str(weights))
    assert (towers.n_text_blocks, towers.n_vision_blocks) == (3, 3)
    _agree(model, towers)
    path.write_text(path.read_text().replace('"image_size": 32', '"image_size": 48'))
    with pytest.raises(ConfigError, match=r"does not fit local-dir:.*visual\.positional_embedding"):
        load_towers(f"local-dir:{tmp_path}", str(weights))


def test_random_weights_follow_the_seed_and_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    prints = []
    for seed in (0, 0, 1):
        with pytest.warns(UserWarning, match=rf"small-vit has random weights \(seed {seed}\)"):
            prints.append(load_towers("small-vit", seed=seed).fingerprint)
    assert prints[0] == prints[1] != prints[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_compact_takes_a_file_of_its_weights(tmp_path):
    model, _ = compact.build()
    path = tmp_path / "mine.safetensors"
    safetensors.torch.save_file({name: value.half().contiguous() for name, value in model.state_dict().items()}, path)
    taken = load_towers("compact", str(path)).model.state_dict()
    assert all(torch.equal(taken[name], value.half().float()) for name, value in model.state_dict().items())
    with pytest.raises(ConfigError, match=r"'openai' is no file\. Write one by `make weights`"):
        load_towers("compact", "openai")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="does not hold the compact CLIP's weights"):
        load_towers("compact", str(path))


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        ("RN5", None, "no model 'RN5'. Did you mean 'RN50'"),
        ("RN50", "openia", "neither a file nor a tag of RN50. Did you mean 'openai'"),
    ],
)
def test_what_cannot_be_loaded_is_refused(name, pretrained, message):
    with pytest.raises(ConfigError, match=message):
        load_towers(name, pretrained)


@pytest.mark.parametrize(
    ("before", "there", "timm"),
    [
        ("", False, False),
        pytest.param("import torch._dynamo", True, False, marks=pytest.mark.system),
        # A release that asks for more than there is.
        pytest.param("_openclip._COMPILER = _openclip._COMPILER[:1]", True, True, marks=pytest.mark.system),
    ],
)
def test_open_clip_timm_and_the_compiler_are_not_imported_until_they_are_asked_for(
    before: str, there: bool, timm: bool
) -> None:
    program = f"""
import sys, torch
import fpl_tune.clip
assert not {{"open_clip", "torchvision"}} & sys.modules.keys()
from fpl_tune.clip import _openclip, load_towers
{before}
load_towers("compact", None)
assert ("timm" in sys.modules) is ("transformers" in sys.modules) is {timm}
from open_clip import timm_model
assert timm_model.to_2tuple(3) == (3, 3)
assert "timm" in sys.modules
assert ("torch._dynamo" in sys.modules) is {there}
double = torch.compile(lambda x: 2 * x, backend="eager")
assert double(torch.ones(2)).tolist() == [2, 2]
from torchvision.transforms.functional import center_crop
assert center_crop(torch.ones(3, 8, 8), 4).shape == (3, 4, 4)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("content", [b"not a checkpoint", {"weight": [1, 2]}])
def test_a_file_without_tensors_cannot_be_read(tmp_path, content):
    path = tmp_path / "weights.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        load_towers("small-resnet", str(path))


def test_tensors_of_another_model_are_refused(tmp_path):
    path = _saved(_small("vit", quick=False), "float32", tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="does not fit small-resnet: give the name"):
        load_towers("small-resnet", str(path), quick_gelu=False)


def test_weights_are_known_by_the_content_of_every_file_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it lies; what open_clip names or draws has no file."""
    first, copied, other = (tmp_path / name for name in ("first.pt", "copied.pt", "other.pt"))
    first.write_bytes(b"weights")
    copied.write_bytes(b"weights")
    other.write_bytes(b"others")
    assert weights_print("RN50", str(first)) == weights_print("RN50", str(copied)) != weights_print("RN50", str(other))
    assert [weights_print("RN50", given) for given in (None, "openai", str(tmp_path / "none.pt"))] == [""] * 3
    shipped = weights_print("compact")
    assert shipped == weights_print("compact", str(compact.weights_path())) != weights_print("compact", str(other))
    assert len(shipped) == len(weights_print("RN50", str(first))) == 16
    name, written = f"local-dir:{tmp_path}", tmp_path / "open_clip_config.json"
    found = set()
    for text in ('{"model_cfg": {"text_cfg": {}}}', '{"model_cfg": {"text_cfg": {"width": 8}}}'):
        written.write_text(text)
        found |= {weights_print(name, given) for given in (None, str(first), str(other))}
    assert len(found - {""}) == 6
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert weights_print(f"local-dir:~/{tmp_path.name}") == weights_print(name)
    written.unlink()
    assert weights_print(name, str(first)) == weights_print("no model", str(first)), "what is left to read"


def test_a_model_in_a_folder_is_known_by_what_describes_it(tmp_path: Path) -> None:
    """So that cells move with it; without the folder there is the path."""
    one, copied, other = (tmp_path / name for name in ("one", "copied", "other"))
    for folder in (one, copied, other):
        folder.mkdir()
        (folder / "open_clip_config.json").write_text("{}")
    (other / "tokenizer.json").write_text("{}")
    (one / "README.md").write_text("A model.")
    names = [model_content(f"local-dir:{folder}") for folder in (one, copied, other)]
    assert names[0] == names[1] != names[2]
    missing = f"local-dir:{tmp_path}"
    assert [model_content(name) for name in ("compact", "RN50", missing)] == ["compact", "RN50", missing]
    ids = [identity(compose_run([f"clip.name=local-dir:{folder}"])) for folder in (one, copied, other)]
    assert ids[0] == ids[1] != ids[2]


def test_towers_to_plan_with_fetch_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # OpenAI's cache is in it
    for weights in ("openai", "/shared/RN50.pt"):
        towers = outline_towers("RN50", weights)
        assert (towers.embed_dim, towers.text_width, towers.image_size) == (1024, 512, 224)
    assert not weights_here("RN50", "openai")
    assert weights_here("compact", None)
    with pytest.raises(ConfigError, match="Did you mean 'openai'"):
        outline_towers("RN50", "opnai")


def test_what_a_library_says_of_its_tries_is_left_to_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten tries without a network are 26 lines."""

    def away(*_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 8s [Retry 4/5].")
        logging.error("Failed to download weights")
        raise OSError("no network")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("open_clip.create_model", away)
    with pytest.raises(EnvironmentProblem, match=r"could not be fetched \(no network\)"):
        load_towers("RN50", "openai")
    assert caplog.records == []
