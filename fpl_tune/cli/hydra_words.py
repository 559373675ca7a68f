"""Options of Hydra's own command line: each does what it does there, or is answered with what to write."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import CONFIG_DIR

_ANSWERS = {
    ("-m", "--multirun"): "A study runs all values of its axes without {word}. Write "
    "fpl-tune study STUDY 'axes.optim.lr=[0.01,0.02]'.",
    ("-cn", "--config-name"): "Studies are named without {word}. Write fpl-tune study FILE.yaml.",
    ("-cp", "--config-path"): "{word} would replace the shipped options. Add yours to them: --config-dir DIR.",
}
_FOLDER = ("-cd", "--config-dir")
_SEARCH_PATH = "hydra.searchpath="


def answered(words: Sequence[str]) -> list[str]:
    """Words of the command line without Hydra's options: `--config-dir DIR`, at any place, names the folder of the
    user's own options, for this process and those that it starts.

    Raises:
        ConfigError: an option of Hydra that fpl-tune does not have, or a folder without a name.
    """
    left, given = list[str](), iter(words)
    for word in given:
        option, equals, value = word.partition("=")
        for names, answer in _ANSWERS.items():
            if option in names:
                raise ConfigError(answer.format(word=option))
        if option in _FOLDER:
            folder = value if equals else next(given, "")
        elif word.lstrip("+").startswith(_SEARCH_PATH):
            listed = word.partition("=")[2].strip("[]'\"")
            folder = listed.removeprefix("file://")
            if "," in listed or "pkg://" in listed:
                raise ConfigError(
                    f"One folder has the options of your own, but {word} names others. Write --config-dir DIR."
                )
        elif word == "job" and left[-1:] == ["--cfg"]:
            continue
        else:
            left.append(word)
            continue
        if not folder:
            raise ConfigError(f"{word} needs a folder with options of your own, such as DIR/optim/mine.yaml.")
        os.environ[CONFIG_DIR] = os.path.abspath(os.path.expanduser(folder))
    return left
