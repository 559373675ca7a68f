"""Small models and tokenizers in the files of open_clip and Hugging Face."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers as hf
from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers

NAMES = ("cat", "sea lion", "red_star", "Grey Wolf")
WORDS = "a photo of a"
TEXTS = [f"{WORDS} {name.replace('_', ' ')}." for name in NAMES]
SPECIALS = {
    "siglip": ["<pad>", "</s>", "<unk>"],
    "gemma": ["<pad>", "<eos>", "<bos>", "<unk>"],
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "xlm": ["<s>", "<pad>", "</s>", "<unk>"],
    "mt5": ["<pad>", "</s>", "<unk>"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "nllb": ["<s>", "<pad>", "</s>", "<unk>", "eng_Latn"],
}
TEMPLATES = {
    "siglip": "$A </s>",
    "gemma": "$A <eos>",
    "bert": "[CLS] $A [SEP]",
    "xlm": "<s> $A </s>",
    "mt5": "$A </s>",
    "roberta": "<s> $A </s>",
    "nllb": "eng_Latn $A </s>",
}
"""The end of a sentence and its padding as the released tokenizers have them."""


def family(name: str) -> str:
    """The kind of a tokenizer, by its name on the Hub."""
    for key, kind in (("SigLIP2", "gemma"), ("SigLIP", "siglip"), ("bert-base", "bert"), ("nllb", "nllb")):
        if key in name and "roberta" not in name:
            return kind
    return "xlm" if "xlm" in name else name.rpartition("/")[2].split("-")[0]


def write_tokenizer(folder: Path, kind: str) -> None:
    """A small tokenizer of a kind, trained on a few words, in Hugging Face's files."""
    specials, metaspace = SPECIALS[kind], pre_tokenizers.Metaspace(prepend_scheme="always")
    unknown = "[UNK]" if kind == "bert" else "<unk>"
    words = hf.Tokenizer(hf.models.BPE(unk_token=unknown))
    trainer: Any = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    if kind == "bert":
        words = hf.Tokenizer(hf.models.WordPiece(unk_token=unknown))
        words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    elif kind == "roberta":
        words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=330, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "gemma":
        words.normalizer = normalizers.Replace(" ", "▁")
        words.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    elif kind == "nllb":
        words.pre_tokenizer = metaspace
    corpus = [*TEXTS, *(text.lower() for text in TEXTS), "grey wolf in the sea", "abcdefghijklmnopqrstuvwxyz ."] * 4
    if kind in ("siglip", "xlm", "mt5"):
        pieces = dict.fromkeys(piece for text in corpus for word in text.split() for piece in (f"▁{word}", *word, "▁"))
        scores = [*((special, 0.0) for special in specials), *((piece, -10.0 / len(piece)) for piece in pieces)]
        words = hf.Tokenizer(hf.models.Unigram(scores, unk_id=specials.index(unknown)))
        words.pre_tokenizer = metaspace
    else:
        words.train_from_iterator(corpus, trainer)
    template = TEMPLATES[kind]
    used = [(token, words.token_to_id(token)) for token in template.split() if token != "$A"]
    words.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    words.save(str(folder / "tokenizer.json"))
    pad = {"siglip": "</s>", "bert": "[PAD]"}.get(kind, "<pad>")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "unk_token": unknown}
    if kind == "bert":
        config |= {"sep_token": "[SEP]", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


ENCODERS: dict[str, dict[str, Any]] = {
    "roberta": {"model_type": "roberta", "type_vocab_size": 1, "max_position_embeddings": 130},
    "xlm": {"model_type": "xlm-roberta", "type_vocab_size": 1, "max_position_embeddings": 130},
    "bert": {"model_type": "bert"},
    "mt5": {"model_type": "mt5", "d_model": 48, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 3},
    "nllb": {
        **{"model_type": "m2m_100", "d_model": 48, "encoder_layers": 2, "decoder_layers": 1, "pad_token_id": 1},
        **{"encoder_ffn_dim": 96, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    },
}
"""Configurations of Hugging Face for the text encoders that open_clip names, small."""


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of open_clip with two narrow text blocks and a small image tower."""
    text, vision = (
        dict(config["text_cfg"]),
        {"image_size": 32, "patch_size": 16, "width": 32, "head_width": 16, "layers": 1},
    )
    if "layers" in text:
        text |= {"layers": 2, "width": 48, "heads": 3}
    if "hf_tokenizer_name" in text:
        text["vocab_size"] = 400
        text["hf_tokenizer_name"] = family(text["hf_tokenizer_name"])
    if "hf_model_name" in text:
        text["hf_model_name"] = text["hf_tokenizer_name"]
    if "multimodal_cfg" in config:
        vision |= {"attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True}
    embed = 48 if text.get("proj_type") == "none" else 40
    return {**config, "embed_dim": embed, "text_cfg": text, "vision_cfg": vision}


def write_model(folder: Path, model: Mapping[str, Any]) -> Path:
    """The files of a model: `open_clip_config.json`, and Hugging Face's."""
    text = model["text_cfg"]
    if "hf_tokenizer_name" in text:
        kind = text["hf_tokenizer_name"]
        write_tokenizer(folder, kind)
        if "hf_model_name" in text:
            encoder = {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 3}
            encoder |= {"vocab_size": 400, "pad_token_id": SPECIALS[kind].index("[PAD]" if kind == "bert" else "<pad>")}
            (folder / "config.json").write_text(json.dumps(encoder | ENCODERS[kind]))
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": {}}))
    return folder
