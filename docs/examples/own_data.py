"""Data of your own: images that a CSV file lists, with the class and the split of each.

`python own_data.py` draws a few images to the folder photos/ and runs on them. With images and a list of your own in
it: `fpl-tune run data.name=own_data:source data.root=photos`.
"""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

import fpl_tune
from fpl_tune.data import DataSpec, load
from fpl_tune.data.pool import Dataset, FilePool
from fpl_tune.data.sources import Source
from fpl_tune.data.spec import PartitionSpec
from fpl_tune.testing import check_dataset


def read(spec: DataSpec) -> Dataset:
    """Lists the images without reading pixels; `spec` holds the fields of `data`."""
    root = spec.root or "photos"
    with Path(root, "images.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    classes = tuple(sorted({row["class"] for row in rows}))

    def pool(split: str) -> FilePool:
        own = [row for row in rows if row["split"] == split]
        label = np.array([classes.index(row["class"]) for row in own], np.int64)
        names = tuple(row["file"] for row in own)
        return FilePool(f"photos-{split}", names, label, np.zeros(len(own), np.int64), "clip", root=root)

    return Dataset("photos", classes, ("photos",), "a photo of a {}.", pool("train"), pool("test"))


source = Source("photos in a list", read, PartitionSpec("iid", n_clients=2), "images.csv", "drawn by own_data.py")


def draw(folder: Path) -> None:
    """Writes 60 noisy images of two colours, and the list of them."""
    folder.mkdir(exist_ok=True)
    rng, lines = np.random.default_rng(0), ["file,class,split"]
    for number in range(60):
        pixels = rng.integers(0, 80, (32, 32, 3), dtype=np.uint8)
        pixels[:, :, 2 * (number % 2)] += 150
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{('red', 'blue')[number % 2]} square,{'train' if number < 40 else 'test'}")
    (folder / "images.csv").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if not Path("photos").exists():
        draw(Path("photos"))
    data = {"data.name": "own_data:source", "data.root": "photos"}
    check_dataset(load(DataSpec("own_data:source", root="photos")))
    rounds = fpl_tune.run({**data, "method": "promptfl", "protocol": "quick"})
    print(f"{100 * rounds['test/acc_mean'].iloc[-1]:.1f} % of the test images")
