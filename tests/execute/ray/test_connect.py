"""What starting Ray changes here, addresses where no cluster is, the check of a node, and GPUs."""

import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hosts import Cluster

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute import gpus
from fpl_tune.execute.ray import connect
from fpl_tune.execute.ray.nodes import NodeWatch, probe
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.study.versions import outdated_ray, versions

_STUDY = """
import os, signal, subprocess, sys
from pathlib import Path
import psutil
from fpl_tune.api import start_study
from fpl_tune.execute.callback import Callback
from fpl_tune.search.compose import compose

me, ours, refused = psutil.Process(), [], []

class Look(Callback):
    def on_round_end(self, cell, records):
        ours[:] = me.children(recursive=True)
        sockets = [line for one in (me, *ours) for line in one.net_connections("inet") if line.status == "LISTEN"]
        found = {line.laddr.ip.removeprefix("::ffff:") for line in sockets}
        assert found == {"127.0.0.1"}, found
        import ray
        if not refused:
            words = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address"]
            known = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
            known["HOME"] = str(Path.home() / "another")
            done = subprocess.run([*words, ray.get_runtime_context().gcs_address], env=known, capture_output=True)
            refused.append(b"InvalidAuthToken" in done.stderr or done)

handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
study = compose(sys.argv[1], ["execution.executor=ray", "seeds=1"])
assert start_study(study, root=Path(sys.argv[2]), callbacks=[Look()]).exit_code == 0
_, alive = psutil.wait_procs(ours, timeout=5)
assert len(ours) > 5 and not alive, alive
assert refused == [True], f"without the token: {refused}"
assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
assert not [name for name in os.environ if name.startswith("RAY_TMPDIR")]
token = Path.home() / ".ray"
assert token.is_dir() and token.stat().st_mode & 0o77 == 0
"""


def test_workers_of_a_cluster_get_settings_that_matter_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the user has set stay; others come from us, as nobody sets them where nodes were started."""
    monkeypatch.delenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    sent = connect.runtime_env()["env_vars"]
    assert (sent["MALLOC_ARENA_MAX"], sent["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"]) == ("4", "0")


@pytest.mark.system
def test_our_ray_listens_here_alone_and_nothing_of_it_outlives_a_study(compose: Any, tmp_path: Path) -> None:
    """Handlers of signals and the environment are as before; Ray's token is private."""
    compose("axes: {}")
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = [sys.executable, "-c", _STUDY, str(tmp_path / "tiny.yaml"), str(tmp_path / "out")]
    subprocess.run(words, check=True, timeout=600, env={**known, "HOME": str(tmp_path)})


_PLUGIN = """
from dataclasses import dataclass
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Mine(PromptFL):
    pass
"""


@pytest.mark.system
def test_no_file_of_the_folder_hides_a_library_in_workers(head: str, tmp_path: Path) -> None:
    """With a file of each name that can be imported, and a method in another one, which workers find."""
    names = {name for name in sys.stdlib_module_names if find_spec(name)} | {"optim", "utils", "data"}
    names |= {module.name for module in pkgutil.iter_modules()} - {"fpl_tune"}
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the folder was imported')")
    (tmp_path / "mine.py").write_text(_PLUGIN)
    (tmp_path / "own.yaml").write_text(f"{head}axes: {{method: ['mine:Mine', promptfl]}}")
    words = ["-P", "-c", "from fpl_tune.cli import main; main()", "study", "own.yaml", "execution.executor=ray"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cells run, 0 done before, 0 failed" in done.stderr + done.stdout


def test_workers_return_from_their_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They import from where this process does."""
    monkeypatch.chdir(here := tmp_path)
    sent = connect._folder_behind_libraries(tmp_path / "empty")
    assert not [*Path(sent["working_dir"]).iterdir()]
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", [sent["working_dir"], *(before := [*sys.path])])
    sent["worker_process_setup_hook"]()
    assert (Path.cwd(), sys.path) == (here, before)


def test_no_file_of_the_folder_hides_a_library_from_the_question_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(gpus, "_ASK", "import queue; print([[8, 5]])")
    assert gpus.gpus_here() == ((8, 5),)


def test_folders_of_killed_processes_are_swept() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folders = [Path("/tmp", f"fpl-{number}-swept") for number in (ended.pid, os.getpid())]
    for folder in folders:
        folder.mkdir()
    connect.remove_leftover_folders()
    assert [folder.exists() for folder in folders] == [False, True]
    folders[1].rmdir()


@pytest.mark.parametrize(
    ("address", "problem", "said"),
    [
        ("localhost:1", EnvironmentProblem, "cannot join the Ray cluster at localhost:1: nothing answers there"),
        ("head:99999", ConfigError, "must be auto or host:port, but one is 'head:99999'"),
        ("nowhere", ConfigError, "must be auto or host:port"),
        ("", ConfigError, "must be auto or host:port"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, problem: type[Exception], said: str) -> None:
    with pytest.raises(problem, match=said), connect.connected(address):
        pass


@pytest.mark.system
def test_another_token_than_the_clusters_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("theirs", "ours"):
        (tmp_path / name).write_text(name.ljust(64, "x"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ours"))
    monkeypatch.setenv("RAY_gcs_rpc_server_connect_timeout_s", "3")
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="fpl-", dir="/tmp")))
    try:
        cluster.start("head", cpus=0, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(tmp_path / "theirs"))
        words = [sys.executable, "-m", "fpl_tune", "cluster", "wait", cluster.address, "--seconds", "1"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"cannot join the Ray cluster at {cluster.address}: it has another token." in line


def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    place = RemoteStorage(str(tmp_path))
    place.write("token", "")

    def said(storage: str = str(tmp_path), root: str = str(tmp_path), **other: str) -> str:
        return probe(storage, "token", [root], {**versions(), **other}, False)[0]

    assert said() == ""
    assert said(torch="0.0.1").startswith("has torch ")
    assert "does not share memory://there with the driver" in said(storage="memory://there")
    assert "must be a URL that fsspec knows" in said(storage="nowhere://there")
    assert said(root="/nowhere") == "has no data.root=/nowhere. Mount it there"


@pytest.mark.parametrize(("there", "wrong"), [("2.54.1", True), ("2.9.0", True), ("2.55.0", False), ("3.0.0", False)])
def test_a_ray_with_known_holes_is_named(there: str, wrong: bool) -> None:
    said = f"has ray {there} with CVE-2026-27482 or CVE-2026-32981. Install ray[tune]>=2.55"
    assert outdated_ray(there) == (said if wrong else "")


def test_a_machine_that_does_not_answer_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_ASK", "import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "SECONDS", 0.5)
    began = time.monotonic()
    assert gpus.gpus_here() == ()
    assert time.monotonic() - began < 20
    monkeypatch.setattr(gpus, "SECONDS", 60.0)
    monkeypatch.setattr(gpus, "_ASK", "print([[8, 5]])")
    assert gpus.gpus_here() == ((8, 5),)


def test_a_cluster_without_nodes_is_said_once_and_ends_the_study(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    absence = NodeWatch("10.0.0.1:6379", clock=lambda: now)
    for now in (0.0, 59.0):
        absence.check(False, idle=now)
    assert caplog.messages == []
    for now in (60.0, 119.0):
        absence.check(False, idle=now)
    (said,) = caplog.messages
    assert "no trial has reported for 60 s. Start nodes with `ray start --address=10.0.0.1:6379`" in said
    with pytest.raises(EnvironmentProblem, match=r"reported for 120 s.* the same command continues"):
        absence.check(False, idle=120.0)


def test_after_a_long_round_nodes_have_a_minute_to_come_back() -> None:
    now = 1000.0
    absence = NodeWatch("10.0.0.1:6379", clock=lambda: now)
    absence.check(False, idle=1000.0)
    now = 1059.0
    absence.check(False, idle=1059.0)
    absence.check(True, idle=1059.0)
    now = 1100.0
    absence.check(False, idle=1100.0)
    now = 1160.0
    with pytest.raises(EnvironmentProblem):
        absence.check(False, idle=1160.0)
