"""What starting Ray changes in this process and on this machine, and addresses where no cluster is."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.ray import connect


def test_the_token_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    connect._private_token()
    token = tmp_path / ".ray" / "auth_token"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [0o600, 0o700]
    written = token.read_text()
    connect._private_token()
    assert token.read_text() == written, "an existing token stays"


def test_signals_and_environment_are_as_before() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    before = dict(os.environ)
    with connect._environment(True) as home, connect._signals_kept():
        assert os.environ["RAY_TMPDIR"] == home
        signal.signal(signal.SIGTERM, lambda *_: None)
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert dict(os.environ) == before
    assert not Path(home).exists()


_STARTS_AND_ENDS = """
import psutil, ray
from fpl_tune.execute.ray.connect import connected

with connected(None):
    assert ray.get(ray.remote(lambda: 1).remote()) == 1
    ours = psutil.Process().children(recursive=True)
_, alive = psutil.wait_procs(ours, timeout=5)
assert len(ours) > 5 and not alive, alive
"""


@pytest.mark.system
def test_nothing_of_our_ray_outlives_a_study() -> None:
    """Its processes block SIGTERM, so that a signal to the process group does not end them before trials do."""
    subprocess.run([sys.executable, "-c", _STARTS_AND_ENDS], check=True, timeout=120)


@pytest.mark.parametrize("reply", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_is_not_ray_is_named_in_bounded_time(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "JOIN_SECONDS", 3.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closing = threading.Event()

        def answer() -> None:
            while not closing.is_set():
                line, _ = listening.accept()
                with line:
                    line.sendall(reply)
                    closing.wait(0.2)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        began = time.monotonic()
        port = listening.getsockname()[1]
        with (
            pytest.raises(EnvironmentProblem, match=f"cannot join the Ray cluster at 127.0.0.1:{port}: ") as caught,
            connect.connected(f"127.0.0.1:{port}"),
        ):
            pass
        assert "\n" not in str(caught.value)
        assert time.monotonic() - began < 60
        closing.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


def test_an_address_is_host_and_port() -> None:
    for address in ("head:ray", "head", "head:99999", ""):
        with pytest.raises(ConfigError, match="auto or host:port"), connect.connected(address):
            pass
