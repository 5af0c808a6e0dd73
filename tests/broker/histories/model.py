"""What clients may rely on after a history, told from their requests and the replies to them.

A value is written once by its client, and retried until its outcome is known. The outcome of a
request without a reply is unknown; so is that of everything that was under way to a topic when its
deletion was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Place = tuple[str, int]


class ViolationError(AssertionError):
    """The broker broke a promise."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise ViolationError(what)


@dataclass(eq=False)
class Incarnation:
    """One topic from its creation to its deletion; a later topic of the name is another one."""

    name: str
    topic_id: bytes
    is_compacted: bool
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By partition and offset: values that were certainly written there."""
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The same for values that a read_committed reader has got."""
    deleted_below: dict[int, int] = field(default_factory=dict)
    """By partition: where DeleteRecords has moved the beginning to."""


@dataclass(eq=False)
class Transaction:
    """One transaction of one producer."""

    name: str
    state: Literal["open", "ending", "committed", "aborted", "unsure"] = "open"
    """`ending` from the request to commit on; `unsure` if its outcome stays unknown."""
    values: list[bytes] = field(default_factory=list)
    """Everything that was sent, acknowledged or not."""
    certain: list[tuple[Incarnation, int, int, bytes]] = field(default_factory=list)
    """What was acknowledged: topic, partition, offset and value."""
    offsets: dict[Place, tuple[Incarnation, int]] = field(default_factory=dict)
    """The group's offsets that were acknowledged."""


class Model:
    """What is known at a moment."""

    def __init__(self) -> None:
        self.topics: dict[str, Incarnation] = {}
        """Topics that certainly exist; one that is being deleted is not among them."""
        self.transactions: list[Transaction] = []
        self.keys: dict[bytes, bytes] = {}
        """The key of each value of a compacted topic."""
        self.plain: set[bytes] = set()
        """Values written outside of transactions."""
        self.committed_plainly: dict[Place, tuple[Incarnation, int]] = {}
        self.attempted_plainly: dict[Place, int] = {}
        self.producer_ids: set[int] = set()
        self.identities: dict[str, tuple[int, int]] = {}
        self._numbers = 0

    def new_value(self, who: str) -> bytes:
        self._numbers += 1
        return f"{who}.{self._numbers}".encode()

    # -- identities

    def got_producer_id(self, producer_id: int) -> None:
        require(producer_id not in self.producer_ids, f"producer id {producer_id} was given twice")
        self.producer_ids.add(producer_id)

    def got_identity(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """InitProducerId fences everybody before: the identity is a new one."""
        before = self.identities.get(transactional_id)
        if before is None or before[0] != producer_id:
            self.got_producer_id(producer_id)
        else:
            require(epoch > before[1], f"{transactional_id}: epoch {epoch} after {before[1]}")
        self.identities[transactional_id] = (producer_id, epoch)

    def raised_epoch(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """EndTxn of TV2 gives the next epoch, and the same again to a retry."""
        before = self.identities.get(transactional_id)
        if before is not None and before[0] != producer_id:
            self.got_producer_id(producer_id)
        self.identities[transactional_id] = (producer_id, epoch)

    # -- writes

    def acknowledged(self, topic: Incarnation, index: int, offset: int, value: bytes) -> None:
        """Of a write that began and ended while the topic certainly existed."""
        require(offset >= 0, f"{value!r} was acknowledged at {offset}")
        before = topic.acknowledged.setdefault((index, offset), value)
        require(before == value, f"{topic.name}-{index}: two values at {offset}: {before!r}")

    def saw(self, topic: Incarnation, index: int, offset: int, value: bytes) -> None:
        """A read_committed reader got a value."""
        before = topic.seen.setdefault((index, offset), value)
        require(
            before == value,
            f"{topic.name}-{index}: offset {offset} was {before!r} and became {value!r}",
        )
