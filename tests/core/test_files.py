"""Files of tensors."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fpl_tune.core.files import refused, save_tensors, stamp, stamps


def _same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.dtype == wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize("metadata", [None, {"domäne": '"1"'}])
def test_the_library_reads_a_file_of_tensors(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    kinds += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {f"leaf.{kind}": torch.randn(3, 3).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 4), "größe": torch.ones(1)}
    whole = tensors["leaf.torch.float32"]
    tensors |= {"row, of the same memory": whole[1], "column": whole[:, 1]}
    save_tensors(tensors, path := tmp_path / "leaves", metadata)
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == metadata
        assert set(opened.keys()) == tensors.keys()
        assert all(_same(opened.get_tensor(name), tensor) for name, tensor in tensors.items())
    assert load_file(path).keys() == tensors.keys()


_LIMITED = """
import resource, sys
from pathlib import Path
import torch
from fpl_tune.core.tensors import large_leaves_in, replicate
from fpl_tune.simulation.checkpoint import Snapshot, write
folder = Path(sys.argv[1])
with large_leaves_in(folder):
    leaf = replicate(torch.ones(1 << 20), 100)
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (leaf.nbytes >> 1), resource.RLIM_INFINITY))
write(folder, Snapshot({"leaf": leaf}, {"round": 1}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_a_checkpoint_of_a_mapped_leaf_takes_no_copy_of_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LIMITED, tmp_path], check=True)
    assert (tmp_path / "round-000001.safetensors").stat().st_size > 400 << 20


@pytest.mark.parametrize("length", range(8))
def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path, length: int) -> None:
    """So that they can be mapped, whatever the header holds."""
    save_tensors({"a": torch.arange(3)}, path := tmp_path / "file", {"words": "x" * length})
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    assert torch.equal(load_file(path)["a"], torch.arange(3))


def test_stamps_are_those_of_the_files_below_a_folder_in_order(tmp_path: Path) -> None:
    """Not those of hidden and compiled ones, nor of what lies in folders of them."""
    for name in ("b/2", "b/1", "a", "c/d/e", ".hidden", ".git/config", "b/__pycache__/1.pyc", "c/.cache/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = list(stamps(tmp_path))
    assert found == [stamp(tmp_path / name) for name in ("a", "b/1", "b/2", "c/d/e")]
    assert [size for _, _, size in found] == [1, 3, 3, 5]
    (tmp_path / "b/1").write_text("longer")
    (changed,) = [now for now, before in zip(stamps(tmp_path), found, strict=True) if now != before]
    assert changed[::2] == [str(tmp_path / "b/1"), 6]
    assert stamp(tmp_path / "none") == [str(tmp_path / "none"), 0, 0]


@pytest.mark.parametrize(
    ("problem", "full"),
    [
        *((OSError(number, "no"), True) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)),
        (OSError(errno.ENOENT, "no"), False),
        (OSError("no"), False),
        (ValueError(errno.ENOSPC), False),
    ],
)
def test_a_disk_that_refuses_is_told_from_other_problems(problem: Exception, full: bool) -> None:
    assert refused(problem) is full
