"""Every text encoder of open_clip takes a context, and a hand-written prompt as the context gives its own features."""

import json
import sys
from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers as hf
import torch
import torch.nn.functional as F
from tokenizers import processors

from fpl_tune.clip import Sentences, Towers, load, load_towers, tokenizer
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.clip.text import cost
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.methods.fedlora import FedLoRA
from fpl_tune.methods.fedmaple import FedMaPLe
from fpl_tune.testing.extensions import check_towers

from .conftest import NAMES, SPECIALS, TEXTS, WORDS, shrunk, write_model, write_tokenizer

ensure_importable()

import open_clip  # noqa: E402
from open_clip.tokenizer import HFTokenizer  # noqa: E402


def text_configs() -> dict[str, dict[str, Any]]:
    """All configurations of open_clip, shrunk: one for each that is another then, by the name of its first model."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in open_clip.list_models():
        config = shrunk(open_clip.get_model_config(name) or {})
        found.setdefault(json.dumps(config, sort_keys=True), (name, config))
    return dict(found.values())


CONFIGS = text_configs()
BIOMED = {
    "text_cfg": {
        **{"hf_model_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract", "context_length": 256},
        **{
            "hf_tokenizer_name": "bert-base-uncased",
            "hf_proj_type": "mlp",
            "hf_pooler_type": "cls_last_hidden_state_pooler",
        },
    },
}
"""As BiomedCLIP has it."""
CONFIGS["biomedclip"] = shrunk(BIOMED)


def own_ids(folder: Path, towers: Towers, text: Mapping[str, Any]) -> torch.Tensor:
    """Ids of `TEXTS` by open_clip's own tokenizers."""
    length, options = towers.tokenizer.n_positions, text.get("tokenizer_kwargs", {})
    if "hf_tokenizer_name" in text:
        return HFTokenizer(str(folder), context_length=length, **options)(TEXTS)
    return open_clip.SimpleTokenizer(**options)(TEXTS, context_length=length)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_a_hand_written_prompt_as_the_context_gives_open_clips_features(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    towers = load_towers(f"local-dir:{write_model(tmp_path, config)}")
    with torch.no_grad():
        own = towers.model.encode_text(own_ids(tmp_path, towers, config["text_cfg"]), normalize=True)
        context = towers.words(WORDS)
        whole = F.normalize(towers.encode_text(TEXTS), dim=-1)
        for plain in (False, True):
            sentences = towers.sentences(NAMES, len(context))
            features = F.normalize(towers.encode_prompts(context, sentences, plain=plain), dim=-1)
            torch.testing.assert_close(features, own, atol=1e-5, rtol=0)
    torch.testing.assert_close(whole, own, atol=1e-5, rtol=0)
    assert (own[0] - own[1]).abs().max() > 1e-3, "classes differ"


SIGLIP, BERT, NLLB, COCA = "ViT-B-16-SigLIP", "biomedclip", "nllb-clip-base", "coca_ViT-B-32"


@pytest.mark.parametrize("name", [SIGLIP, BERT, "ViT-L-14-worldwide", COCA])
@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_towers_of_every_kind_keep_the_rules_of_towers(name: str, tmp_path: Path) -> None:
    """Several prompts at once, a gradient by the context, pooled image features."""
    check_towers(load_towers(f"local-dir:{write_model(tmp_path, CONFIGS[name])}"))


LIKE_BERT = [BERT, *(name for name in CONFIGS if name.startswith(("roberta", "xlm-roberta")))]
WHOLE = [
    *((name, None) for name, config in CONFIGS.items() if config["text_cfg"].get("no_causal_mask")),
    *((name, f"{pooler}_pooler") for name in LIKE_BERT for pooler in ("cls", "cls_last_hidden_state", "mean")),
]


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("name", "pooler"), WHOLE)
@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_sentences_that_share_nothing_are_packed_and_equal_their_modules(
    name: str, pooler: str | None, blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and gradients, with sentences of several lengths, in blocks as on accelerators, and in turns."""
    config = CONFIGS[name]
    if pooler is not None:
        config = {**config, "text_cfg": {**config["text_cfg"], "hf_pooler_type": pooler}}
    towers = load_towers(f"local-dir:{write_model(tmp_path, config)}", dtype=torch.float64)
    monkeypatch.setattr(Sentences, "layout", partialmethod(Sentences.layout, blocks=blocks))
    sentences = towers.sentences(NAMES, 2)
    assert towers.text.blocks
    assert not towers.text.reading.causal
    for per_class in (False, True):
        shape = (3, *([len(NAMES)] if per_class else []), 2, towers.text_width)
        draw = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        context = (0.1 * draw).requires_grad_()
        weight = torch.linspace(-1, 1, 3 * len(NAMES) * towers.embed_dim, dtype=torch.float64)
        found = []
        ways: list[dict[str, Any]] = [{"plain": True}, {}, {"block": 9}]
        for how in ways:
            features = towers.encode_prompts(context, sentences, per_class=per_class, **how)
            (gradient,) = torch.autograd.grad((features.flatten() * weight).sum(), context)
            found.append((features.detach(), gradient))
        for ours in found[1:]:
            for x, reference in zip(ours, found[0], strict=True):
                torch.testing.assert_close(x, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [SIGLIP, BERT, COCA])
@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_costs_count_every_token_of_the_sentences_that_are_run(name: str, tmp_path: Path) -> None:
    """Two operations a weight that a token passes and more for attention; the backward pass costs as much again."""
    towers = load_towers(f"local-dir:{write_model(tmp_path, CONFIGS[name])}")
    sentences = towers.sentences(NAMES, 2)
    tokens = sum(sentences.lengths) if name == BERT else len(NAMES) * towers.tokenizer.n_positions
    one, three = (cost(towers.text, sentences, n) for n in (1, 3))
    assert (one.tokens, three.tokens) == (tokens, 3 * tokens)
    modules = towers.model.text.transformer.modules()
    layers = [m for m in modules if isinstance(m, torch.nn.Linear | torch.nn.MultiheadAttention)]
    weights = sum(p.numel() for m in layers for p in m.parameters(recurse=False) if p.dim() == 2)
    whole = 1 if name == COCA else 0.4  # of the last of two blocks, one token a sentence
    assert whole * 2 * weights * one.tokens < one.forward < 4 * weights * one.tokens
    assert one.backward < 2 * one.forward
    assert three.backward == 3 * one.backward
    assert 2 * one.forward < three.forward <= 3 * one.forward, "words are projected once for all prompts"
    assert towers.text.prompts_at_once(sentences, torch.float32) > 100, "of these few tokens"


@pytest.mark.parametrize("name", [SIGLIP, BERT, COCA])
@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_prompts_in_turns_and_contexts_of_each_class_give_the_same_features(name: str, tmp_path: Path) -> None:
    towers = load_towers(f"local-dir:{write_model(tmp_path, CONFIGS[name])}", dtype=torch.float64)
    sentences = towers.sentences(NAMES, 2)
    context = torch.randn(3, 2, towers.text_width, dtype=torch.float64, requires_grad=True)
    at_once = towers.encode_prompts(context, sentences)
    in_turns = towers.encode_prompts(context, sentences, block=1)
    own = towers.encode_prompts(context[:, None].expand(-1, len(NAMES), -1, -1), sentences, per_class=True)
    torch.testing.assert_close(in_turns, at_once)
    torch.testing.assert_close(own, at_once)
    for features in (in_turns, own):
        gradients = (torch.autograd.grad(x.square().sum(), context, retain_graph=True)[0] for x in (features, at_once))
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(towers.encode_prompts(context[1], sentences), at_once[1])


@pytest.mark.filterwarnings("ignore:The text tower")
def test_weights_are_loaded_beside_their_tokenizer(tmp_path: Path) -> None:
    """As a repository of the Hub has them: the weights' folder has the tokenizer, the name the architecture."""
    folder = write_model(tmp_path, CONFIGS[BERT])
    with pytest.warns(UserWarning, match="random weights"):
        drawn = load_towers(f"local-dir:{folder}", seed=3)
    weights = tmp_path / "weights.pt"
    torch.save(drawn.model.state_dict(), weights)
    read = load_towers(f"local-dir:{folder}", str(weights))
    torch.testing.assert_close(read.encode_text(TEXTS), drawn.encode_text(TEXTS))
    assert read.fingerprint == drawn.fingerprint
    before = load.weights_print(f"local-dir:{folder}", str(weights))
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_text((folder / name).read_text() + " ")
        after, before = before, load.weights_print(f"local-dir:{folder}", str(weights))
        assert after != before, "what sentences become is part of what a result depends on"


@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
def test_what_fills_a_sentence_up_counts_where_the_tower_sees_it(tmp_path: Path) -> None:
    """SigLIP's features are those of the last token, and all tokens see it; BERT's do not see it."""
    for name, counts in ((SIGLIP, True), (BERT, False)):
        (folder := tmp_path / name).mkdir()
        towers = load_towers(f"local-dir:{write_model(folder, CONFIGS[name])}")
        few = towers.encode_text(["a cat"])
        both = towers.encode_text(["a cat", "a photo of a sea lion in the sea"])[:1]
        torch.testing.assert_close(both, few)
        towers.text.pad += 5
        assert torch.allclose(towers.encode_text(["a cat"]), few) != counts


@pytest.mark.filterwarnings("ignore:.*random weights", "ignore:The text tower")
@pytest.mark.parametrize("name", [BERT, COCA])
def test_methods_that_reach_into_text_blocks_are_refused(name: str, tmp_path: Path) -> None:
    towers = load_towers(f"local-dir:{write_model(tmp_path, CONFIGS[name])}")
    sizes: Any = SimpleNamespace(vision_width=32, n_vision_blocks=12, n_text_blocks=towers.n_text_blocks)
    for method in (FedMaPLe(), FedLoRA()):
        with pytest.raises(ConfigError, match="needs a text tower whose blocks prompts and branches reach"):
            method.check(sizes)
    FedLoRA(towers="image").check(sizes)
    sentences = towers.sentences(NAMES, 2)
    context = torch.zeros(2, towers.text_width)
    with pytest.raises(ConfigError, match="reach inside the text tower of 'local-dir:"):
        towers.encode_prompts(context, sentences, deep=context[None])


def test_a_tokenizer_that_is_missing_is_named_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = (
        r"tokenizer of ViT-B-16-SigLIP could not be fetched .*: put tokenizer\.json and tokenizer_config\.json of "
        r"https://huggingface\.co/timm/ViT-B-16-SigLIP beside the weights"
    )
    with pytest.raises(EnvironmentProblem, match=message):
        load_towers(SIGLIP)
    (tmp_path / "weights.pt").touch()
    with pytest.raises(EnvironmentProblem, match=message):
        load_towers(SIGLIP, str(tmp_path / "weights.pt"))


def test_a_text_encoder_that_is_missing_is_named_with_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, CONFIGS[BERT])
    (folder / "config.json").write_text('{"model_type": "clip"}')  # that of a whole model
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = r"text encoder of local-dir:.* could not be fetched .*: put config\.json of https://huggingface\.co/bert"
    with pytest.warns(UserWarning, match="random weights"), pytest.raises(EnvironmentProblem, match=message):
        load_towers(f"local-dir:{folder}")


@pytest.mark.filterwarnings("ignore:.*random weights")
def test_packages_of_hugging_face_are_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS[BERT])
    with monkeypatch.context() as patched:
        patched.setattr("fpl_tune.clip.load.import_transformers", lambda: False)
        with pytest.raises(EnvironmentProblem, match=r"pip install 'fpl-tune\[hf\]'"):
            load_towers(f"local-dir:{folder}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'fpl-tune\[hf\]'"):
        load_towers(f"local-dir:{folder}")


@pytest.mark.parametrize(
    ("template", "config", "message"),
    [
        ("<s> eng_Latn $A </s>", {}, "puts 2 tokens before a sentence and 1 behind it"),
        ("$A", {}, "puts 0 tokens before a sentence and 0 behind it"),
        (None, {"pad_token": None}, "names no pad_token"),
    ],
)
def test_a_tokenizer_whose_sentences_have_another_form_is_refused(
    template: str | None, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, CONFIGS[NLLB])
    words = hf.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if template is not None:
        used = [(token, words.token_to_id(token)) for token in template.split() if token != "$A"]
        words.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
        words.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ConfigError, match=message):
        load_towers(f"local-dir:{folder}")


def test_special_tokens_may_be_tables_and_unknown_modes_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS[NLLB])
    text = CONFIGS[NLLB]["text_cfg"]
    plain = tokenizer.of_config("nllb", text, [folder])
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": {"content": "<pad>", "lstrip": False}}))
    assert tokenizer.of_config("nllb", text, [folder]).pad == plain.pad == SPECIALS["nllb"].index("<pad>")
    with pytest.raises(ConfigError, match="tokenised by 'clips'"):
        tokenizer.of_config("nllb", {**text, "tokenizer_mode": "clips"}, [folder])


def test_a_word_inside_a_sentence_has_its_space(tmp_path: Path) -> None:
    """RoBERTa's byte pairs differ between the first word and the next ones."""
    write_tokenizer(tmp_path, "roberta")
    words = tokenizer.of_config("roberta", {"hf_tokenizer_name": "roberta-base"}, [tmp_path])
    whole = words.encode("sea lion")
    assert words.encode("sea") + words.encode("lion", inside=True) == whole
    assert words.encode("sea") + words.encode("lion") != whole
    assert words.encode("", inside=True) == []


def test_a_folder_that_describes_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": []}')
    with pytest.raises(ConfigError, match="is no configuration of open_clip"):
        load_towers(f"local-dir:{tmp_path}")
    write_model(tmp_path, CONFIGS[BERT])
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json is no configuration of Hugging Face"):
            load_towers(f"local-dir:{tmp_path}")
