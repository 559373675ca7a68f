"""`fpl-tune ui`: MLflow's page on the records of the studies here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from fpl_tune.cli.common import app

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


@app.command(epilog="Example: fpl-tune ui --port 5001", rich_help_panel="Results")
def ui(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    open: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Start MLflow's page on the records of the studies here, until Ctrl-C, and print a link per study."""
    from fpl_tune import track
    from fpl_tune.cli import output
    from fpl_tune.errors import ConfigError, EnvironmentProblem
    from fpl_tune.paths import output_root
    from fpl_tune.redact import redact

    if not 1 <= port <= 65535:
        raise ConfigError(f"--port must lie in 1..65535, but is {port}.")
    root = output_root()
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
    if uri.startswith("sqlite") and not (root / "mlflow.db").is_file():
        raise EnvironmentProblem(f"There is no MLflow store in {root}. Run a study first: fpl-tune study lambda_sweep.")
    if uri.startswith("http"):
        _print_links(redact(uri), track.experiments(uri))
        return
    if _in_use(port):
        raise EnvironmentProblem(f"Port {port} is in use. Choose another one: --port {port + 1}.")
    address = f"http://127.0.0.1:{port}"
    output.console(stderr=True).print(f"starting MLflow on port {port}")
    experiments = track.experiments(uri)
    with _server(port, uri) as server:
        _wait(server, address)
        _print_links(address, experiments)
        output.console().print("Stop with Ctrl-C.")
        if open:
            import webbrowser

            webbrowser.open(address)
        code = server.wait()
    raise EnvironmentProblem(f"MLflow's server ended with code {code}. Its messages above say why.")


def _print_links(address: str, experiments: dict[str, str]) -> None:
    from fpl_tune import track
    from fpl_tune.cli import output

    talk = output.console()
    talk.print(f"MLflow on {address}", soft_wrap=True)
    for name, key in experiments.items():
        talk.print(f"  {name}  {track.page(address, key)}", soft_wrap=True)


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed just now is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@contextmanager
def _server(port: int, uri: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `mlflow ui` in a process group of its own, which ends with this process: on Ctrl-C, SIGTERM or an error."""

    def terminated(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--uvicorn-opts", "--log-level warning"]
    before = {number: signal.signal(number, terminated) for number in (signal.SIGTERM, signal.SIGINT)}
    # The address may hold a password, which arguments would show to every user of the machine.
    quiet = {"MLFLOW_LOGGING_LEVEL": "WARNING", "PYTHONWARNINGS": "ignore"}
    environment = {**quiet, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    server = subprocess.Popen(command, env=environment, stdout=2, start_new_session=True)  # its messages: to stderr
    try:
        yield server
    finally:
        _kill(server, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_SECONDS)
        _kill(server, signal.SIGKILL)  # workers that outlived the server
        server.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill(server: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to the server's process group."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, number)


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    """Waits until the server answers.

    Raises:
        EnvironmentProblem: it ended, or does not answer in time.
    """
    from fpl_tune.errors import EnvironmentProblem

    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    state = "did not answer" if server.poll() is None else f"ended with code {server.returncode}"
    raise EnvironmentProblem(f"MLflow's server {state} within {_START_SECONDS:.0f} s. Its messages above say why.")
