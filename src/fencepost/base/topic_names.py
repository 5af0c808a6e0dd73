"""Kafka's rules for topic names."""

from __future__ import annotations

import re
from typing import Final

from fencepost.base.limits import MAX_TOPIC_NAME_LENGTH

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def refuse_name(name: str) -> str | None:
    """The reason why a topic cannot have this name; None if it can."""
    if not name:
        return "A topic needs a name."
    if name in (".", ".."):
        return f"A topic cannot be called {name!r}."
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"A topic name has at most {MAX_TOPIC_NAME_LENGTH} characters; this one has "
            f"{len(name)}."
        )
    if not _LEGAL.fullmatch(name):
        return f"A topic name has ASCII letters, digits, '.', '_' and '-' only, unlike {name!r}."
    return None


def collision_key(name: str) -> str:
    """The name as Kafka's metrics show it, with '.' as '_'; topics whose keys are equal collide."""
    return name.replace(".", "_")
