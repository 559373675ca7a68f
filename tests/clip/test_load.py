"""Towers by name and from files: whatever the layout, the features are those of the model that was saved."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fpl_tune.clip import Towers, load_towers
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.errors import ConfigError, EnvironmentProblem


@pytest.fixture(scope="module", autouse=True)
def _importable() -> None:
    ensure_importable()


def _small(kind: str, *, quick: bool) -> Any:
    """An open_clip CLIP whose heads are 64 wide, as in OpenAI's checkpoints, but small."""
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    if kind == "vit":
        vision = CLIPVisionCfg(layers=2, width=64, patch_size=16, image_size=32)
    else:
        vision = CLIPVisionCfg(layers=(1, 2, 1, 1), width=8, image_size=64)
    text = CLIPTextCfg(width=128, heads=2, layers=2, vocab_size=49408)
    torch.manual_seed(0)
    return CLIP(16, vision, text, quick_gelu=quick).eval()


class _Scripted(nn.Module):
    """A module with the parameters of `model` under their names, to be scripted as OpenAI's archives are."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for key, value in state.items():
            *parents, leaf = key.split(".")
            owner: nn.Module = self
            for parent in parents:
                if parent not in dict(owner.named_children()):
                    owner.add_module(parent, nn.Module())
                owner = owner.get_submodule(parent)
            owner.register_buffer(leaf, value)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _saved(model: Any, layout: str, path: Path) -> Path:
    """The file of a model in one of the layouts that people save; its path may be another one."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    sizes = {"input_resolution": torch.tensor(32), "context_length": torch.tensor(77)}
    if layout == "openai":
        torch.save(state | sizes, path)
    elif layout == "float32":
        torch.save(state, path)
    elif layout == "half":
        torch.save({k: v.half() if v.is_floating_point() else v for k, v in state.items()}, path)
    elif layout == "openai, half":
        halves = {k: v.half() if k.endswith("conv1.weight") else v for k, v in state.items()}
        torch.save(halves, path)
    elif layout == "openai, scripted":
        mask = {"transformer.resblocks.0.attn_mask": torch.zeros(77, 77), "attn_mask": torch.zeros(77, 77)}
        torch.jit.script(_Scripted(state | sizes | mask)).save(str(path))
    elif layout == "scripted":
        torch.jit.script(model).save(str(path))
    elif layout == "open_clip":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, path)
    else:
        path = path.with_suffix(".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
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


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*has other sizes than")
@pytest.mark.parametrize(("kind", "name"), [("vit", "ViT-B-32"), ("resnet", "RN50")])
@pytest.mark.parametrize(
    ("layout", "quick"),
    [
        ("openai", True),
        ("openai, half", True),
        ("openai, scripted", True),
        ("scripted", True),
        ("scripted", False),
    ],
)
def test_what_a_file_says_of_its_activation_is_taken(tmp_path, kind, name, layout, quick):
    model = _small(kind, quick=quick)
    path = _saved(model, layout, tmp_path / "weights.pt")
    towers = load_towers(name, str(path))
    if layout != "openai, half":  # rounded
        _agree(model, towers)
    assert towers.dtype == torch.float32
    (gelu,) = {type(module).__name__ for module in towers.model.modules() if "GELU" in type(module).__name__}
    assert gelu == ("QuickGELU" if quick else "GELU")


@pytest.mark.filterwarnings("ignore:.*has other sizes than")
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("layout", ["float32", "half", "safetensors", "open_clip"])
def test_an_activation_that_nothing_tells_must_be_named(tmp_path, layout, quick):
    model = _small("resnet", quick=quick)
    if layout == "half":
        model = model.half().float()
    path = _saved(model, layout, tmp_path / "RN50.pt")
    with pytest.raises(
        ConfigError, match=r"RN50.* does not say .* set clip.quick_gelu=true .* or clip.quick_gelu=false"
    ):
        load_towers("RN50", str(path))
    _agree(model, load_towers("RN50", str(path), quick_gelu=quick))
    if quick:
        _agree(model, load_towers("RN50-quickgelu", str(path)))


@pytest.mark.filterwarnings("ignore:.*has other sizes than")
@pytest.mark.parametrize(
    ("path", "quick"),
    [
        ("models--timm--resnet50_clip.openai/snapshots/0a1b/open_clip_model.safetensors", True),
        ("resnet50_clip.openai/open_clip_model.safetensors", True),
        ("resnet50_clip.openai.safetensors", True),
        ("CLIP-ViT-B-32-laion2B-s34B-b79K/open_clip_model.safetensors", False),
        ("vit_b_32-laion2b_e16-af8dbd0c.pth", False),
        ("rn50-quickgelu-cc12m-f000538c.pt", True),
        ("mine-quickgelu.safetensors", True),
    ],
)
def test_published_files_are_known_by_their_names(tmp_path, path, quick):
    kind, name = ("vit", "ViT-B-32") if "b_32" in path or "B-32" in path else ("resnet", "RN50")
    model = _small(kind, quick=quick)
    made = _saved(model, "safetensors" if path.endswith("safetensors") else "float32", tmp_path / Path(path).name)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    _agree(model, load_towers(name, str(made.rename(tmp_path / path))))


@pytest.mark.filterwarnings("ignore:.*has other sizes than")
@pytest.mark.parametrize(("config", "quick"), [({"quick_gelu": True}, True), ({}, False)])
def test_the_configuration_beside_a_file_is_read(tmp_path, config, quick):
    model = _small("vit", quick=quick)
    path = _saved(model, "safetensors", tmp_path / "open_clip_model.safetensors")
    beside = tmp_path / "open_clip_config.json"
    beside.write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    _agree(model, load_towers("ViT-B-32", str(path)))
    beside.write_text("{")
    with pytest.raises(EnvironmentProblem, match=r"open_clip_config.json cannot be read .* set clip.quick_gelu"):
        load_towers("ViT-B-32", str(path))


@pytest.mark.filterwarnings("ignore:.*has other sizes than")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_leaves_the_scale_at_100(tmp_path, dtype):
    model = _small("vit", quick=True)
    model.logit_scale.data.fill_(math.log(100))
    path = _saved(model, "half", tmp_path / "weights.pt")
    assert load_towers("ViT-B-32", str(path), quick_gelu=True, dtype=dtype).scale == pytest.approx(100, abs=1e-4)
    model.logit_scale.data.fill_(4.5)
    path = _saved(model, "half", tmp_path / "weights.pt")
    assert load_towers("ViT-B-32", str(path), quick_gelu=True, dtype=dtype).scale == pytest.approx(math.exp(4.5))


def test_the_activation_of_random_weights_may_be_named():
    with pytest.warns(UserWarning, match="random weights"):
        towers = load_towers("ViT-B-32", quick_gelu=True)
    assert type(towers.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    with pytest.raises(ConfigError, match=r"leave out clip\.quick_gelu=False"):
        load_towers("compact", quick_gelu=False)


@pytest.mark.parametrize(
    ("name", "tag", "remedy"),
    [
        ("RN50", "openai", r"download https://openaipublic\S+/RN50.pt to \S+/clip/RN50.pt, or"),
        ("ViT-B-32", "laion2b_s34b_b79k", r"open_clip_model.safetensors and .* clip.quick_gelu=false"),
    ],
)
def test_without_a_network_the_message_names_the_file(tmp_path, monkeypatch, name, tag, remedy):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for endpoint in ("https://localhost:9", "https://10.255.255.1"):  # a refused and an unanswered connection
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("fpl_tune.clip.load._ANSWER", 0.5)
        began = time.perf_counter()
        with pytest.raises(EnvironmentProblem, match=remedy) as refused:
            load_towers(name, tag)
        assert time.perf_counter() - began < 10
        assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*has other sizes than")
def test_a_file_in_openais_cache_folder_is_taken_for_the_tag(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = _small("resnet", quick=True)
    (tmp_path / ".cache" / "clip").mkdir(parents=True)
    _saved(model, "float32", tmp_path / ".cache" / "clip" / "RN50.pt")
    _agree(model, load_towers("RN50", "openai"))


def test_dtype_and_device_are_taken(tmp_path):
    path = _saved(_small("vit", quick=False), "open_clip", tmp_path / "weights.pt")
    with pytest.warns(UserWarning, match="other sizes"):
        towers = load_towers("ViT-B-32", str(path), quick_gelu=False, dtype=torch.bfloat16)
    assert towers.dtype == torch.bfloat16
    features = towers.encode_prompts(torch.zeros(2, 4, 128), towers.sentences(["cat", "dog"], 4))
    assert features.dtype == torch.float32
    assert features.isfinite().all()


def test_random_weights_follow_the_seed_and_leave_the_generator_alone(monkeypatch):
    import open_clip

    config = {
        "embed_dim": 16,
        "vision_cfg": {"layers": 1, "width": 64, "patch_size": 16, "image_size": 32},
        "text_cfg": {"width": 64, "heads": 1, "layers": 2, "context_length": 77, "vocab_size": 49408},
    }
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", config)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    prints = []
    for seed in (0, 0, 1):
        with pytest.warns(UserWarning, match=rf"tiny has random weights \(seed {seed}\)"):
            prints.append(load_towers("tiny", seed=seed).fingerprint)
    assert prints[0] == prints[1] != prints[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_compact_is_loaded_with_its_own_pixel_normalisation():
    from fpl_tune.clip import compact

    if not compact.weights_path().exists():
        pytest.skip("the compact weights are not in this checkout")
    towers = load_towers("compact")
    assert towers.mean == compact.MEAN
    assert towers.image_size == 32
    assert towers.text.blocks


def test_compact_takes_a_file_of_its_weights(tmp_path):
    from fpl_tune.clip import compact

    model, _ = compact.build()
    path = tmp_path / "mine.safetensors"
    safetensors.torch.save_file({name: value.half().contiguous() for name, value in model.state_dict().items()}, path)
    taken = load_towers("compact", str(path)).model.state_dict()
    assert all(torch.equal(taken[name], value.half().float()) for name, value in model.state_dict().items())
    assert load_towers("compact", str(path)).fingerprint != load_towers("compact").fingerprint
    with pytest.raises(ConfigError, match=r"'openai' is no file\. Write one by `make weights`"):
        load_towers("compact", "openai")
    for content in (b"no tensors", path.read_bytes()[:1000]):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ConfigError, match="does not hold the compact CLIP's weights"):
            load_towers("compact", str(tmp_path / "other"))
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ConfigError, match="does not hold the compact CLIP's weights"):
        load_towers("compact", str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        ("RN5", None, "no model 'RN5'. Did you mean 'RN50'"),
        ("RN50", "openia", "neither a file nor a tag of RN50. Did you mean 'openai'"),
        ("ViT-B-16-SigLIP", None, "text tower or tokenizer of .* is not CLIP's"),
        ("coca_ViT-B-32", None, "not CLIP's"),
    ],
)
def test_what_cannot_be_loaded_is_refused(name, pretrained, message):
    with pytest.raises(ConfigError, match=message):
        load_towers(name, pretrained)


def test_files_that_hold_no_fitting_clip_are_refused(tmp_path):
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"not a checkpoint")
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        load_towers("RN50", str(broken))
    other = tmp_path / "other.pt"
    torch.save({"weight": torch.zeros(2)}, other)
    with pytest.raises(ConfigError, match="holds no CLIP"):
        load_towers("RN50", str(other))
    torch.save([1, 2], other)
    with pytest.raises(ConfigError, match="no table of tensors"):
        load_towers("RN50", str(other))
    vit = _saved(_small("vit", quick=False), "open_clip", tmp_path / "vit.pt")
    with pytest.raises(ConfigError, match="holds a ViT, which RN50 is not"):
        load_towers("RN50", str(vit))
    state = _small("vit", quick=False).state_dict()
    del state["visual.proj"]
    torch.save(state, other)
    with pytest.raises(ConfigError, match="holds no CLIP"):
        load_towers("RN50", str(other))


def test_importing_the_package_does_not_import_open_clip():
    code = "import sys, fpl_tune.clip; sys.exit('open_clip' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "there"),
    [
        ("", False),
        pytest.param("import torch._dynamo", True, marks=pytest.mark.system),
        # A release that asks for more than there is.
        pytest.param("_openclip._COMPILER = _openclip._COMPILER[:1]", True, marks=pytest.mark.system),
    ],
)
def test_the_compiler_is_not_imported_until_it_is_asked_for(before: str, there: bool) -> None:
    program = f"""
import sys, torch
from fpl_tune.clip import _openclip, load_towers
{before}
load_towers("compact", None)
assert ("torch._dynamo" in sys.modules) is {there}
double = torch.compile(lambda x: 2 * x, backend="eager")
assert double(torch.ones(2)).tolist() == [2, 2]
from torchvision.transforms.functional import center_crop
assert center_crop(torch.ones(3, 8, 8), 4).shape == (3, 4, 4)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
