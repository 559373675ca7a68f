"""Checkpoints appear whole or not at all, are checked when read, and the one before is kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Damaged, Snapshot


def _snapshot(number: int) -> Snapshot:
    tensors = {"1/shared/prompt": torch.full((3, 5), float(number)), "1/server/none": torch.zeros(0)}
    return Snapshot(tensors | {"1/personal/half": torch.ones((), dtype=torch.bfloat16)}, {"round": number, "text": "µ"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path / "deep", _snapshot(3))
    found = checkpoint.read(path)
    assert found.meta == {"round": 3, "text": "µ"}
    assert found.tensors.keys() == _snapshot(3).tensors.keys()
    assert all(torch.equal(leaf, _snapshot(3).tensors[name]) for name, leaf in found.tensors.items())


def test_the_last_two_are_kept_and_given_up_rounds_removed(tmp_path: Path) -> None:
    for number in (2, 4, 6, 10):
        checkpoint.write(tmp_path, _snapshot(number))
    names = [path.name for path in checkpoint.list_newest(tmp_path)]
    assert names == ["round-000010.safetensors", "round-000006.safetensors"]
    checkpoint.write(tmp_path, _snapshot(8))  # clients continued from 6 finds nothing later than its own
    names = [path.name for path in checkpoint.list_newest(tmp_path)]
    assert names == ["round-000008.safetensors", "round-000006.safetensors"]
    assert len(list(tmp_path.iterdir())) == 2


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, _snapshot(1))
    content = path.read_bytes()
    draw = torch.Generator().manual_seed(7)
    for at in torch.randint(len(content), (60,), generator=draw).tolist():
        for damaged in (
            content[:at] + bytes([content[at] ^ 1 << int(torch.randint(8, (), generator=draw))]) + content[at + 1 :],
            content[:at],
        ):
            path.write_bytes(damaged)
            try:
                found = checkpoint.read(path)
            except Damaged:
                continue
            # What a flip leaves readable and equal is a spare byte: blanks that pad the header.
            assert found.meta == _snapshot(1).meta
            assert all(torch.equal(leaf, _snapshot(1).tensors[name]) for name, leaf in found.tensors.items())


def test_a_file_without_our_mark_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_file({"meta": torch.zeros(3, dtype=torch.uint8)}, path)
    with pytest.raises(Damaged, match="not what was written"):
        checkpoint.read(path)
    torch.save({"a": torch.zeros(1)}, path)  # a pickle
    with pytest.raises(Damaged, match="truncated or corrupt"):
        checkpoint.read(path)


def test_a_checkpoint_is_numbers_and_text(tmp_path: Path) -> None:
    """Nothing in it that loading could run: safetensors, and JSON in one of its tensors."""
    stored = load_file(checkpoint.write(tmp_path, _snapshot(1)))
    assert stored.pop("meta").numpy().tobytes().decode() == '{"round": 1, "text": "\\u00b5"}'
    assert stored.keys() == _snapshot(1).tensors.keys()
