"""Makes torchvision importable where its build does not match torch's (CUDA beside CPU)."""

from __future__ import annotations

import re
import sys

import torch

_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_libraries: list[torch.library.Library] = []  # a collected library takes its definitions with it


def ensure_importable() -> None:
    """Import torchvision; operators its compiled half did not bring are declared without a kernel.

    open_clip imports torchvision for its transforms, none of which calls such an operator.
    """
    while True:
        try:
            import torchvision  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing.group(1)}() -> ()")
            _libraries.append(library)
            for name in [name for name in list(sys.modules) if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
        else:
            return
