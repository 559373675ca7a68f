"""PLOT, federated: several shared prompts are matched with an image's patches by optimal transport.

Chen, Yao, Song, Li, Rao, Zhang: PLOT: Prompt Learning with Optimal Transport for Vision-Language Models, ICLR 2023,
https://arxiv.org/abs/2210.01253. Official code: CHENGY12/PLOT, 728539f; federated in FLIP (0-ml/flip, ec3a848), whose
script has one prompt, with which every plan is uniform. The code stops the iteration when a batch has converged; here
the number of steps is fixed, so that clients are independent. On ImageNet the code adds the logit of the pooled
feature, which is left out.
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._transport import Entropy, transported


@fl.dataclass
class PLOT(FederatedAveraging):
    """Logit of a class: s · Σ_mn T_mn · cos(patch_m, text_n); T is the balanced plan, without gradient.

    prompts: N, number of shared contexts, >= 1; 1 is PromptFL on the mean of the patches' similarities.
    epsilon: weight of the entropy, >= 0.005. The larger, the more uniform T, and the more similar the prompts.
    iterations: number of iterations, >= 1.
    n_ctx: number of context tokens of each prompt, >= 1.
    """

    needs = "patches"

    prompts: fl.AtLeastOne = 4
    epsilon: Entropy = 0.1
    iterations: fl.AtLeastOne = 100
    n_ctx: fl.AtLeastOne = 16

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={"prompt": fl.new_context(task, self.n_ctx, rng, self.prompts)}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.encode_prompts(local.params["prompt"])  # [C, N, K, D]
        return transported(task.scale, batch.image, text, 1.0, self.epsilon, self.iterations, capped=False)
