"""`fpl-tune ui`: links, and the server that they lead to."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from fpl_tune.track import server

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


def test_the_server_answers_at_the_link_and_ends_with_the_command(store: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (store / "log").open("w") as log:
        words = [sys.executable, "-m", "fpl_tune", "ui", "--port", str(port)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            with process.stdout as out:
                assert out.readline().startswith(f"MLflow on {address},"), (store / "log").read_text()
            until = time.monotonic() + 180
            while True:
                try:
                    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                        assert answer.status == 200
                    break
                except OSError:
                    assert time.monotonic() < until, (store / "log").read_text()
                    time.sleep(0.2)
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
            process.wait(60)
    assert psutil.wait_procs(children, timeout=20)[1] == []
