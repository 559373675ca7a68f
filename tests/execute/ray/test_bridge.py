"""What Ray says of an actor that is gone, and what of it a user reads."""

from __future__ import annotations

import pytest

from fpl_tune.execute.ray.bridge import cause_of_death

STARTED = """Failure # 1 (occurred at 2026-01-01_00-00-00)
The actor died because of an error raised in its creation task, ray::FederatedTrainable.__init__() (pid=7, ip=192.0.2.1)
  File "actor.py", line 3, in setup
    import torch
ImportError: libfoo.so: cannot open shared object file
"""
ENDED = """Failure # 1 (occurred at 2026-01-01_00-00-00)
The actor died unexpectedly before finishing this task.
\tactor_id: 3e0d
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: {} Some causes
"""


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (STARTED, "ImportError: libfoo.so: cannot open shared object file"),
        (ENDED.format("The leased worker's node died."), "The actor is dead because its worker process has died. "),
        ("", "killed, or out of memory"),
    ],
)
def test_why_a_process_died(said: str, read: str) -> None:
    found = cause_of_death(said)
    assert found.startswith(f"the process of the trial died: {read}")
    assert "\n" not in found
