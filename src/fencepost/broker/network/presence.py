"""Whether a client is connected, for those who remember it after its connection has closed."""

from __future__ import annotations


class Presence:
    """One connection: open, or closed at a time."""

    __slots__ = ("gone_at_ms",)

    def __init__(self) -> None:
        self.gone_at_ms = 0
        """When it was closed; 0 while it is open."""
