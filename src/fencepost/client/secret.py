"""Passwords and private keys, hidden from logs.

Only `reveal()` returns the text of a `Secret`. It prints as stars in an f-string, a log line, a
traceback's locals and the repr of its container. It can be pickled, because Spark ships options to
executors; the pickle contains the text.
"""

from __future__ import annotations

from typing import Final

HIDDEN: Final = "********"


class Secret:
    """A string that does not print itself."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text, for the socket and never for people."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))
