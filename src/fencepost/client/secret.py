"""Words that must not be seen: passwords and private keys.

A `Secret` gives its text only to who asks by `reveal()`. It prints as stars, in an f-string, in a
log line, in a traceback's locals and inside the repr of whatever holds it. It can be pickled,
because Spark ships options to executors; the pickle holds the text, as it must.
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
        """The text itself: for the socket, never for people."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))
