"""What forks call of OpenAI's code, on open_clip's reader of its checkpoints."""

from typing import Any

import torch

from fpl_tune.clip._openclip import ensure_importable

ensure_importable()
from open_clip.model import build_model_from_openai_state_dict  # noqa: E402
from open_clip.tokenizer import SimpleTokenizer  # noqa: E402

_MODELS = {"ViT-B/16": "https://example.org/ViT-B-16.pt"}


def _download(url: str) -> str:  # pyright: ignore[reportUnusedFunction]
    raise OSError(f"no network for {url}")


def build_model(state_dict: dict[str, Any]) -> Any:
    return build_model_from_openai_state_dict(state_dict, cast_dtype=torch.float32)


def tokenize(texts: list[str]) -> torch.Tensor:
    return SimpleTokenizer()(texts, context_length=77)
