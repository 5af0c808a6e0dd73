"""Where reading begins: what a stored position, a topic and its log say together.

Pure: no database, no Kafka. Whoever cannot begin gets a refusal, never a guess.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

STARTS: Final = ("earliest", "latest")
"""Where a partition without a stored position may begin."""


class Refusal(Enum):
    """Why a stored position cannot be used."""

    RECREATED = "recreated"
    """The topic was deleted and created again since."""
    EXPIRED = "expired"
    """Retention or DeleteRecords went past the position: records may be lost."""
    BEYOND_END = "beyond end"
    """The partition ends before the position: it lost records, or the position is another's."""


class Partition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Stored(NamedTuple):
    """The row of a partition; None where it says nothing."""

    topic_id: str | None = None
    next_offset: int | None = None
    epoch: int = 0
    owner: str = ""

    def is_behind(self, found: Found, start: str) -> bool:
        """Whether records are not applied yet. What `decide` refuses is no less behind."""
        begin = decide(self, found, start)
        return isinstance(begin, Refusal) or begin < found.end


class Found(NamedTuple):
    """What Kafka says of the partition now."""

    topic_id: str
    log_start: int
    end: int


def decide(stored: Stored, found: Found, start: str) -> int | Refusal:
    """The offset to read next, or why there is none.

    A user accepts a refusal by changing the row: no topic id fits any topic, and without an offset
    the partition begins where a new one would.
    """
    if stored.topic_id not in (None, found.topic_id):
        return Refusal.RECREATED
    if stored.next_offset is None:
        return found.log_start if start == "earliest" else found.end
    if stored.next_offset < found.log_start:
        return Refusal.EXPIRED
    if stored.next_offset > found.end:
        return Refusal.BEYOND_END
    return stored.next_offset
