"""Attacks of malicious clients on what they train on: false labels, and images with the patch of a backdoor."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fpl_tune.core.clients import BackdoorSpec, MaliciousSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.tensors import some_of
from fpl_tune.data import Dataset
from fpl_tune.method import generator
from fpl_tune.simulation.evaluate import PATCHED
from fpl_tune.simulation.task import ClientData, ClientTask, SharedData


def poisoned(task: ClientTask, spec: MaliciousSpec, shared: SharedData, seed: int) -> ClientTask:
    """The task with what the malicious clients `task.liars` train on in rounds of an attack on data.

    With a backdoor there is also the test set `PATCHED`: the images of the main test set that are not of the target
    class, with the patch and the label of the target, so that its accuracy is the success of the attack.

    Raises:
        ConfigError: no client trains on the target class, or no benign client has a test image of another class.
    """
    assert task.liars is not None
    lies, tests = None, task.tests
    if spec.attack == "label_flip":
        lies = task.train.changed(task.liars[:, None].to(task.device), task.n_classes - 1 - task.train.label)
    elif (backdoor := spec.planted) is not None:
        target = _target(task, backdoor, shared.dataset)
        lies = task.train.changed(_chosen(task, backdoor, target, seed), target, patched=True)
        tests = {**tests, PATCHED: (task.known, _patched(task, target, shared.patched[1]))}
    return replace(task, poisoned=lies if spec.strength else None, tests=tests)


def _target(task: ClientTask, spec: BackdoorSpec, dataset: Dataset) -> int:
    """The target among the classes of the task."""
    ids = [dataset.classes.index(name) for name in task.known.names]
    if spec.target not in ids:
        first, last = (f"{ids[i]} ({task.known.names[i]})" for i in (0, -1))
        raise ConfigError(
            f"clients.malicious.backdoor.target must be the id of one of the {len(ids)} classes that clients train on, "
            f"{first} to {last}, but is {spec.target}."
        )
    return ids.index(spec.target)


def _chosen(task: ClientTask, spec: BackdoorSpec, target: int, seed: int) -> Tensor:
    """[N, R] bool: the images of malicious clients that get the patch, none of the target class if there are others."""
    assert task.liars is not None
    mask, label = task.train.mask.cpu(), task.train.label.cpu()
    chosen = torch.zeros_like(mask)
    for client in task.liars.nonzero()[:, 0].tolist():
        held = mask[client].nonzero()[:, 0]
        others = held[label[client, held] != target]
        room = others if len(others) else held
        order = torch.randperm(len(room), generator=generator("backdoor", seed, client))
        chosen[client, room[order[: some_of(spec.share, len(held))]]] = True
    return chosen.to(task.device)


def _patched(task: ClientTask, target: int, images: Tensor) -> ClientData:
    """The main test images of other classes with the patch, which the table `images` has, labelled as the target."""
    main = task.tests[task.primary][1]
    others = main.only(main.label != target)
    if not any(others.sizes):
        raise ConfigError(
            "The success of a backdoor is measured on test images that are not of the target class, but benign clients "
            f"have none but those of {task.known.names[target]!r}. Choose another clients.malicious.backdoor.target."
        )
    others.same_for_all = main.same_for_all  # the same images are left of the same images
    others.images = images
    return others.changed(others.mask, target)
