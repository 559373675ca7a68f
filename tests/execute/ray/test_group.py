"""Processes that a study starts in a group of their own: what a signal to the study's group reaches."""

import os
import signal
import subprocess
import sys

import pytest

_STARTING = """
import os, signal, subprocess, sys, time
from fpl_tune.execute.ray.group import apart

heard, before = [], os.getpgrp()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))
with apart():
    child = subprocess.Popen(["sleep", "60"])
    print("started", flush=True)
    while len(heard) < 2:
        time.sleep(0.01)
assert sorted(heard) == [signal.SIGINT, signal.SIGTERM]
assert os.getpgrp() == before != os.getpgid(child.pid)
assert child.poll() is None, "the signals have not reached it"
child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "setpgid"), reason="the system has no process groups")
def test_signals_to_the_group_reach_the_study_and_not_what_it_starts() -> None:
    words = [sys.executable, "-c", _STARTING]
    with subprocess.Popen(words, process_group=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as study:
        assert study.stdout is not None
        assert study.stdout.readline() == "started\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(study.pid, number)
        _, err = study.communicate(timeout=60)
    assert study.returncode == 0, err


@pytest.mark.system
def test_a_study_whose_group_is_ended_in_its_first_seconds_stops_as_at_any_time(head: str, tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(head + "axes: {optim.lr: [0.01]}\n")
    words = [sys.executable, "-m", "fpl_tune", "study", "tiny.yaml", "protocol.rounds=2000", "tracking.enabled=false"]
    words.append("execution.executor=ray")
    for waits in ("starting Ray", "loading"):
        with subprocess.Popen(words, cwd=tmp_path, process_group=0, stderr=subprocess.PIPE, text=True) as study:
            assert study.stderr is not None
            assert any(line.startswith(waits) for line in study.stderr)
            for _ in range(2):  # as `timeout` does
                os.killpg(study.pid, signal.SIGTERM)
            _, err = study.communicate(timeout=120)
        assert study.returncode == 143, err
        assert "1 left" in err
        assert "lost Ray" not in err
        assert [*tmp_path.rglob("study.yaml")], "the same command continues"
