"""`fpl-tune ui`: the server ends with the command, and links appear when it answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_link_appears_when_the_server_answers_and_nothing_outlives_the_command(store: Path, number: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (store / "log").open("w") as log:
        words = [sys.executable, "-m", "fpl_tune", "ui", "--port", str(port)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ})
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == f"MLflow on {address}", (store / "log").read_text()
            with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                assert answer.status == 200
            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) > 1
            process.send_signal(number)
            assert process.wait(60) == -number
        finally:
            process.kill()
            process.stdout.close()
    assert psutil.wait_procs(children, timeout=20)[1] == []
