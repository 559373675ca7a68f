"""A method of your own: PromptFL whose server keeps a share of the prompt before the round.

In the folder of this file: `python own_method.py`, or `fpl-tune run method=own_method:Inertia method.keep=0.5`.
"""

from torch import Tensor

import fpl_tune
import fpl_tune.method as fl
from fpl_tune.method import Local, State, Task
from fpl_tune.methods.promptfl import PromptFL


@fl.dataclass
class Inertia(PromptFL):
    """keep: share of the prompt before the round; 0 is PromptFL, and 1 learns nothing."""

    keep: fl.Share = 0.5

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        """PromptFL's context is the leaf `prompt` of the shared state."""
        mean = super().merge(task, state, clients, local).shared["prompt"]
        return state._replace(shared={"prompt": self.keep * state.shared["prompt"] + (1 - self.keep) * mean})


if __name__ == "__main__":
    for keep in (0, 0.5):
        rounds = fpl_tune.run({"method": "own_method:Inertia", "method.keep": keep, "protocol": "quick"})
        print(f"keep={keep}: {100 * rounds['test/acc_mean'].iloc[-1]:.1f} % of the test images")
