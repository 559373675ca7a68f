import torch

from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play


def test_a_client_is_promptfl_with_that_client_alone(task: ClientTask) -> None:
    (state,) = play(CoOp(n_ctx=2), [task], cohorts=[[0, 1, 2, 3]] * 2)[-1]
    for client in range(4):
        (alone,) = play(PromptFL(n_ctx=2), [task], cohorts=[[client]] * 2)[-1]
        torch.testing.assert_close(state.personal["prompt"][client], alone.shared["prompt"], rtol=0, atol=1e-10)
