"""Asks the coordinator of a transaction, wherever it is, whether a first write may go ahead.

A leader that receives the first write of a transaction has to ask the coordinator before it appends
(`partition/verification.py`). If another node is the coordinator, the question is a request over
the link to it: whether the partition was added in TV1, and an addition in TV2.

If that node is dead, or does not coordinate the id yet, or no longer does, the leader asks again
after a pause, and the metadata says whom. So a producer rarely notices that its coordinator has
moved. The limit is `FIRST_WRITE_WAIT_MS`; then the producer gets an error that it retries. Asking
twice is harmless: a question changes nothing, and an addition only its own transaction, because in
TV2 the next one has another epoch.

Each question is a separate request: a node answers some of them late (the previous transaction is
still ending), and the others must not wait for that. Those of one turn of the loop share a write on
the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TRANSACTION_STATE_TOPIC
from fencepost.base.limits import FIRST_WRITE_WAIT_MS
from fencepost.broker.deadlines import Deadlines

if TYPE_CHECKING:
    from fencepost.broker.peers import Answer, FirstWrite, Peers
    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.transactions.coordinator import TransactionCoordinator
    from fencepost.coordinator.metadata.state import MetadataState

ASK_AGAIN_MS: Final = 100
"""Pause before the next attempt: Kafka's retry.backoff.ms."""

ASKED_AGAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Errors that say nothing about the transaction, only that this was not the node to ask."""


class FirstWrites:
    """The questions of this node to coordinators on other nodes."""

    def __init__(
        self,
        runtime: Runtime,
        metadata: MetadataState,
        node_id: int,
        peers: Peers,
        transactions: TransactionCoordinator,
    ) -> None:
        self.runtime: Final = runtime
        self.node_id: Final = node_id
        self.peers: Final = peers
        self.transactions: Final = transactions
        self.time_limits: Final = Deadlines(runtime, FIRST_WRITE_WAIT_MS)
        self._metadata: Final = metadata

    def ask(self, write: FirstWrite, done: Answer) -> None:
        """Asks until there is an answer, or the time is up; one error per partition."""
        if self.transactions.partition_for(write.transactional_id) is None:
            done([ErrorCode.NOT_COORDINATOR] * len(write.names))
            return
        _Question(self, write, done).begin()

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that coordinates an id; -1 if there is none now."""
        index = self.transactions.partition_for(transactional_id)
        return NO_NODE if index is None else self._metadata.leader(TRANSACTION_STATE_TOPIC, index)


class _Question:
    """One question, from its first attempt to its answer."""

    __slots__ = ("_asking", "_done", "_error", "_pause", "_time_limit", "_write")

    def __init__(self, asking: FirstWrites, write: FirstWrite, done: Answer) -> None:
        self._asking = asking
        self._write = write
        self._done: Answer | None = done
        self._error = ErrorCode.NETWORK_EXCEPTION
        """The answer if the time is up."""
        self._pause: TimerHandle | None = None
        self._time_limit = 0

    def begin(self) -> None:
        self._time_limit = self._asking.time_limits.set(self._give_up)
        self._attempt()

    def _attempt(self) -> None:
        self._pause = None
        asking, write = self._asking, self._write
        coordinator = asking.coordinator_of(write.transactional_id)
        if coordinator == NO_NODE:
            self._told([ErrorCode.COORDINATOR_NOT_AVAILABLE])
        elif coordinator == asking.node_id:
            asking.transactions.verify_here(write, self._told)
        else:
            self._error = ErrorCode.NETWORK_EXCEPTION
            asking.peers.verify(coordinator, write, self._replied)

    def _replied(self, errors: list[ErrorCode] | None) -> None:
        """The coordinator has answered; None if its node is dead."""
        self._told([ErrorCode.NETWORK_EXCEPTION] if errors is None else errors)

    def _told(self, errors: list[ErrorCode]) -> None:
        if self._done is None:
            return
        if errors[0] in ASKED_AGAIN:
            self._error = errors[0]
            self._pause = self._asking.runtime.call_later(ASK_AGAIN_MS, self._attempt)
        else:
            self._answer(errors)

    def _give_up(self) -> None:
        """The time is up; a reply that comes later is ignored."""
        if self._pause is not None:
            self._pause.cancel()
        self._answer([self._error] * len(self._write.names))

    def _answer(self, errors: list[ErrorCode]) -> None:
        self._asking.time_limits.cancel(self._time_limit)
        done, self._done = self._done, None
        assert done is not None, "a question is answered once"
        done(errors)
