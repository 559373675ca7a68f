"""Texts without passwords, and seeds that depend on what they are for alone."""

import subprocess
import sys

import pytest
import torch

from fpl_tune.core.redact import redact
from fpl_tune.core.seeds import derive, generator


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://me:secret@host/db failed", "at postgresql://me:***@host/db failed"),
        ("http://token@host:5000/x", "http://***@host:5000/x"),
        ("http://me:p@ss@host", "http://me:***@host"),
        ("http://pa/th:x@host", "http://***@host"),
        ("http://host/?user=me&access_token=abc&n=1", "http://host/?user=me&access_token=***&n=1"),
        ("'http://host/?API-Key=abc', then", "'http://host/?API-Key=***', then"),
        ("me@host.org, at 10:30", "me@host.org, at 10:30"),
        ("file:///a/b", "file:///a/b"),
        ("sqlite:////a/b@c/d:e@f", "sqlite:////a/b@c/d:e@f"),
    ],
)
def test_passwords_and_tokens_are_hidden_and_users_stay(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_seed_follows_from_its_key_in_every_process() -> None:
    keys = [("init", 0), ("init", 1), ("batch", 0), ("init",), ("init", "0")]
    seeds = [derive(*key) for key in keys]
    assert len({*seeds}) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(derive(i) for i in range(64)) > 2**62, "63 bits"
    command = "from fpl_tune.core.seeds import derive; print(derive('init', 0))"
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert int(ran.stdout) == seeds[0]
    assert torch.equal(torch.randn(3, generator=generator("a")), torch.randn(3, generator=generator("a")))
    assert not torch.equal(torch.randn(3, generator=generator("a")), torch.randn(3, generator=generator("b")))
