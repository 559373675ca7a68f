"""Answers that are kept in a study's folder and printed again while nothing has changed.

Composing a study or reading its store imports PyTorch, Hydra and pandas, which takes seconds. What `study`, `plan`,
`show` and `status` print is kept with a digest of what it was made from: the study's folder, this package, the shipped
and the local YAML files, the modules of plug-ins, the installed packages, the environment and the machine. If any of
these differs, the verb works its answer out anew. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fpl_tune
from fpl_tune.cli import output
from fpl_tune.core import paths
from fpl_tune.core.files import digest, stamp, stamps, write_text
from fpl_tune.study.lock import owner

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec

FILE = "answers.json"
_MOST = 64
"""Answers of a study at most; the oldest are dropped."""
_VARIABLES = ("FPL_TUNE_", "MLFLOW_", "RAY_", "CUDA_", "PYTHONPATH", "XDG_CACHE_HOME", "HOME", "OMP_")
_WORKING = (FILE, "study.lock", "study.left", "study.stop")
"""Files in a study's folder that hold no results."""

_environment: list[tuple[str, str]] = []


def begin() -> None:
    """Notes the environment before libraries add to it; called when the command begins."""
    output.momentary.clear()
    _environment[:] = sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES))


class Question:
    """A verb with its options about a study.

    Args:
        name: the study, or the path of its file.
        words: the verb and its options, plain values.
        files: files on which the answer to this question depends besides.
        seconds: how long the answer holds.
    """

    def __init__(self, name: str, *words: Any, files: Sequence[Path] = (), seconds: float = math.inf) -> None:
        self._words, self._files, self._seconds = [name, *words], files, seconds
        if "table" in words:
            self._words += output.terminal()
        self._folder = paths.output_folder() / Path(name).stem
        self._running = owner(self._folder) is not None
        self._before = self._store(), self._surroundings()

    def answer(self) -> str | None:
        """The kept answer; None if there is none, a process runs the study, or what it was made from has changed."""
        found = self._read().get(self._key())
        if found is None or self._running or time.time() - found["when"] > self._seconds:
            return None
        return found["text"] if found["state"] == [*self._before, _state(found["files"])] else None

    def keep(self, text: str, *, changed: bool = False) -> None:
        """Keeps an answer, unless it holds for now only, or what it was made from has changed meanwhile.

        Args:
            text: what was printed.
            changed: whether the verb itself has written the study's folder.
        """
        now = self._store(), self._surroundings()
        running = self._running or owner(self._folder) is not None
        if running or output.momentary or now[changed:] != self._before[changed:]:
            return
        if not (self._folder / "study.yaml").is_file():
            return
        files = sorted(_plugins())
        found = {"when": time.time(), "state": [*now, _state(files)], "files": files, "text": text}
        answers = {**dict(list(self._read().items())[1 - _MOST :]), self._key(): found}
        with suppress(OSError):  # a folder that cannot be written has no answers
            write_text(self._folder / FILE, json.dumps(answers))

    def _key(self) -> str:
        return json.dumps([*self._words, *map(stamp, self._files)])

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _store(self) -> str:
        """Digest of the study's folder."""
        return digest(json.dumps([found for found in stamps(self._folder) if Path(found[0]).name not in _WORKING]))

    def _surroundings(self) -> str:
        """Digest of all else but the modules of plug-ins."""
        name, here = self._words[0], Path.cwd()
        folders = [Path(fpl_tune.__file__).parent]
        if name.endswith((".yaml", ".yml")):
            folders.append(Path(name).resolve().parent)
        for kind in ("studies", "search_spaces"):
            folders += [paths.shipped(kind), here / kind]
        files = [found for folder in folders for found in stamps(folder)]
        installed = [stamp(Path(sysconfig.get_path(kind))) for kind in ("purelib", "platlib")]
        devices = sorted(map(str, Path("/dev").glob("nvidia*")))
        machine = [platform.node(), len(os.sched_getaffinity(0)), sys.version, devices]
        return digest(json.dumps([files, _environment, installed, machine, str(here)]))


def repeat(work: Callable[..., None], name: str, *words: Any, seconds: float = math.inf) -> None:
    """Prints the kept answer to `work(name, *words)`, else calls it and keeps what it prints, for so many seconds."""
    question = Question(name, work.__name__, *words, seconds=seconds)
    if (text := question.answer()) is not None:
        print(text, end="")
        return
    with output.captured() as printed:
        work(name, *words)
    question.keep(printed.getvalue())


def lasting(spec: StudySpec, node: dict[str, Any]) -> bool:
    """Whether a composed study depends on nothing but the state of an answer: no images, other study, or server."""
    from fpl_tune.study.cells import expand

    runs = [cell.run for cell in expand(spec, node)]
    server = spec.tracking.enabled and (spec.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"))
    elsewhere = spec.execution.address or os.environ.get("RAY_ADDRESS") or server
    return not elsewhere and all(
        run.data.name == "shapes" and not run.data.root and not run.partition.file for run in runs
    )


def _state(files: Iterable[str]) -> str:
    """Digest of files, as they are now."""
    return digest(json.dumps([stamp(Path(file)) for file in files]))


def _plugins() -> set[str]:
    """Files of the imported modules that are neither of this package nor installed."""
    folders = [Path(fpl_tune.__file__).parent, *(Path(sysconfig.get_path(n)) for n in ("purelib", "platlib", "stdlib"))]
    known = tuple(str(path) for folder in folders for path in (folder, folder.resolve()))
    named = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    files = [Path(file) for file in named if file and not file.startswith(known)]  # few: to resolve a path is slow
    return {file for file in (str(path.resolve()) for path in files if path.is_file()) if not file.startswith(known)}
