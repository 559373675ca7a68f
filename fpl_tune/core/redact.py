"""Removes passwords and tokens from strings that contain URIs."""

from __future__ import annotations

import re

HIDDEN = "***"


def redact(text: str) -> str:
    """Replaces passwords and tokens in the URIs of a string by `***`. User names are kept."""

    def cut(match: re.Match[str]) -> str:
        user, colon, _ = match[1].partition(":")
        return f"//{user}:{HIDDEN}@" if colon and "/" not in user else f"//{HIDDEN}@"

    text = re.sub(r"(?<!/)//(?!/)([^\s'\"]*)@", cut, text)
    return re.sub(r"(?i)([?&][\w-]*(?:password|passwd|pwd|token|secret|key)[\w-]*=)[^&\s'\"]+", rf"\1{HIDDEN}", text)
