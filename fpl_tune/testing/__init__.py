"""For tests: small worlds of the true architecture, and the contract that every method keeps."""

import torch

from fpl_tune.testing.contract import CONTRACT, check_method
from fpl_tune.testing.rounds import Toy, assert_same, play, toy
from fpl_tune.testing.sim import sim_device, why_not
from fpl_tune.testing.toys import EVERYONE, toy_task, toy_towers

if not why_not() and not torch.cuda.is_available():
    sim_device()  # here, as PyTorch's backward pass uses only devices that existed when it first ran

__all__ = ["CONTRACT", "EVERYONE", "Toy", "assert_same", "check_method", "play", "toy", "toy_task", "toy_towers"]
