"""Asks the coordinator of a transaction, wherever it is, whether a first write may go ahead.

A leader that receives the first write of a transaction has to ask the coordinator before it appends
(`partition/verification.py`). If another node is the coordinator, the question is an
AddPartitionsToTxn over the link to it: verifyOnly in TV1, and an addition in TV2.

If that node is dead, or does not coordinate the id yet or any more, the leader asks again after a
pause, and the metadata says whom. So a producer rarely notices that its coordinator has moved. The
limit is `FIRST_WRITE_WAIT_MS`; then the producer gets an error that it retries. Asking twice is
harmless: a question changes nothing, and an addition only its own transaction, because in TV2 the
next one has another epoch.

Each question is a request of its own: a node answers some of them late (the previous transaction is
still ending), and the others must not wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TRANSACTION_STATE_TOPIC
from fencepost.base.limits import FIRST_WRITE_WAIT_MS
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.peers import Peers
    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.transactions.coordinator import TransactionCoordinator
    from fencepost.coordinator.metadata.state import MetadataState

VERSION: Final = 5
"""The first version with TRANSACTION_ABORTABLE."""

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
        self._metadata: Final = metadata

    def ask(
        self,
        names: Sequence[TopicPartition],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        add: bool,
        done: Callable[[list[ErrorCode]], None],
    ) -> None:
        """Asks until there is an answer, or the time is up; one error per partition."""
        if self.transactions.partition_for(transactional_id) is None:
            done([ErrorCode.NOT_COORDINATOR] * len(names))
            return
        topics: dict[str, list[int]] = {}
        for topic, index in names:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not add,
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ],
        )
        _Question(self, names, transaction, done).begin()

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that coordinates an id; -1 if there is none now."""
        index = self.transactions.partition_for(transactional_id)
        return NO_NODE if index is None else self._metadata.leader(TRANSACTION_STATE_TOPIC, index)


class _Question:
    """One question, from its first attempt to its answer."""

    __slots__ = ("_asking", "_done", "_error", "_names", "_pause", "_time_limit", "_transaction")

    def __init__(
        self,
        asking: FirstWrites,
        names: Sequence[TopicPartition],
        transaction: AddPartitionsToTxnTransaction,
        done: Callable[[list[ErrorCode]], None],
    ) -> None:
        self._asking = asking
        self._names = names
        self._transaction = transaction
        self._done: Callable[[list[ErrorCode]], None] | None = done
        self._error = ErrorCode.NETWORK_EXCEPTION
        """The answer if the time is up."""
        self._pause: TimerHandle | None = None
        self._time_limit: TimerHandle | None = None

    def begin(self) -> None:
        self._time_limit = self._asking.runtime.call_later(FIRST_WRITE_WAIT_MS, self._give_up)
        self._attempt()

    def _attempt(self) -> None:
        self._pause = None
        asking, transaction = self._asking, self._transaction
        coordinator = asking.coordinator_of(transaction.transactional_id)
        if coordinator == NO_NODE:
            self._told([ErrorCode.COORDINATOR_NOT_AVAILABLE])
        elif coordinator == asking.node_id:
            asking.transactions.verify_here(
                self._names,
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                add=not transaction.verify_only,
                done=self._told,
            )
        else:
            self._error = ErrorCode.NETWORK_EXCEPTION
            asking.peers.request(
                coordinator,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                VERSION,
                AddPartitionsToTxnRequest(transactions=[transaction]),
                partial(_replied, self._names, self._told),
            )

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
        self._time_limit = None
        if self._pause is not None:
            self._pause.cancel()
        self._answer([self._error] * len(self._names))

    def _answer(self, errors: list[ErrorCode]) -> None:
        if self._time_limit is not None:
            self._time_limit.cancel()
            self._time_limit = None
        done, self._done = self._done, None
        assert done is not None, "a question is answered once"
        done(errors)


def _replied(
    names: Sequence[TopicPartition],
    told: Callable[[list[ErrorCode]], None],
    reply: AddPartitionsToTxnResponse | None,
) -> None:
    """Reads a coordinator's reply; None if the node is dead."""
    if reply is None:
        told([ErrorCode.NETWORK_EXCEPTION])
        return
    errors = {
        (topic.name, result.partition_index): result.partition_error_code
        for transaction in reply.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }
    told([ErrorCode(errors[topic, index]) for topic, index in names])
