"""MOON around any method with features: a client's features are attracted to those of the received model.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257 (Eq. 3). Code:
QinbinLi/MOON, in which a client without an earlier model has no term either. If training changes text features only, an
image's feature is the same in all models. Features of the classes are then compared instead, as in FedPGP
(https://arxiv.org/abs/2405.09771, Eq. 12).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Tree
from fpl_tune.wrappers._wrapper import Wrapper


@fl.dataclass
class Moon(Wrapper):
    """The local loss plus μ · mean log(1 + exp((⟨z, z_last⟩ - ⟨z, z_received⟩) / τ)).

    z are unit features of the model in training, z_received those of the received model, and z_last those of the
    client's model after its last round. In a client's first round the latter two are equal, and the term has no effect.
    The mean is over the images of a batch or, if training changes text features only, over all classes. A step encodes
    the trained features a second time, and images twice more, without gradients.

    inner: the method whose loss is extended; one with `Method.representation`.
    mu: μ >= 0; 0 is `inner`. The paper found 5 (CIFAR-10) and 1 (CIFAR-100, Tiny-ImageNet) best of 0.1, 1, 5 and 10.
    temperature: τ > 0; the larger, the weaker the attraction.
    """

    adds = ("moon.",)

    inner: Method
    mu: fl.Weight = 1.0
    temperature: fl.Positive = 0.5

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = "must be a method whose models can be compared by features"
        name = type(self.inner).__name__
        fl.require(self.inner.represents is not None, "inner", rule, name, "Wrap promptfl, vpt or fedlora.")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        self.exchanged(task, state)
        everyone = torch.arange(task.n_clients, device=task.device)
        last = {f"moon.{n}": leaf.clone() for n, leaf in self.inner.start(task, state, everyone).params.items()}
        trained = {"moon.trained": torch.zeros_like(everyone, dtype=torch.bool)}
        return state._replace(personal={**state.personal, **last, **trained})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        trained = state.personal["moon.trained"][clients]
        others = {"received": local.params, "last": dict(local.params)}
        for name, leaf in local.params.items():
            own = state.personal[f"moon.{name}"][clients]
            others["last"][name] = torch.where(trained.view(-1, *[1] * (leaf.ndim - 1)), own, leaf)
        compared: Tree = {}
        for which, params in others.items():
            if self.inner.represents == "classes":  # once per round, not in every step
                compared[f"moon.{which}"] = self._features(task, local._replace(params=params), trained)
            else:
                compared |= {f"moon.{which}.{name}": leaf.clone() for name, leaf in params.items()}
        return local._replace(buffers={**local.buffers, **compared})

    def _features(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return fl.normalize(self.inner.representation(task, local, image))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, moved = super().loss(task, local, batch)
        mine, others = self._features(task, local, batch.image), []
        for which in ("received", "last"):
            if self.inner.represents == "classes":
                others.append(local.buffers[f"moon.{which}"])
                continue
            params = {name: local.buffers[f"moon.{which}.{name}"] for name in local.params}
            with torch.no_grad():
                others.append(self._features(task, local._replace(params=params), batch.image))
        received, last = ((mine * other).sum(-1) for other in others)
        away = F.softplus((last - received) / self.temperature)
        away = away.mean(1) if self.inner.represents == "classes" else fl.mean_over(away, batch.mask)
        return loss + self.mu * away, {**local.buffers, **moved}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        after = super().merge(task, state, clients, local)
        last = {**local.params, "trained": torch.ones_like(clients, dtype=torch.bool)}
        own = {f"moon.{n}": fl.scatter_rows(state.personal[f"moon.{n}"], clients, leaf) for n, leaf in last.items()}
        return after._replace(personal={**after.personal, **own})
