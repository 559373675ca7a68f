"""`fpl-tune ui`: MLflow's page with the records of the studies here."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import webbrowser
from typing import Annotated

import typer
from rich.text import Text

from fpl_tune.cli import output
from fpl_tune.cli.common import app, stored
from fpl_tune.core import paths
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.paths import output_root

_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
_LONG = 300
"""Maximum characters of a link that is printed in full on a terminal."""
_OPENS = """
import os, sys, time, urllib.request, webbrowser
_, health, page, server = sys.argv
until = time.monotonic() + 120
while time.monotonic() < until and os.getppid() == int(server):
    try:
        urllib.request.urlopen(health, timeout=5).close()
    except OSError:
        time.sleep(0.3)
    else:
        webbrowser.open(page)
        break
"""
"""A program that opens a page once its server answers, and ends with the server."""


@app.command(epilog="Example: fpl-tune ui lambda_sweep --port 5001", rich_help_panel="Results")
def ui(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="A study that has results.", autocompletion=paths.stored_studies),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
    opens: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the browser; default: with a STUDY, on a terminal."),
    ] = None,
) -> None:
    """Print links to MLflow's pages on the studies here, or on one, and serve them until Ctrl-C."""
    from fpl_tune import track
    from fpl_tune.study import tracking
    from fpl_tune.track.server import address, exists, public, sqlite_file

    root, local = output_root(), f"http://127.0.0.1:{port}"
    if study is not None:
        stored(study)
    uri = address(root)
    remote = public(uri)
    if not exists(uri):
        here = study or next(iter(paths.stored_studies()), None)
        remedy = (
            f"Send results to it: fpl-tune study {here}." if here else "Run a study first: fpl-tune study lambda_sweep."
        )
        raise EnvironmentProblem(f"There is no MLflow store {sqlite_file(uri)}. {remedy}")
    if not remote:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            raise EnvironmentProblem(f"Port {port} is in use. Choose another one: --port {port + 1}.") from None
    page, experiments = remote or local, track.experiments(root)
    read = {name: tracking.read(root / name) for name in paths.stored_studies()}
    studies = {tracked.experiment: name for name, tracked in read.items() if tracked is not None}
    pages = {
        # Experiments of other programs have no links; without the workflow type, MLflow would show traces.
        name: tracking.links(root / name, local)
        or {"table": f"{page}/#/experiments/{key}/runs?workflowType=machine_learning"}
        for name, key in ((studies.get(key, name), key) for name, key in experiments.items())
        if study in (None, name)
    }
    if study is not None and study not in pages:
        remedy = f"Send it: fpl-tune study {study} tracking.enabled=true."
        raise EnvironmentProblem(f"MLflow does not hold {study}. {remedy}")
    print(f"MLflow on {page}" + ("" if remote else ", within some seconds; stop it with Ctrl-C"))
    for name, links in pages.items():
        print(f"  {name}")
        for kind, link in links.items():
            _show(kind, link)
    sys.stdout.flush()
    first = next((link for links in pages.values() for link in links.values()), page)
    wanted = opens if opens is not None else study is not None and _has_screen()
    if remote:
        if wanted:
            webbrowser.open(first)
        return
    os.dup2(2, 1)  # the server's messages are not the command's output
    if wanted:
        subprocess.Popen([sys.executable, "-P", "-c", _OPENS, f"{local}/health", first, str(os.getpid())])
    # The address may hold a password, which arguments would show to every user of the machine.
    # Nor may a file of the folder hide a library in the server or in the processes that it starts.
    quiet = {"MLFLOW_LOGGING_LEVEL": "WARNING", "PYTHONWARNINGS": "ignore", "PYTHONSAFEPATH": "1"}
    environment = {**quiet, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    served_from = shlex.quote(sys.prefix)  # uvicorn would put the current folder in front, in spite of PYTHONSAFEPATH
    os.execve(sys.executable, [*command, "--uvicorn-opts", f"--log-level warning --app-dir {served_from}"], environment)


def _show(kind: str, link: str) -> None:
    """Prints a link; a long one as a hyperlink behind a short text, if the terminal supports that."""
    talk = output.console()
    if len(link) > _LONG and talk.is_terminal and talk.color_system:
        talk.print(Text.assemble(f"    {kind:<8} ", ("click here", f"underline link {link}")))
    else:
        print(f"    {kind:<8} {link}")


def _has_screen() -> bool:
    """True if there is a screen for a browser: without one, a browser would take over the terminal."""
    screen = not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _DISPLAYS)
    return sys.stdout.isatty() and screen
