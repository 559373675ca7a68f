"""The part of `fpl-tune parity` that runs in a fork: connects it to this world, and records its results.

`fpl-tune world` copies this file into the world; it needs PyTorch and NumPy. In code derived from Dassl (PromptFL,
FedOTP, FedPGP, pFedMoAP, PromptFolio, FedPHA, FedSEPT), these lines after the imports of `federated_main.py` are
enough::

    import sys
    sys.path.insert(0, "path/of/the/world")
    import fpl_world
    fpl_world.attach("trace.npz")

Other code calls `adapt` on the model that it builds from `WEIGHTS`, reads its images from `clients`, and passes its
results to a `Recorder`.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = os.path.join(HERE, "clip.pt")
with open(os.path.join(HERE, "world.json"), encoding="utf-8") as _file:
    WORLD = json.load(_file)
Named = dict[str, Any]  # by name: tensors, arrays
Leaves = Callable[[Named], Named]


def adapt(model: Any) -> Any:
    """Sets properties that checkpoints lack, the number of heads and the use of GELU, and returns the model."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "MultiheadAttention" and str(module.embed_dim) in WORLD["heads"]:
            module.num_heads = WORLD["heads"][str(module.embed_dim)]
            module.head_dim = module.embed_dim // module.num_heads
        elif kind == "QuickGELU" and not WORLD["quick_gelu"]:
            module.forward = torch.nn.functional.gelu
    return model


def clients(side: str, seed: int) -> list[list[tuple[str, int]]]:
    """[path, label] of the images of every client. `side` is train, val or test."""
    with open(os.path.join(HERE, f"split-seed{seed}.json"), encoding="utf-8") as file:
        listed = json.load(file)[side]
    return [[(os.path.join(HERE, "images", path), label) for path, label in one] for one in listed]


def attach(path: str, leaves: Leaves | None = None, seed: int | None = None, start: Leaves | None = None) -> Recorder:
    """Lets the modules of a fork of Dassl use this world, and records a run, which is written when the process ends.

    Args:
        path: path of the trace.
        leaves: returns the learned leaves with fpl-tune's names, given the model's parameters and buffers by name. It
            is also called with their gradients, which are zero for buffers. Default: the context as `prompt`.
        seed: seed of the clients' split; by default the first exported one.
        start: the same for all leaves before the first step, if they have other names or are more than the learned
            ones. `fpl-tune ls methods NAME` lists them. Default: `leaves`.
    """
    chosen: int = WORLD["seeds"][0] if seed is None else seed
    try:
        root = "Dassl.dassl"
        importlib.import_module(root)
    except ImportError:
        root = "dassl"
    clip: Any = importlib.import_module("clip.clip")
    build = clip.build_model
    clip.build_model = lambda *args, **more: adapt(build(*args, **more))
    clip._download = lambda *args, **more: WEIGHTS
    base: Any = importlib.import_module(f"{root}.data.datasets.base_dataset")
    manager: Any = importlib.import_module(f"{root}.data.data_manager")
    manager.build_dataset = lambda cfg: _dataset(cfg, base, chosen)
    recorder = Recorder(path, leaves, start)
    _watch(importlib.import_module(f"{root}.engine.trainer"), recorder)
    atexit.register(recorder.save)
    return recorder


def _dataset(cfg: Any, base: Any, seed: int) -> Any:
    users = getattr(getattr(cfg, "DATASET", None), "USERS", WORLD["clients"])
    if users != WORLD["clients"]:
        raise SystemExit(f"fpl_world: this world has {WORLD['clients']} clients, but the fork {users}: --num_users.")
    names, parts = WORLD["classes"], {}
    for side in ("train", "test"):
        parts[side] = [
            [base.Datum(impath=path, label=label, classname=names[label]) for path, label in one]
            for one in clients(side, seed)
        ]
    train, test = ([item for one in parts[side] for item in one] for side in ("train", "test"))
    trained = {item.label for item in train}
    named = train + [item for item in test if item.label not in trained]  # classes are counted by what is listed here
    dataset = base.DatasetBase(
        train_x=named, federated_train_x=parts["train"], federated_test_x=parts["test"], test=test
    )
    dataset.data_test = test  # read in place of `test` by FedPHA and FedSEPT
    return dataset


class Recorder:
    """Collects a trace. All calls are optional, and names are those in the documentation of fpl-tune."""

    def __init__(self, path: str, leaves: Leaves | None = None, start: Leaves | None = None) -> None:
        """See `attach`."""
        self.path = path
        self._leaves: Leaves = leaves or (lambda params: {"prompt": params["prompt_learner.ctx"]})
        self._start = start or self._leaves
        self._arrays: Named = {}
        self._steps: list[Any] = []
        self._tested: dict[str, dict[int, Any]] = {}
        self._clock: dict[int, tuple[float, float]] = {}

    def note(self, name: str, value: Any) -> None:
        """Records an array with a documented name. Later calls with the same name are ignored."""
        if name not in self._arrays:
            self._arrays[name] = np.array(value.detach().cpu() if isinstance(value, torch.Tensor) else value)

    def note_leaves(self, prefix: str, params: Named) -> None:
        for name, leaf in (self._start if prefix == "initial" else self._leaves)(params).items():
            self.note(f"{prefix}/{name}", leaf)

    def step(
        self, round_: int, client: int, epoch: int, images: Any, labels: Any, loss: float, rate: float = float("nan")
    ) -> None:
        """Records a local step: rounds counted from 1, clients and epochs from 0, and image files."""
        self._tick(round_)
        names = [os.path.basename(str(image)) for image in images]
        self._steps.append(((round_, client, epoch), names, [int(label) for label in labels], float(loss), float(rate)))

    def test(self, round_: int, client: int, accuracy: float, params: Named | None = None) -> None:
        """Records a client's accuracy in % after a round (0: before training), and the parameters that were tested."""
        self._tick(round_)
        accuracies = self._tested.setdefault(f"accuracy/{round_}", {})
        accuracies[client] = np.float64(accuracy)
        for name, leaf in (self._leaves(params) if params and round_ else {}).items():
            self._tested.setdefault(f"after/{round_}/{name}", {})[client] = np.array(leaf.detach().cpu())

    def _tick(self, round_: int) -> None:
        began, _ = self._clock.setdefault(round_, (time.perf_counter(), 0.0))
        self._clock[round_] = began, time.perf_counter()

    def save(self) -> None:
        """Writes the file, unless nothing was recorded."""
        if not self._steps and not self._tested:
            return
        arrays = dict(self._arrays)
        if self._steps:
            width = max(len(step[1]) for step in self._steps)
            arrays["steps"] = np.array([step[0] for step in self._steps])
            arrays["images"] = np.array([step[1] + [""] * (width - len(step[1])) for step in self._steps])
            arrays["labels"] = np.array([step[2] + [-1] * (width - len(step[2])) for step in self._steps])
            arrays["losses"] = np.array([step[3] for step in self._steps])
            arrays["seconds"] = np.array(
                [end - began for round_, (began, end) in sorted(self._clock.items()) if round_]
            )
            arrays["rates"] = np.array([step[4] for step in self._steps])
        for name, by_client in self._tested.items():
            one = next(iter(by_client.values()))
            whole = np.full((WORLD["clients"], *one.shape), np.nan)
            for client, value in by_client.items():
                whole[client] = value
            arrays[name] = whole
        np.savez(self.path, **arrays)
        rounds = len({step[0][0] for step in self._steps})
        print(f"fpl_world: wrote {self.path}, {rounds} rounds and {len(self._steps)} steps")


def _watch(trainer: Any, recorder: Recorder) -> None:
    """Records the steps of a Dassl trainer: its loops, backward pass, update and tests."""
    base, looped, tested = trainer.TrainerBase, trainer.TrainerX.run_epoch, trainer.SimpleTrainer.test
    backward, update = base.model_backward, base.model_update
    now: Named = {"round": 0}

    def run_epoch(self: Any, idx: int = -1, global_epoch: int = -1, *args: Any, **more: Any) -> Any:
        if "trainer" not in now:
            now["trainer"] = self
            _describe(self, recorder)
            step = self.forward_backward

            def forward_backward(*args: Any, **more: Any) -> Any:
                now["batch"] = next(given for given in (*args, *more.values()) if isinstance(given, Mapping))
                recorder.note_leaves("initial", _tensors(self.model))
                return step(*args, **more)

            self.forward_backward = forward_backward
            self.model.register_forward_hook(lambda module, given, output: now.update(output=output))
            encoder = getattr(self.model, "image_encoder", None)
            if encoder is not None:
                encoder.register_forward_hook(lambda module, given, output: now.update(features=output))
        first = now.setdefault("first", global_epoch)
        now.update(round=global_epoch - first + 1, client=max(idx, 0))
        return looped(self, idx, global_epoch, *args, **more)

    def model_backward(self: Any, loss: Any) -> Any:
        now["loss"] = loss.item()
        return backward(self, loss)

    def model_update(self: Any, names: Any = None) -> Any:
        labels = now["batch"]["label"]
        if "step" not in now:
            now["step"] = True
            logits = _logits(now["output"], (len(labels), len(self.dm.dataset.classnames)))
            if logits is not None:
                recorder.note("first/logits", logits)
            if torch.is_tensor(now.get("features")) and now["features"].shape[:1] == (len(labels),):
                recorder.note("first/features", now["features"])
            named = _tensors(self.model)
            gradient = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}
            recorder.note_leaves("first/gradient", gradient)
        rate = next(iter(self._optims.values())).param_groups[0]["lr"]
        place = now["round"], now["client"], self.epoch
        recorder.step(*place, _files(self, now["client"], now["batch"]), labels, now["loss"], rate)
        return update(self, names)

    def test(self: Any, *args: Any, **more: Any) -> Any:
        results = tested(self, *args, **more)
        called = inspect.signature(tested).bind(self, *args, **more)
        called.apply_defaults()
        if now["round"] == 0:
            _describe(self, recorder)
        split = called.arguments.get("split")
        if split == now.setdefault("split", split):  # not that of other clients' images, which FedSEPT tests next
            accuracy = next(iter(results.values() if isinstance(results, Mapping) else results))
            recorder.test(now["round"], max(called.arguments["idx"], 0), accuracy, _tensors(self.model))
        return results

    trainer.TrainerX.run_epoch, trainer.SimpleTrainer.test = run_epoch, test
    base.model_backward, base.model_update = model_backward, model_update


def _tensors(model: Any) -> Named:
    """The parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _logits(output: Any, shape: tuple[int, int]) -> Any:
    """The first tensor of a shape [B, K] among the outputs of a model; None if there is none."""
    if isinstance(output, Mapping):
        output = list(output.values())
    outputs = output if isinstance(output, (tuple, list)) else [output]
    return next((x for x in outputs if torch.is_tensor(x) and x.shape == shape), None)


def _files(trainer: Any, client: int, batch: Any) -> list[str]:
    """The image files of a batch, which has their paths or their places among those of the client."""
    if "impath" in batch:
        return batch["impath"]
    items = trainer.fed_train_loader_x_dict[client].dataset.data_source
    return [items[int(place)].impath for place in batch["index"]]


def _describe(trainer: Any, recorder: Recorder) -> None:
    """Records the classes, sentences and clients' images of a trainer."""
    recorder.note("classes", list(trainer.dm.dataset.classnames))
    tokens = getattr(trainer.model, "tokenized_prompts", None)
    if tokens is not None:
        recorder.note("tokens", tokens[: len(trainer.dm.dataset.classnames)])
    for side in ("train", "test"):
        for client, loader in getattr(trainer, f"fed_{side}_loader_x_dict").items():
            files = [os.path.basename(item.impath) for item in loader.dataset.data_source]
            recorder.note(f"{side}/{client}", files)
