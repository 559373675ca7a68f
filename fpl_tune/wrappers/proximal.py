"""FedProx around any method with shared leaves.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127 (Eq. 2). The released prompt-learning codes compute the term from detached tensors
without gradient, which is `mu=0`; here it has a gradient.
"""

from __future__ import annotations

from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Tree
from fpl_tune.wrappers._wrapper import Wrapper, exchanged


@fl.dataclass
class Proximal(Wrapper):
    """The local loss plus μ/2 · ‖w − w_received‖² over every leaf that came from the server.

    inner: the method whose loss is extended.
    mu: weight of the proximal term, >= 0; 0 is `inner`. pFedPrompt (App. A.3) found 0.005 best.

    Example:
        >>> from fpl_tune.methods.promptfl import PromptFL
        >>> from fpl_tune.testing import play, toy_task
        >>> apart = {}
        >>> for mu in (0.0, 10.0):  # in a configuration: {"name": "proximal", "mu": 10, "inner": {"name": "promptfl"}}
        ...     (before,), (after,) = play(Proximal(PromptFL(n_ctx=4), mu=mu), [toy_task()], cohorts=[(0, 1)])
        ...     apart[mu] = (after.shared["prompt"] - before.shared["prompt"]).norm()
        >>> bool(apart[10.0] < apart[0.0])
        True
    """

    inner: Method
    mu: fl.Weight = 0.005

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        names = exchanged(local, state.shared, "proximal")
        return local._replace(buffers={**local.buffers, **{f"received.{n}": local.params[n].clone() for n in names}})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, moved = super().loss(task, local, batch)
        for name, leaf in local.params.items():
            if f"received.{name}" in local.buffers:
                away = leaf - local.buffers[f"received.{name}"]
                loss = loss + self.mu / 2 * away.flatten(1).square().sum(1)
        return loss, {**local.buffers, **moved}
