"""AddPartitionsToTxn (24): v0-5

Behaviour: adds partitions to a transaction before the producer writes to them. If one does not
           exist or may not be written, none is added (OPERATION_NOT_ATTEMPTED for the others).
           Answers once the record is durable. With verifyOnly it checks whether partitions were
           added, which changes nothing. Brokers of a cluster ask over their links
           (`broker/peers.py`), and never send this request.
Versions:  v2 PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before that (KIP-588); v3 flexible; v4 several
           transactions at once, as Kafka's brokers send them (KIP-890), which needs CLUSTER_ACTION
           and no other right; v5 TRANSACTION_ABORTABLE.
Errors:    CLUSTER_AUTHORIZATION_FAILED (v4 up, of the whole reply); per partition
           TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED (internal topics too),
           UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED, INVALID_REQUEST,
           COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, INVALID_PRODUCER_ID_MAPPING,
           CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, TRANSACTION_ABORTABLE (verifyOnly).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import INTERNAL_TOPICS, TopicPartition
from fencepost.broker.authorization import CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.peers import FirstWrite
from fencepost.broker.transactions.coordinator import partitions_of
from fencepost.broker.turns import run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.events import AddPartitions
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.schema import constructor

NONE: Final = ErrorCode.NONE
PRODUCER_FENCED: Final = ErrorCode.PRODUCER_FENCED
FIRST_VERSION_WITH_FENCED: Final = 2
FIRST_VERSION_OF_BROKERS: Final = 4

_reply: Final = constructor(AddPartitionsToTxnResponse)
_result: Final = constructor(AddPartitionsToTxnResult)
_topic_result: Final = constructor(AddPartitionsToTxnTopicResult)
_partition_result: Final = constructor(AddPartitionsToTxnPartitionResult)

Errors = Sequence[tuple[TopicPartition, ErrorCode]]
"""One error per partition of the request; a partition that is listed twice has two."""


def handle(request: AddPartitionsToTxnRequest, context: Context) -> object:
    """Serves one request; see above."""
    if not _may_ask(context):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    checked: list[Checked] = []
    steps = _check(request, context, checked)
    return then(context.services.runtime, steps, partial(_add, request, context, checked))


class Checked:
    """The partitions of one transaction, and why some of them cannot join it."""

    __slots__ = ("errors", "is_denied", "names")

    def __init__(self, *, is_denied: bool) -> None:
        self.is_denied = is_denied
        """Whether the client may not use the transactional id, even without any partition."""
        self.names: list[TopicPartition] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}

    def refused(self) -> Errors:
        """The errors of all partitions if one of them cannot join, otherwise nothing."""
        errors = self.errors
        if not errors:
            return []
        return [(name, errors.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED)) for name in self.names]


def _check(
    request: AddPartitionsToTxnRequest, context: Context, checked: list[Checked]
) -> Iterator[None]:
    from_client = context.api_version < FIRST_VERSION_OF_BROKERS
    for transaction in request.transactions:
        denied = from_client and not context.authorize(
            "WRITE", "TRANSACTIONAL_ID", transaction.transactional_id
        )
        found = Checked(is_denied=denied)
        checked.append(found)
        yield
        for topic in transaction.topics:
            error = NONE
            if denied:
                error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            elif from_client and not _may_write(topic.name, context):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            yield
            for index in topic.partitions:
                name = TopicPartition(topic.name, index)
                found.names.append(name)
                if error is not NONE:
                    found.errors[name] = error
                elif context.services.metadata.partition(topic.name, index) is None:
                    found.errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                yield


def _add(
    request: AddPartitionsToTxnRequest, context: Context, checked: list[Checked]
) -> AddPartitionsToTxnResponse | Parked:
    if not request.transactions:
        return AddPartitionsToTxnResponse()
    adding = Adding(request, context)
    if len(checked) == 1:
        adding.serve(0, checked[0])
    else:
        steps = adding.serve_all(checked)
        run_in_turns(context.services.runtime, steps, _nothing_more)
    return adding.parked


def _nothing_more() -> None:
    """The last transaction that is answered sends the reply."""


class Adding:
    """The transactions of one request that are not answered yet."""

    __slots__ = ("_context", "_left", "_request", "_results", "parked")

    def __init__(self, request: AddPartitionsToTxnRequest, context: Context) -> None:
        self.parked = Parked(holds_followers=True)
        self._request = request
        self._context = context
        self._results = [
            _result(transactional_id=transaction.transactional_id)
            for transaction in request.transactions
        ]
        self._left = len(self._results)

    def serve_all(self, checked: list[Checked]) -> Iterator[None]:
        """Asks the coordinator about one transaction in each step."""
        for number, found in enumerate(checked):
            self.serve(number, found)
            yield

    def serve(self, number: int, found: Checked) -> None:
        """Asks the coordinator about one transaction."""
        transaction = self._request.transactions[number]
        _serve(transaction, found, self._context, partial(self._answered, number))

    def _answered(self, number: int, errors: Errors) -> None:
        replies = self._results[number].topic_results
        steps = _describe(errors, self._context.api_version, replies)
        run_in_turns(self._context.services.runtime, steps, self._described)

    def _described(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.parked.answer(_reply(results_by_transaction=self._results))


def _may_ask(context: Context) -> bool:
    """Whether the sender may use this version: several transactions at once are for brokers."""
    if context.api_version < FIRST_VERSION_OF_BROKERS:
        return True
    return context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)


def _serve(
    transaction: AddPartitionsToTxnTransaction,
    checked: Checked,
    context: Context,
    done: Callable[[Errors], None],
) -> None:
    names = checked.names
    refused = checked.refused()
    if refused or checked.is_denied:
        done(refused)
        return
    transactions = context.services.transactions
    if transaction.verify_only:
        write = FirstWrite(
            names,
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            add=False,
        )
        transactions.verify_here(write, lambda errors: done(list(zip(names, errors, strict=True))))
        return
    event = AddPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        partitions_of(names),
        2 if context.api_version >= FIRST_VERSION_OF_BROKERS else 0,
    )
    transactions.add_partitions(
        event, lambda reply: done([(name, reply.error) for name in names]), context
    )


def _may_write(topic: str, context: Context) -> bool:
    """Refuses internal topics, as clients do not write to them; AddOffsetsToTxn adds groups."""
    return topic not in INTERNAL_TOPICS and context.authorize("WRITE", "TOPIC", topic)


def _describe(
    errors: Errors, version: int, results: list[AddPartitionsToTxnTopicResult]
) -> Iterator[None]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), error in errors:
        fenced = error is PRODUCER_FENCED and version < FIRST_VERSION_WITH_FENCED
        code = ErrorCode.INVALID_PRODUCER_EPOCH if fenced else error
        of_topic = by_topic.get(topic)
        if of_topic is None:
            of_topic = by_topic[topic] = []
            results.append(_topic_result(name=topic, results_by_partition=of_topic))
        of_topic.append(_partition_result(partition_index=index, partition_error_code=code))
        yield
