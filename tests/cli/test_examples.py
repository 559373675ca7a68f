"""Every verb has an example on its help page, and every example runs."""

import os
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from fpl_tune.cli.common import app
from fpl_tune.study.lock import locked

from .conftest import Command


def _verbs(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All groups and verbs of the application with the words that call them."""
    yield before, group
    for name, verb in getattr(group, "commands", {}).items():
        yield from _verbs(verb, (*before, name))


VERBS = dict(_verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_says_what_it_does_and_has_an_example(words: tuple[str, ...], command: Command) -> None:
    verb = VERBS[words]
    assert verb.help, "a sentence that says what it does"
    assert verb.epilog, "an example"
    assert verb.epilog.startswith(" ".join(["Example: fpl-tune", *words]))
    done = command(*words, "-h")
    assert done.code == 0
    assert " ".join(verb.epilog.split()) in " ".join(done.out.split())


EXAMPLES = sorted({verb.epilog.removeprefix("Example: ") for verb in VERBS.values() if verb.epilog})


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str, home: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(example)
    assert program == "fpl-tune"
    served: list[str] = []
    held = locked(home / "outputs" / "lambda_sweep") if words[0] == "stop" else nullcontext()  # a study that runs
    if words[:2] == ["cluster", "wait"]:
        monkeypatch.setattr("fpl_tune.execute.ray.alive", lambda address: 4)
    if words[0] == "parity":  # a trace of our own stands for a fork's
        assert command("world", "my_world/", "partition.n_clients=2", "data.shots=2", "protocol.rounds=1").code == 0
        assert command("parity", words[1], "--write").code == 0
    with held, monkeypatch.context() as patch:
        if words[0] == "ui":  # which becomes the server
            assert command("study", words[1], "tracking.enabled=true").code == 0  # it ran without MLflow
            patch.setattr(
                os, "execve", lambda path, words, environment: served.append(words[words.index("--port") + 1])
            )
            patch.setattr(os, "dup2", lambda *_: None)
        done = command(*(os.path.expanduser(word) for word in words))  # as the shell does
    assert done.code == 0, done.out + done.err
    assert "\x1b[" not in done.out + done.err
    assert (done.out + done.err).strip()
    assert served == (["5001"] if words[0] == "ui" else [])
