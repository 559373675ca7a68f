"""The preprocessing that weights were trained with: of open_clip's tags, of configurations, and of files of weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.data.transform import CLIP, Transform, Triple

_QUICK = "-quickgelu"


def of_config(config: Mapping[str, Any]) -> Transform:
    """The transform of a configuration of open_clip (`mean`, `std`, `resize_mode`, `interpolation`, `fill_color`).

    What it lacks is as in OpenAI's. Like open_clip, everything but `bilinear` is bicubic.
    """
    return Transform(
        config.get("resize_mode") or CLIP.resize,
        "bilinear" if config.get("interpolation") == "bilinear" else "bicubic",
        _triple(config.get("mean") or CLIP.mean),
        _triple(config.get("std") or CLIP.std),
        config.get("fill_color") or 0,
    )


def _triple(values: Any) -> Triple:
    return cast(Triple, (float(values),) * 3 if isinstance(values, int | float) else tuple(map(float, values)))


def of_tags(name: str) -> dict[str, Transform]:
    """The transforms of all tags of an open_clip model, and of its twin with or without QuickGELU, by tag."""
    import open_clip

    twins = dict.fromkeys([name, name.removesuffix(_QUICK), f"{name.removesuffix(_QUICK)}{_QUICK}"])
    return {
        tag: of_config(open_clip.get_pretrained_cfg(twin, tag))
        for twin in twins
        for tag in open_clip.list_pretrained_tags_by_model(twin)
    }


def of_file(name: str, path: Path, asked: str, stated: Transform | None) -> Transform:
    """The transform of weights in a file, which does not hold it.

    Args:
        name: an open_clip model.
        path: the file, for the message.
        asked: a tag of the model whose transform is taken, or `auto`.
        stated: what OpenAI's layout or a folder's configuration says; None for other files.

    Raises:
        ConfigError: the model has no such tag, or nothing is stated and the tags of the model differ.
    """
    tags = of_tags(name)
    if asked != "auto":
        if asked not in tags:
            raise unknown(f"tag of {name} for clip.preprocess", asked, tags)
        return tags[asked]
    if stated is not None:
        return stated
    examples = {how: tag for tag, how in tags.items()}
    if len(examples) > 1:
        raise ConfigError(
            f"{path} does not say how its images were resized and normalised, in which weights of {name} differ: set "
            f"clip.preprocess to the tag of such weights, {' or '.join(examples.values())}."
        )
    return next(iter(examples), CLIP)
