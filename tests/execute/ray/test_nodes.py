"""The check of a node, and the GPUs of this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fpl_tune.execute import gpus
from fpl_tune.execute.ray.nodes import look
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.study.versions import versions


def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    place = RemoteStorage(str(tmp_path))
    place.write("token", "")

    def said(storage: str = str(tmp_path), root: str = str(tmp_path), **other: str) -> str:
        return look(storage, "token", [root], {**versions(), **other}, False)[0]

    assert said() == ""
    assert said(torch="0.0.1").startswith("has torch ")
    assert "does not share memory://there with the driver" in said(storage="memory://there")
    assert "must be a URL that fsspec knows" in said(storage="nowhere://there")
    assert said(root="/nowhere") == "has no data.root=/nowhere. Mount it there"


def test_a_machine_that_does_not_answer_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_ASK", "import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "SECONDS", 0.5)
    began = time.monotonic()
    assert gpus.gpus_here() == ()
    assert time.monotonic() - began < 20
    monkeypatch.setattr(gpus, "SECONDS", 60.0)
    monkeypatch.setattr(gpus, "_ASK", "print([[8, 5]])")
    assert gpus.gpus_here() == ((8, 5),)
