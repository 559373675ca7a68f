"""Images are resized and normalised as by open_clip, for every tag, file and configuration."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fpl_tune.clip import compact, load_towers, preprocessing
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.core.errors import ConfigError
from fpl_tune.data.transform import CLIP, Transform

SHAPES = [(40, 30), (30, 40), (32, 32), (31, 33), (200, 16), (17, 251), (64, 32), (5, 7), (1, 9), (333, 500)]
"""Widths and heights."""


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def open_clips(size: int, config: dict[str, Any]) -> Any:
    """open_clip's own transform of an evaluated image."""
    from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict

    merged = merge_preprocess_dict(merge_preprocess_dict(PreprocessCfg(), config), {"size": size})
    return image_transform_v2(PreprocessCfg(**merged), is_train=False)


def same(how: Transform, theirs: Any, image: Image.Image, size: int) -> bool:
    """True if the pixels have the same bits, and the normalised ones differ by rounding at most."""
    *resized, _, _ = theirs.transforms
    expected = image
    for step in resized:
        expected = step(expected)
    kept = how.shrink(image, size)
    ours = how.normalise(torch.from_numpy(kept)).numpy()
    return np.array_equal(kept.transpose(1, 2, 0), np.asarray(expected)) and np.allclose(ours, theirs(image), atol=1e-6)


def test_every_tag_has_its_own_preprocessing() -> None:
    ensure_importable()
    import open_clip

    pairs = open_clip.list_pretrained()
    wrong = [
        (name, tag)
        for name, tag in pairs
        if not same(
            preprocessing.of_tags(name)[tag],
            open_clips(24, open_clip.get_pretrained_cfg(name, tag)),
            picture(40, 30),
            24,
        )
    ]
    assert wrong == []
    assert len(pairs) > 150


@pytest.mark.parametrize("resize", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
def test_images_of_all_shapes_have_the_bits_of_open_clip(resize: str, interpolation: str) -> None:
    ensure_importable()
    config = {"resize_mode": resize, "interpolation": interpolation, "mean": (0.1, 0.2, 0.3), "fill_color": 90}
    how, theirs = preprocessing.of_config(config), open_clips(32, config)
    assert [shape for shape in SHAPES if not same(how, theirs, picture(*shape), 32)] == []


@pytest.mark.system  # 75 million parameters
def test_a_file_has_the_preprocessing_that_all_tags_of_its_model_share(tmp_path: Path) -> None:
    ensure_importable()
    import open_clip

    model = open_clip.create_model("MobileCLIP2-S0").eval()
    path = tmp_path / "mobile.pt"
    torch.save(model.state_dict(), path)
    towers = load_towers("MobileCLIP2-S0", str(path), quick_gelu=False)
    assert towers.preprocessing == Transform("shortest", "bilinear", (0, 0, 0), (1, 1, 1))
    theirs, image = open_clips(256, open_clip.get_pretrained_cfg("MobileCLIP2-S0", "dfndr2b")), picture(300, 200)
    pixels = towers.preprocessing.normalise(torch.from_numpy(towers.preprocessing.shrink(image, 256)))[None]
    with torch.no_grad():
        expected = model.encode_image(theirs(image)[None])
    torch.testing.assert_close(towers.encode_images(pixels), expected, rtol=1e-4, atol=1e-4)


def test_where_weights_of_a_model_differ_a_file_must_name_a_tag() -> None:
    ensure_importable()
    path = Path("weights.pt")
    with pytest.raises(ConfigError, match=r"^weights\.pt does not say .* set clip\.preprocess to the tag .*dfn5b"):
        preprocessing.of_file("ViT-H-14", path, "auto", None)
    assert preprocessing.of_file("ViT-H-14", path, "dfn5b", None) == Transform("squash")
    assert preprocessing.of_file("ViT-H-14", path, "laion2b_s32b_b79k", None) == CLIP
    assert preprocessing.of_file("ViT-L-14", path, "laion2b_s32b_b82k", CLIP).mean == (0.5, 0.5, 0.5)
    assert preprocessing.of_file("ViT-L-14", path, "auto", CLIP) == CLIP, "OpenAI's layout says it"
    assert preprocessing.of_file("ViT-B-16", path, "auto", None) == CLIP, "all of its tags agree"
    with pytest.raises(ConfigError, match=r"tag of ViT-H-14 for clip\.preprocess 'dfn5'.*'dfn5b'"):
        preprocessing.of_file("ViT-H-14", path, "dfn5", None)


@pytest.mark.parametrize(("name", "pretrained"), [("compact", None), ("RN50", "openai"), ("RN50", None)])
def test_a_tag_or_towers_of_their_own_take_no_other_preprocessing(name: str, pretrained: str | None) -> None:
    with pytest.raises(ConfigError, match=r"clip\.preprocess=openai is for weights from a file; leave it out"):
        load_towers(name, pretrained, preprocess="openai")


def test_weights_of_the_compact_clip_take_no_other_preprocessing() -> None:
    with pytest.raises(ConfigError, match=r"clip\.preprocess=openai .* leave it out"):
        load_towers("compact", str(compact.weights_path()), preprocess="openai")


def test_a_folder_states_its_own(tmp_path: Path) -> None:
    ensure_importable()
    import open_clip

    text = {"width": 64, "heads": 1, "layers": 1, "vocab_size": 49408, "context_length": 77}
    vision = {"layers": 1, "width": 64, "patch_size": 16, "image_size": 32}
    own = {"resize_mode": "squash", "interpolation": "bilinear", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]}
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": own}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    name = f"local-dir:{tmp_path}"
    model, _, theirs = open_clip.create_model_and_transforms(name)
    path = tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    with pytest.warns(UserWarning, match="random weights"):
        drawn = load_towers(name)
    towers = load_towers(name, str(path), quick_gelu=False)
    assert (
        towers.preprocessing == drawn.preprocessing == Transform("squash", "bilinear", (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    )
    assert same(towers.preprocessing, theirs, picture(50, 20), 32)


def test_towers_that_see_images_in_another_way_have_another_fingerprint() -> None:
    towers = load_towers("compact")
    prints = {towers.fingerprint}
    ways = [Transform("squash"), Transform("squash", "bilinear"), Transform("longest"), Transform("longest", fill=9)]
    for how in [CLIP, *ways]:
        prints.add(type(towers)(towers.model, towers.tokenizer, name="compact", preprocessing=how).fingerprint)
    assert len(prints) == 2 + len(ways)
