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
        (STARTED, "could not start: ImportError: libfoo.so: cannot open shared object file"),
        (
            ENDED.format("Worker unexpectedly exits with a connection error code 2. End of file."),
            "died (out of memory, or",
        ),
        (ENDED.format("The leased worker's node died. It was one."), "died (The leased worker's node died)."),
        ("", "died (out of memory, or killed)."),
    ],
)
def test_why_a_process_died(said: str, read: str) -> None:
    assert cause_of_death(said).startswith(f"the process of the trial {read}")
