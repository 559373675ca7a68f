"""Removal of passwords and tokens from texts that hold URIs."""

from __future__ import annotations

import re

HIDDEN = "***"


def redact(text: str) -> str:
    """Replaces passwords and tokens in the URIs of a text by `***`; user names are kept."""

    def cut(found: re.Match[str]) -> str:
        user, colon, _ = found[1].partition(":")
        return f"//{user}:{HIDDEN}@" if colon and "/" not in user else f"//{HIDDEN}@"

    text = re.sub(r"//([^\s'\"]*)@", cut, text)
    return re.sub(r"(?i)([?&][\w-]*(?:password|passwd|pwd|token|secret|key)[\w-]*=)[^&\s'\"]+", rf"\1{HIDDEN}", text)
