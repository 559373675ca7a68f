"""Tokenizers in one shape: CLIP's byte pairs, and a `tokenizer.json` of Hugging Face as open_clip applies it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fpl_tune.core.errors import ConfigError, EnvironmentProblem

FILES = ("tokenizer.json", "tokenizer_config.json")
N_POSITIONS = 77
"""Tokens of a sentence where a configuration does not say."""


class Tokenizer(Protocol):
    """The interface of a tokenizer. `encode` returns token ids without SOS and EOT."""

    @property
    def sot(self) -> int | None:
        """Id that begins a sentence, if one does."""
        ...

    @property
    def eot(self) -> int:
        """Id that ends a sentence."""
        ...

    @property
    def pad(self) -> int:
        """Id that fills a sentence up."""
        ...

    @property
    def n_positions(self) -> int: ...

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of a text that begins a sentence, or with `inside` follows other words."""
        ...


@dataclass(frozen=True)
class OpenClipTokenizer:
    """open_clip's byte-pair tokenizer."""

    tokenizer: Any
    n_positions: int = N_POSITIONS
    pad: int = 0

    @property
    def sot(self) -> int:
        return self.tokenizer.sot_token_id

    @property
    def eot(self) -> int:
        return self.tokenizer.eot_token_id

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of a text; the same wherever it stands."""
        del inside
        return self.tokenizer.encode(self.tokenizer.clean_fn(text))


@dataclass(frozen=True)
class FileTokenizer:
    """A tokenizer of Hugging Face, read from its files by the package `tokenizers`.

    Attributes:
        tokenizer: a `tokenizers.Tokenizer` that neither pads nor cuts.
        clean: what open_clip does to a text before.
    """

    tokenizer: Any
    clean: Callable[[str], str]
    n_positions: int
    sot: int | None
    eot: int
    pad: int

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of a text. Byte pairs of some tokenizers hold the space before a word, which the first word lacks."""
        if not inside:
            return self._ids(self.clean(text))
        before = "a"
        return self._ids(f"{before} {self.clean(text)}".rstrip())[len(self._ids(before)) :]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def of_config(name: str, text: Mapping[str, Any], folders: Sequence[Path]) -> OpenClipTokenizer | FileTokenizer:
    """The tokenizer of an open_clip model.

    Args:
        name: of the model, for messages.
        text: `text_cfg` of its configuration.
        folders: where `tokenizer.json` and `tokenizer_config.json` of one of Hugging Face are looked for, before the
            Hub's cache and the Hub.

    Raises:
        ConfigError: sentences of this tokenizer cannot take a context.
        EnvironmentProblem: its files or the package `tokenizers` are missing.
    """
    n_positions, options = text.get("context_length", N_POSITIONS), dict(text.get("tokenizer_kwargs", {}))
    if "hf_tokenizer_name" not in text:
        from open_clip import SimpleTokenizer

        return OpenClipTokenizer(SimpleTokenizer(**options), n_positions)
    mode = text.get("tokenizer_mode")
    if mode:
        raise ConfigError(f"Sentences of {name} are tokenised by {mode!r}, which fpl-tune does not know: use others.")
    try:
        import tokenizers
    except ImportError:
        raise missing_package(name) from None
    from open_clip.tokenizer import get_clean_fn

    path, config_path = _files(name, text["hf_tokenizer_name"], folders)
    tokenizer, config = tokenizers.Tokenizer.from_file(str(path)), json.loads(config_path.read_text("utf-8"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    bare, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    first = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    before, after = whole[:first], whole[first + len(bare) :]
    if len(before) > 1 or len(after) != 1:
        raise ConfigError(
            f"{path} puts {len(before)} tokens before a sentence and {len(after)} behind it; fpl-tune takes tokenizers "
            "with at most one before and one behind."
        )
    if options.get("strip_sep_token") and after[0] == tokenizer.token_to_id(_text(config.get("sep_token"))):
        after = [0]
    pad = tokenizer.token_to_id(_text(config.get("pad_token")))
    if pad is None:
        raise ConfigError(f"{config_path} names no pad_token of its tokenizer, with which sentences are filled up.")
    clean = get_clean_fn(options.get("clean", "whitespace"))
    return FileTokenizer(tokenizer, clean, n_positions, before[0] if before else None, after[0], pad)


def missing_package(name: str) -> EnvironmentProblem:
    """The error where a model needs packages of Hugging Face that are not installed."""
    return EnvironmentProblem(f"{name} has a text tower or tokenizer of Hugging Face: pip install 'fpl-tune[hf]'.")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses what open_clip says through the root logger, and the Hub's client of each of its tries. The error that
    follows tells what is wrong."""
    loggers = [logging.getLogger(), logging.getLogger("huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _text(token: Any) -> str:
    """A special token in a configuration: its text, or a table that holds it."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


def _files(name: str, repository: str, folders: Sequence[Path]) -> tuple[Path, Path]:
    for folder in (*folders, Path(repository)):
        if (folder / FILES[0]).is_file() and (folder / FILES[1]).is_file():
            return folder / FILES[0], folder / FILES[1]
    from huggingface_hub import hf_hub_download

    try:
        with quiet():
            tokenizer, config = (Path(hf_hub_download(repository, file)) for file in FILES)
    except Exception as error:
        raise EnvironmentProblem(
            f"The tokenizer of {name} could not be fetched ({first_line(error)}): put {FILES[0]} and {FILES[1]} of "
            f"https://huggingface.co/{repository} beside the weights that clip.pretrained names."
        ) from error
    return tokenizer, config
