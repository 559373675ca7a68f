"""Loaders of every client."""

from typing import Any

import numpy as np
import torch
from PIL import Image


def build_dataset(cfg: Any) -> Any:
    raise OSError("no data set is installed")


class _Images(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, items: list[Any], paths: bool) -> None:
        self.data_source, self.paths = items, paths

    def __len__(self) -> int:
        return len(self.data_source)

    def __getitem__(self, i: int) -> dict[str, Any]:
        item = self.data_source[i]
        pixels = torch.from_numpy(np.asarray(Image.open(item.impath)).transpose(2, 0, 1).copy()).float() / 255
        named = {"impath": item.impath} if self.paths else {"index": i}
        return {"img": (pixels - 0.5) / 0.25, "label": item.label, **named}


class DataManager:
    def __init__(self, cfg: Any) -> None:
        self.dataset, self.paths = build_dataset(cfg), cfg.family != "later"
        tested = self.dataset.test if self.paths else self.dataset.data_test
        assert len(tested) == sum(map(len, self.dataset.federated_test_x))

    def loaders(self, side: str, batch: int) -> dict[int, Any]:
        held = getattr(self.dataset, f"federated_{side}_x")
        train = side == "train"
        return {
            client: torch.utils.data.DataLoader(
                _Images(items, self.paths), batch, shuffle=train, drop_last=train and len(items) >= batch
            )
            for client, items in enumerate(held)
        }
