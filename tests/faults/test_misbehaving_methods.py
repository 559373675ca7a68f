"""Every hook of a method goes wrong in every way: its cell fails in one line that names it, all others run on."""

import re

import torch

from fpl_tune.study.store import Store

from ..conftest import Heard, there
from ..conftest import start_study as run_study

PLUG_IN = '''
import sys
import torch
import fpl_tune.method as fl
from fpl_tune.methods.promptfl import PromptFL

def each(found, change):
    """Applies a change to all floating-point tensors and counts of what a hook returns."""
    if isinstance(found, dict):
        return {name: each(part, change) for name, part in found.items()}
    if isinstance(found, tuple):
        parts = [each(part, change) for part in found]
        return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)
    return change(found) if torch.is_tensor(found) else change(torch.tensor(float(found))).tolist()

def exits(found):
    sys.exit(3)

def settings(found):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.backends.mkldnn.enabled = False
    torch.manual_seed(7)
    return found

WAYS = {
    "well": lambda found: found,
    "nothing": lambda found: None,
    "shape": lambda found: each(found, lambda leaf: torch.stack([leaf, leaf])),
    "nan": lambda found: each(found, lambda leaf: leaf * float("nan")),
    "raises": lambda found: {}["no such name"],
    "exits": exits,
    "settings": settings,
}

@fl.dataclass
class Misbehaving(PromptFL):
    hook: str = "none"
    how: str = "well"

    def diagnose(self, task, local, batch):
        return {"share": self.logits(task, local, batch)[..., 0]}

    def metrics(self, task, state):
        return {"train/prompts": 1.0}

def altered(hook):
    right = getattr(Misbehaving, hook)
    return lambda self, *args: WAYS[self.how if self.hook == hook else "well"](right(self, *args))

for hook in ("check", "init", "start", "logits", "loss", "merge", "deploy", "diagnose", "metrics", "traffic"):
    setattr(Misbehaving, hook, altered(hook))
'''
HOOKS = ["init", "start", "logits", "loss", "merge", "deploy", "diagnose", "metrics", "traffic"]
PLACE = r"\(.*misbehaving\.py:\d+\)$"  # a leaf of another shape fails where it is read
SAID = {
    **{(hook, "nothing"): rf"^Misbehaving\.{hook} must return an? \w+, but returned None" for hook in HOOKS},
    **{(hook, "shape"): rf"^Misbehaving\.{hook} must " for hook in HOOKS},
    ("init", "shape"): PLACE,
    ("deploy", "shape"): PLACE,
    **{(hook, "nan"): "^training diverged: .* NaN" for hook in HOOKS},
    ("traffic", "nan"): r"^Misbehaving\.traffic must count scalars",
    ("diagnose", "nan"): "",  # of reports alone
    ("metrics", "nan"): "",  # a method may have none to report
    **{(hook, "raises"): rf"^KeyError: 'no such name' {PLACE}" for hook in [*HOOKS, "check"]},
    **{(hook, "exits"): rf"^Misbehaving\.{hook} called sys\.exit\(3\)" for hook in [*HOOKS, "check"]},
    ("logits", "exits"): r"^Misbehaving\.loss called sys\.exit\(3\)",
    ("loss", "settings"): "default dtype|meta|grad",
    ("none", "well"): "",
}
"""By hook and what it does: what the result of its cell says is wrong; "": nothing is."""


def test_a_hook_that_misbehaves_is_named_and_harms_no_other_cell(compose, left, tmp_path, monkeypatch) -> None:
    (tmp_path / "misbehaving.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "misbehaving")
    heard = Heard()
    whole = [f"{{name: 'misbehaving:Misbehaving', hook: {hook}, how: {how}}}" for hook, how in SAID]
    made = compose(f"axes: {{method: [{', '.join(whole)}]}}", "protocol.rounds=1", "seeds=1", "execution.retries=0")
    outcome = run_study(made, root=tmp_path / "all", callbacks=[heard])
    assert (outcome.pending, outcome.exit_code) == (0, 1)
    store, wrong = Store.open(tmp_path / "all", "tiny"), {}
    for cell in store.cells():
        method = cell.run.method
        key = (method.hook, method.how)  # type: ignore[attr-defined]
        result = there(store.result(cell, 1))
        wanted, error = SAID[key], result.error or ""
        states = {"done"} if not wanted else {"diverged"} if "diverged" in wanted else {"failed"}
        if result.status not in states or not re.search(wanted, error) or "\n" in error:
            wrong[key] = (result.status, error)
    assert wrong == {}
    assert [text.partition(" changed ")[0] for text in heard.warnings] == ["misbehaving:Misbehaving"]
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, 1)
    calm = f"axes: {{method: [{whole[-1]}]}}"
    run_study(compose(calm, "protocol.rounds=1", "seeds=1"), root=tmp_path / "calm")
    found, alone = left(tmp_path / "all"), left(tmp_path / "calm")
    same = [name for name in alone if not name.endswith("cell.json")]  # which has the cell's number
    assert len(same) == 4
    assert {name: found[name] for name in same} == {name: alone[name] for name in same}
