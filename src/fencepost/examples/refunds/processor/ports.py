"""What the processor needs of a client library, and the four kinds of errors that it can do something about.

Every library has its own exceptions, but only four reactions make sense to a transactional program.
An adapter's whole work is to tell which one is due.
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
    """Any error of a client library, told by what is to be done about it."""


class FencedError(KafkaFailure):
    """Another instance owns the transactional id, or the transaction timed out: this producer is over. Stop."""


class AbortableError(KafkaFailure):
    """This transaction cannot be committed, the next one can: abort, and go back to the committed offsets."""


class RetriableError(KafkaFailure):
    """The same call may succeed in a moment: make it again."""


class FatalError(KafkaFailure):
    """Nothing that this producer does can help. Tell people."""


class Kafka(Protocol):
    """A transactional producer, and a consumer of read_committed data that never commits by itself."""

    def init_transactions(self) -> None:
        """Takes the transactional id over: whoever had it is fenced, and what he left open is aborted."""

    def poll(self) -> Sequence[Message]:
        """The next messages of the source, perhaps none."""

    def begin(self) -> None:
        """Begins a transaction. Nobody is asked: it is the first write that tells the broker."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Writes in the transaction. Its failure may show only at `commit`."""

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        """The next offsets to read, as part of the transaction."""

    def commit(self) -> None:
        """Returns when everything of the transaction is visible; raises if any of it was not written."""

    def abort(self) -> None:
        """Returns when nothing of the transaction ever will be."""

    def rewind(self) -> None:
        """Reading goes on at the offsets that were committed last."""

    def close(self) -> None:
        """Lets everything go, without another word about the transaction. May be called twice."""
