"""Which topic names are legal, by Kafka's rules."""

from __future__ import annotations

import re
from typing import Final

from fencepost.base.limits import MAX_TOPIC_NAME_LENGTH

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def refuse_name(name: str) -> str | None:
    """Why a topic cannot have this name; None when it can."""
    if not name:
        return "A topic needs a name."
    if name in (".", ".."):
        return f"A topic cannot be called {name!r}: that is a folder."
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"A topic name has at most {MAX_TOPIC_NAME_LENGTH} characters; this one has "
            f"{len(name)}."
        )
    if not _LEGAL.fullmatch(name):
        return f"A topic name has ASCII letters, digits, '.', '_' and '-' only; {name!r} has more."
    return None


def collision_key(name: str) -> str:
    """What two names share whose metrics Kafka cannot tell apart: it writes '.' as '_' there."""
    return name.replace(".", "_")
