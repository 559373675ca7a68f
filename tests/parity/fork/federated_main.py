"""PromptFL as its forks write it: one model, client after client, state dicts handed round.

Usage: federated_main.py WORLD TRACE [FAULT], with one of the faults that a fork may have. `later` is none: the same
PromptFL as PromptFolio, FedPHA and FedSEPT write it. Rounds begin at 1, the context is the sum of a parameter and a
buffer, the model has several outputs, and clients are also tested on the images of others.
"""

import copy
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from clip import clip  # pyright: ignore[reportAttributeAccessIssue]
from Dassl.dassl.engine.trainer import TrainerX

WORLD, TRACE, FAULT = [*sys.argv[1:], ""][:3]
LATER = FAULT == "later"
sys.path.insert(0, WORLD)
import fpl_world  # noqa: E402  # pyright: ignore[reportMissingImports]


def leaves(named: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": named["prompt_learner.ctx"] + named["prompt_learner.base"]}


fpl_world.attach(TRACE, leaves if LATER else None)


class PromptLearner(torch.nn.Module):
    def __init__(self, names: list[str], model: Any) -> None:
        super().__init__()
        self.ctx = torch.nn.Parameter(0.02 * torch.randn(4, 128))
        self.base = torch.nn.Buffer(0.02 * torch.randn(4, 128))
        self.tokens = clip.tokenize([f"X X X X {name}{'' if FAULT == 'sentence' else '.'}" for name in names])
        with torch.no_grad():
            self.words = model.token_embedding(self.tokens)

    def forward(self) -> Any:
        context = (self.ctx + self.base if LATER else self.ctx).expand(len(self.words), -1, -1)
        return torch.cat([self.words[:, :1], context, self.words[:, 5:]], 1)


class CustomCLIP(torch.nn.Module):
    def __init__(self, names: list[str], model: Any) -> None:
        super().__init__()
        self.prompt_learner = PromptLearner(names, model)
        self.tokenized_prompts = self.prompt_learner.tokens
        self.image_encoder, self.model = model.visual, model

    def forward(self, image: Any) -> Any:
        model = self.model
        x = self.prompt_learner() + model.positional_embedding
        x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask))
        text = x[torch.arange(len(x)), self.tokenized_prompts.argmax(-1)] @ model.text_projection
        image = self.image_encoder(image)
        if FAULT != "length":
            image = image / image.norm(dim=-1, keepdim=True)
        text = text / text.norm(dim=-1, keepdim=True)
        logits = model.logit_scale.exp() * image @ text.t()
        return (text, logits, 2 * logits) if LATER else logits


class PromptFL(TrainerX):
    def build_model(self) -> None:
        url = clip._MODELS["ViT-B/16"]
        state = torch.jit.load(clip._download(url), map_location="cpu").eval().state_dict()
        model = clip.build_model(state).float()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.model = CustomCLIP(self.dm.dataset.classnames, model)
        learned = self.model.prompt_learner.parameters()
        momentum, decay = 0.9 if FAULT == "momentum" else 0.0, 0.0 if FAULT in ("later", "decay") else 5e-4
        self._optims = {"prompt": torch.optim.SGD(learned, lr=0.005, momentum=momentum, weight_decay=decay)}

    def forward_backward(self, *given: Any) -> None:
        batch = given[-1]
        loss = F.cross_entropy(self.inferred(batch["img"]), batch["label"])
        self.model_backward_and_update(loss)


def main() -> None:
    torch.manual_seed(3)
    users = SimpleNamespace(USERS=2 if FAULT == "users" else 3)
    trainer = PromptFL(SimpleNamespace(batch=8, epochs=2, DATASET=users, family="later" if LATER else ""))
    sizes = {client: len(loader.dataset) for client, loader in trainer.fed_train_loader_x_dict.items()}
    everywhere = copy.deepcopy(trainer.model.state_dict())
    for round_ in range(1 if FAULT and not LATER else 2):
        kept = []
        for client in sizes:
            trainer.model.load_state_dict(everywhere)
            trainer.train(idx=client, global_epoch=round_ + LATER)
            kept.append(copy.deepcopy(trainer.model.state_dict()["prompt_learner.ctx"]))
        weights = [1 if FAULT == "average" else sizes[client] for client in sizes]
        mean = sum(w * leaf for w, leaf in zip(weights, kept, strict=True)) / sum(weights)
        everywhere["prompt_learner.ctx"] = mean
        for client in sizes:
            trainer.model.load_state_dict(everywhere)
            trainer.test(idx=client)
        for client in sizes if LATER else ():
            trainer.test("neighbor", idx=client)


if __name__ == "__main__":
    main()
