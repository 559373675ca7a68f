"""`fpl-tune ui`: MLflow's page on the records of the studies here."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import typer

from fpl_tune.cli.common import app
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.paths import output_root


@app.command(epilog="Example: fpl-tune ui --port 5001", rich_help_panel="Results")
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Print a link per study to MLflow's page on the records here, and serve it until Ctrl-C."""
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
    experiments = track.experiments(root)
    print(f"MLflow on {page}, within some seconds; stop it with Ctrl-C")
    for name, key in experiments.items():  # without the workflow type MLflow opens the view for traces
        print(f"  {name}  {page}/#/experiments/{key}/runs?workflowType=machine_learning")
    sys.stdout.flush()
    os.dup2(2, 1)  # the server's messages are no output of the command
    # The address may hold a password, which arguments would show to every user of the machine.
    quiet = {"MLFLOW_LOGGING_LEVEL": "WARNING", "PYTHONWARNINGS": "ignore"}
    environment = {**quiet, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.execve(sys.executable, [*command, "--uvicorn-opts", "--log-level warning"], environment)
