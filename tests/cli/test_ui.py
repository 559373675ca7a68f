"""`fpl-tune ui`: links, and the server that they lead to."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path

import psutil
import pytest

from fpl_tune import track
from fpl_tune.study import tracking
from fpl_tune.track import server

from ..conftest import MakeStore
from .conftest import Command


@pytest.fixture
def store(here: Path) -> Path:
    """Outputs with an empty tracking database."""
    (here / "outputs").mkdir()
    server.connect(f"sqlite:///{here}/outputs/mlflow.db")
    return here


def test_a_port_in_use_is_an_error_before_anything_is_printed(store: Path, command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = command("ui", "--port", str(port))
    assert (done.code, done.out) == (3, "")
    assert f"Port {port} is in use. Choose another one: --port {port + 1}." in done.err


def test_an_unknown_study_is_told_its_likely_name(here: Path, command: Command, make_store: MakeStore) -> None:
    make_store(root=here / "outputs")
    done = command("ui", "tony")
    assert (done.code, done.out) == (2, "")
    assert "There is no study with results 'tony'. Did you mean 'toy'?" in done.err


def test_a_study_that_mlflow_does_not_hold(store: Path, command: Command, make_store: MakeStore) -> None:
    make_store(root=store / "outputs")
    done = command("ui", "toy", "--port", str(free_port()))
    assert (done.code, done.out) == (3, "")
    assert "MLflow does not hold toy. Send it: fpl-tune study toy tracking.enabled=true." in done.err


def test_a_folder_of_results_that_was_copied_is_sent_by_its_study(
    here: Path, command: Command, make_store: MakeStore
) -> None:
    make_store(root=here / "outputs")
    for words in (("ui",), ("ui", "toy")):
        done = command(*words)
        assert (done.code, done.out) == (3, "")
        assert "Send results to it: fpl-tune study toy." in done.err


@pytest.mark.parametrize(
    ("words", "opened"), [((), False), (("toy",), False), (("--open",), True), (("toy", "--open"), True)]
)
def test_the_pages_of_a_server_are_printed_and_opened_on_request_or_where_there_is_a_screen(
    words: tuple[str, ...],
    opened: bool,
    here: Path,
    command: Command,
    make_store: MakeStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@host:5000/")
    monkeypatch.setattr(track, "experiments", lambda root: {"toy": "7", "other": "8"})
    monkeypatch.setattr(webbrowser, "open", (pages := list[str]()).append)
    make_store(root=here / "outputs")
    done = command("ui", *words)
    links = {name: f"http://host:5000/#/experiments/{n}/runs" for name, n in (("toy", 7), ("other", 8))}
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head == "MLflow on http://host:5000"
    assert [line.split("?")[0].split() for line in lines] == [
        part
        for name, link in links.items()
        if name in words or "toy" not in words
        for part in ([name], ["table", link])
    ]
    assert [page.split("?")[0] for page in pages] == [links["toy"]] * opened
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for display in (None, ":0"):
        pages.clear()
        if display is not None:
            monkeypatch.setenv("DISPLAY", display)
        command("ui", *words)
        assert bool(pages) == (opened or ("toy" in words and display is not None)), "of a study, on a screen"


@pytest.mark.parametrize(("opens", "database"), [(True, "outputs/mlflow.db"), (False, "elsewhere.db")])
def test_the_server_learns_its_database_from_its_environment_alone(
    opens: bool, database: str, store: Path, command: Command, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, which the address with its password would be in, are shown to every user of the machine."""
    (store / "outputs" / "mlflow.db").rename(store / database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / database}")
    track.inspect(made := make_store(root=store / "outputs"), fix=True)
    served, openers, port = list[tuple[list[str], dict[str, str]]](), list[list[str]](), free_port()
    monkeypatch.setattr(os, "execve", lambda path, words, environment: served.append((words, environment)))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(subprocess, "Popen", openers.append)
    done = command("ui", "toy", "--port", str(port), "--open" if opens else "--no-open")
    assert done.code == 0, done.err
    assert done.out.startswith(f"MLflow on http://127.0.0.1:{port}, within some seconds; stop it with Ctrl-C\n")
    ((words, environment),) = served
    uri = server.address(store / "outputs")
    assert environment["MLFLOW_BACKEND_STORE_URI"] == uri
    assert uri not in " ".join(words)
    assert environment["PYTHONSAFEPATH"], "no file of the folder hides a library in the server"
    assert f"--app-dir {sys.prefix}" in words[-1]
    assert words[words.index("--port") + 1] == str(port)
    assert words[words.index("--host") + 1] == "127.0.0.1", "nobody else is served"
    first = next(iter(tracking.links(made.folder, f"http://127.0.0.1:{port}").values()))
    assert [opener[5] for opener in openers] == [first] * opens
    assert all(opener[1] == "-P" for opener in openers)


def test_the_server_answers_at_the_link_and_ends_with_the_command(
    here: Path, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a study named, it prints the links to it and opens the first in the browser."""
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(root := here / "a?b%20c"))
    track.inspect(made := make_store(root=root), fix=True)
    track.inspect(make_store(root=root, name="other"), fix=True)
    address = f"http://127.0.0.1:{(port := free_port())}"
    links = tracking.links(made.folder, address)
    browser = here / "browser.py"
    browser.write_text(f"import pathlib, sys\npathlib.Path({str(here / 'seen')!r}).write_text(sys.argv[1])")
    with (here / "log").open("w") as log:
        words = [sys.executable, "-m", "fpl_tune", "ui", "toy", "--open", "--port", str(port)]
        env = {**os.environ, "BROWSER": f"{sys.executable} {browser} %s"}
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, env=env
        )
        try:
            assert process.stdout is not None
            with process.stdout as out:
                assert out.readline().startswith(f"MLflow on {address},"), (here / "log").read_text()
                said = [out.readline().split() for _ in range(4)]
                assert said == [["toy"], *([kind, link] for kind, link in links.items())]
            until = time.monotonic() + 180
            while True:
                try:
                    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                        assert answer.status == 200
                    assert (here / "seen").is_file()
                    break
                except (OSError, AssertionError):
                    assert time.monotonic() < until, (here / "log").read_text()
                    time.sleep(0.2)
            assert (here / "seen").read_text() == links["compare"]
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
            process.wait(60)
    assert psutil.wait_procs(children, timeout=20)[1] == []


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
