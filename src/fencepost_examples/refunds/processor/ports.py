"""The interface to a client library, and the four kinds of errors that the processor handles.

Every library has its own exceptions, but a transactional program has only four ways to react. An
adapter maps exceptions to these four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

Place = tuple[str, int]
"""Topic and partition."""


class Message(NamedTuple):
    """One record of the source."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


class KafkaFailure(Exception):  # noqa: N818 - the kinds below are the errors.
    """Any error of a client library, classified by how to react."""


class FencedError(KafkaFailure):
    """Another instance owns the transactional id, or the transaction timed out. Stop."""


class AbortableError(KafkaFailure):
    """This transaction cannot be committed. Abort, and return to the committed offsets."""


class RetriableError(KafkaFailure):
    """A transient error. Repeat the same call."""


class FatalError(KafkaFailure):
    """This producer cannot recover. Stop and report it."""


class Kafka(Protocol):
    """A transactional producer, and a read_committed consumer without auto-commit."""

    def init_transactions(self) -> None:
        """Takes over the id: fences its earlier producer and aborts its open transaction."""

    def poll(self) -> Sequence[Message]:
        """Returns the next messages of the source, perhaps none."""

    def begin(self) -> None:
        """Begins a transaction. The broker learns of it with the first write."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Writes in the transaction. A failure may appear only at `commit`."""

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        """Adds the next offsets to read to the transaction."""

    def commit(self) -> None:
        """Commits. Raises if any part of the transaction was not written."""

    def abort(self) -> None:
        """Aborts the transaction."""

    def rewind(self) -> None:
        """Seeks to the committed offsets."""

    def close(self) -> None:
        """Closes the client without ending the transaction. May be called twice."""
