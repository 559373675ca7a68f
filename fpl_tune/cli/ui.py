"""`fpl-tune ui`: MLflow's page on the records of the studies here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import app
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.paths import output_root

_START_SECONDS = 120.0
_GUARD = """
read -r _
kill -TERM "-$1" 2> /dev/null || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; kill -0 "-$1" 2> /dev/null || exit 0; done
kill -KILL "-$1" 2> /dev/null
"""
"""Ends a process group when the pipe from this process is closed, as the system does also after SIGKILL."""


@app.command(epilog="Example: fpl-tune ui --port 5001", rich_help_panel="Results")
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Start MLflow's page on the records of the studies here, until Ctrl-C, and print a link per study."""
    from fpl_tune import track
    from fpl_tune.track.server import address

    root, page = output_root(), f"http://127.0.0.1:{port}"
    uri = address(root)
    if uri.startswith("sqlite") and not (root / "mlflow.db").is_file():
        raise EnvironmentProblem(f"There is no MLflow store in {root}. Run a study first: fpl-tune study lambda_sweep.")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        raise EnvironmentProblem(f"Port {port} is in use. Choose another one: --port {port + 1}.") from None
    output.console(stderr=True).print(f"starting MLflow on port {port}")
    experiments = track.experiments(root)
    with _server(port, uri) as server:
        _wait(server, page)
        print(f"MLflow on {page}", flush=True)
        for name, key in experiments.items():  # without the workflow type MLflow opens its view for language models
            print(f"  {name}  {page}/#/experiments/{key}/runs?workflowType=machine_learning", flush=True)
        print("Stop with Ctrl-C.", flush=True)
        code = server.wait()
    raise EnvironmentProblem(f"MLflow's server ended with code {code}. Its messages above say why.")


@contextmanager
def _server(port: int, uri: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `mlflow ui`, whose processes end with this one, however it ends."""
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--uvicorn-opts", "--log-level warning"]
    # The address may hold a password, which arguments would show to every user of the machine.
    quiet = {"MLFLOW_LOGGING_LEVEL": "WARNING", "PYTHONWARNINGS": "ignore"}
    environment = {**quiet, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    server = subprocess.Popen(command, env=environment, stdout=2, start_new_session=True)  # its messages: to stderr
    guard = subprocess.Popen(["sh", "-c", _GUARD, "sh", str(server.pid)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield server
    finally:
        guard.communicate()  # closes the pipe
        server.wait()


def _wait(server: subprocess.Popen[bytes], page: str) -> None:
    """Waits until the server answers.

    Raises:
        EnvironmentProblem: it ended, or does not answer in time.
    """
    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{page}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise EnvironmentProblem(f"MLflow does not answer within {_START_SECONDS:.0f} s. Its messages above say why.")
