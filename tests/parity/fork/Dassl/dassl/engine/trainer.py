"""Dassl's trainers, as far as forks call them: loops over clients, epochs and batches.

With `cfg.family == "later"` as PromptFolio, FedPHA and FedSEPT have changed them.
"""

from typing import Any

import torch
from Dassl.dassl.data.data_manager import DataManager


class TrainerBase:
    _optims: dict[str, Any]

    def model_backward(self, loss: Any) -> None:
        loss.backward()

    def model_update(self, names: Any = None) -> None:
        for optim in self._optims.values():
            optim.step()

    def model_backward_and_update(self, loss: Any, names: Any = None) -> None:
        for optim in self._optims.values():
            optim.zero_grad()
        self.model_backward(loss)
        self.model_update(names)


class SimpleTrainer(TrainerBase):
    model: Any

    def __init__(self, cfg: Any) -> None:
        self.cfg, self.epoch = cfg, 0
        self.dm = DataManager(cfg)
        self.fed_train_loader_x_dict = self.dm.loaders("train", cfg.batch)
        self.fed_test_loader_x_dict = self.dm.loaders("test", 100)
        self.build_model()

    def build_model(self) -> None:
        raise NotImplementedError

    def forward_backward(self, *given: Any) -> Any:
        raise NotImplementedError

    @torch.no_grad()
    def test(self, split: Any = None, is_global: bool = False, current_epoch: int = 0, idx: int = -1) -> Any:
        loaders = self.fed_test_loader_x_dict
        held = [loader for c, loader in loaders.items() if (c != idx if split == "neighbor" else c == idx)]
        right = [(self.inferred(b["img"]).argmax(1) == b["label"]).float() for loader in held for b in loader]
        accuracy = 100 * float(torch.cat(right).mean())
        return {"accuracy": accuracy, "error": 100 - accuracy} if self.cfg.family == "later" else [accuracy]

    def inferred(self, image: Any) -> Any:
        output = self.model(image)
        return output[1] if self.cfg.family == "later" else output


class TrainerX(SimpleTrainer):
    def train(self, idx: int, global_epoch: int) -> None:
        for epoch in range(self.cfg.epochs):
            self.epoch = epoch
            self.run_epoch(idx, global_epoch)

    def run_epoch(self, idx: int = -1, global_epoch: int = -1) -> None:
        for place, batch in enumerate(self.fed_train_loader_x_dict[idx]):
            self.forward_backward(*([place] if self.cfg.family == "later" else []), batch)
