"""SCAFFOLD's control variates against option II of its Algorithm 1."""

from __future__ import annotations

import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play
from fpl_tune.wrappers.scaffold import Scaffold

METHOD = Scaffold(PromptFL(n_ctx=2))


def test_control_variates_are_those_of_option_two(task: ClientTask) -> None:
    """One client trains in the second round, so that the average is its y: by plain descent in 2 x 3 steps of 0.1."""
    spec = OptimSpec(lr=0.1, batch=4, momentum=0.0, weight_decay=0.0)
    _, (before,), (after,) = play(METHOD, [task], cohorts=[(0, 2), (0,)], spec=spec, epochs=2)
    old, c = before.personal["control.prompt"], before.shared["control.prompt"]
    torch.testing.assert_close(c, old.sum(0) / 4)
    wanted = old[0] - c + (before.shared["prompt"] - after.shared["prompt"]) / (6 * 0.1)
    new = after.personal["control.prompt"]
    torch.testing.assert_close(new[0], wanted)
    assert (new[0] - old[0]).abs().max() > 1e-3
    torch.testing.assert_close(after.shared["control.prompt"], c + (new[0] - old[0]) / 4)
    assert torch.equal(new[1:], old[1:])


def test_uploads_and_downloads_double(task: ClientTask) -> None:
    (state,) = play(METHOD, [task], cohorts=[])[-1]
    sent = METHOD.traffic(task, state, torch.arange(4))
    assert sent.up == sent.down == {"prompt": 64, "control.prompt": 64}
