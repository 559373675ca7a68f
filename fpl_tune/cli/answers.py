"""Answers that are kept in a study's folder and printed again while nothing has changed.

Composing a study or reading its store imports PyTorch, Hydra and pandas, which takes seconds. What `study`, `plan`,
`show` and `status` print is kept with a digest of what it was made from: the study's folder, this package, the shipped
and the local YAML files, the modules of plug-ins, the installed packages, the environment and the machine. If any of
these differs, the verb works its answer out anew. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec

import fpl_tune
from fpl_tune import paths
from fpl_tune.cli import output
from fpl_tune.files import digest, stamp, stamps, write_text
from fpl_tune.study.lock import owner

P = ParamSpec("P")
State = tuple[str, str]
"""Digests of the study's folder and of everything else but the modules of plug-ins."""

FILE = "answers.json"
KEPT_SECONDS = 3600.0
"""The answer of `plan` is not repeated after this time: costs depend on the machine's load."""
_MOST = 64
"""Answers of a study at most; the oldest are dropped."""
_VARIABLES = ("FPL_TUNE_", "MLFLOW_", "RAY_", "CUDA_", "PYTHONPATH", "XDG_CACHE_HOME", "HOME", "OMP_")
_WORKING = (FILE, "study.lock", "study.left", "study.stop")
"""Files in a study's folder that hold no results."""


_environment: list[tuple[str, str]] = []


def begin() -> None:
    """Notes the environment before libraries add to it; called when the command begins."""
    _environment[:] = sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES))


def kept(verb: Callable[P, None]) -> Callable[P, None]:
    """Makes a verb, whose first argument is a study, repeat its kept answer, or keep its answer unless it warns."""

    @wraps(verb)
    def answered(*args: P.args, **named: P.kwargs) -> None:
        bound = signature(verb).bind(*args, **named)
        bound.apply_defaults()
        name, *options = bound.arguments.values()
        question = Question(name, verb.__name__, *options)
        if question.repeat():
            return
        with output.captured() as said:
            verb(*args, **named)
        question.keep(said)

    return answered


class Question:
    """What is asked of a study.

    Args:
        name: the study, or the path of its file; None: all studies, of which no answer is kept.
        words: the verb and its options, plain values.
        files: files on which the answer to this question depends besides.
    """

    def __init__(self, name: str | None, *words: Any, files: Sequence[Path] = ()) -> None:
        self._words, self._files = [name, *words, output.room()], files
        self._folder = paths.output_folder() / Path(name or "").stem
        self._extra = [Path(name).resolve().parent] if name and name.endswith((".yaml", ".yml")) else []
        possible = name and "\0" not in name  # a name that no file can have is left to the verb to refuse
        self._before = self._state() if possible and self._quiet() else None

    def repeat(self) -> bool:
        """Prints the kept answer; False if there is none, or what it was made from has changed."""
        found = self._read() if self._before else {}
        when, lines = found.get("answers", {}).get(self._key(), (0.0, None))
        late = "plan" in self._words and time.time() - when > KEPT_SECONDS
        if not self._before or lines is None or late or found["state"] != [*self._before, _digest(found["modules"])]:
            return False
        output.replay(lines)
        return True

    def keep(self, lines: output.Lines, *, changed: bool = False) -> None:
        """Keeps an answer, unless it cannot be replayed, or what it was made from has changed meanwhile.

        Args:
            lines: what was printed; see `output.captured`.
            changed: whether the verb itself has written the study's folder.
        """
        if not self._before or not lines or ["once"] in lines or not self._quiet():
            return
        now = self._state()
        if now[changed:] != self._before[changed:] or not (self._folder / "study.yaml").is_file():
            return
        found, modules, answers = self._read(), sorted(_plugins()), {}
        if found and found["state"] == [*now, _digest(found["modules"])]:
            modules, answers = sorted({*modules, *found["modules"]}), found["answers"]
        state = [*now, _digest(modules)]
        answers = {**dict(list(answers.items())[1 - _MOST :]), self._key(): (time.time(), lines)}
        with suppress(OSError):  # a folder that cannot be written has no answers
            write_text(self._folder / FILE, json.dumps({"state": state, "modules": modules, "answers": answers}))

    def _quiet(self) -> bool:
        """Whether no process runs the study."""
        return owner(self._folder) is None

    def _key(self) -> str:
        return json.dumps([*self._words, *map(stamp, self._files)])

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads((self._folder / FILE).read_text())
            return found if found.keys() == {"state", "modules", "answers"} else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def _state(self) -> State:
        store = [found for found in stamps(self._folder) if Path(found[0]).name not in _WORKING]
        package = Path(fpl_tune.__file__).parent
        here = [package, *(paths.shipped(kind) for kind in ("studies", "search_spaces"))]
        here += [*self._extra, *(Path.cwd() / kind for kind in ("studies", "search_spaces"))]
        files = [found for folder in here for found in stamps(folder)]
        installed = [stamp(Path(sysconfig.get_path(kind))) for kind in ("purelib", "platlib")]
        machine = [
            platform.node(),
            len(os.sched_getaffinity(0)),
            sys.version,
            sorted(str(p) for p in Path("/dev").glob("nvidia*")),
        ]
        rest = [files, _environment, installed, machine, str(Path.cwd())]
        return digest(json.dumps(store)), digest(json.dumps(rest))


def lasting(node: Mapping[str, Any]) -> bool:
    """Whether a study depends on nothing but the state of an answer: on no images, other study, cluster or server.

    Args:
        node: the composed study.
    """
    varied = {name for part in (node["axes"], *node["references"]) for name in _fields(part)}
    foreign = {"data", "data.name", "data.root", "partition.file"}
    search, execution, tracking = node["search"], node["execution"], node["tracking"]
    others = [node["data"]["root"], node["partition"]["file"], search["warm_start"], execution["address"]]
    others += [
        os.environ.get("RAY_ADDRESS"),
        tracking["enabled"] and (tracking["uri"] or os.environ.get("MLFLOW_TRACKING_URI")),
    ]
    return node["data"]["name"] == "shapes" and not foreign & varied and not any(others)


def _fields(part: Any, name: str = "") -> Iterator[str]:
    """Dotted names of the fields that axes or references set, those within lists of bundles included."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _fields(value, f"{name}.{key}" if name else key)
    else:
        yield name
        for bundle in part if isinstance(part, list) else ():
            if isinstance(bundle, Mapping):
                yield from _fields(bundle)


def _digest(modules: Sequence[str]) -> str:
    """Digest of the files of plug-ins, as they are now."""
    return digest(json.dumps([stamp(Path(file)) for file in modules]))


def _plugins() -> set[str]:
    """Files of the imported modules that are neither of this package nor installed."""
    folders = [Path(fpl_tune.__file__).parent, *(Path(sysconfig.get_path(n)) for n in ("purelib", "platlib", "stdlib"))]
    known = tuple(str(path) for folder in folders for path in (folder, folder.resolve()))
    named = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    files = [Path(file) for file in named if file and not file.startswith(known)]  # few: to resolve a path is slow
    return {file for file in (str(path.resolve()) for path in files if path.is_file()) if not file.startswith(known)}
