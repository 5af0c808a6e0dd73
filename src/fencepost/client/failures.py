"""The client's exceptions. Every message says what to do.

`Refused`: a broker refused the request, and the request had no effect. `RetriesExhausted`: no
broker accepted or refused it in time. `UnknownOutcome`, which a caller of `end_txn` must handle:
the transaction may or may not have been committed, and only the cluster can tell.
"""

# ruff: noqa: N818
# The names say what happened, as Kafka's own do (ProducerFenced); "Error" would add nothing.

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition


class ClientError(FencepostError):
    """The base class of the client's exceptions."""


class RetriesExhausted(ClientError, TimeoutError):
    """The deadline passed while the cluster answered with retriable errors, or not at all."""

    def __init__(self, what: str, timeout_ms: int, last: str) -> None:
        super().__init__(
            f"{what} did not succeed within {timeout_ms} ms; the last answer was: {last}"
        )
        self.what = what
        self.timeout_ms = timeout_ms
        self.last = last

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.what, self.timeout_ms, self.last)


class NoBrokerAnswers(ClientError):
    """None of the bootstrap servers answered; the message names each and what happened."""

    accepts = False
    """Whether one of them accepts connections: it may want TLS or a login."""


class ClosedByBroker(ClientError):
    """A broker closed the connection every time instead of answering this request."""

    def __init__(self, what: str, endpoint: str, times: int) -> None:
        super().__init__(
            f"{endpoint} closed the connection {times} times instead of answering {what}: it "
            "cannot read the request, or something in between closes connections. Check its log"
        )
        self.arguments = (what, endpoint, times)

    def __reduce__(self) -> tuple[type, tuple[str, str, int]]:
        return type(self), self.arguments


class AuthenticationFailed(ClientError):
    """TLS or SASL failed. Retrying with the same credentials could lock the account."""


class UnsupportedByBroker(ClientError):
    """The broker and this client have no common version of this request."""


class UnknownOutcome(ClientError):
    """EndTxn was sent, and its effect is unknown.

    To find out, call InitProducerId, which completes or aborts the transaction and fences earlier
    epochs. Then read what the transaction would have written, for example its committed offsets.
    """


class Refused(ClientError):
    """A broker answered with an error code that a retry will not change."""

    def __init__(
        self,
        api: str,
        code: int,
        *,
        about: str = "",
        message: str | None = None,
        partition: TopicPartition | None = None,
    ) -> None:
        self.api = api
        self.code = code
        self.about = about
        self.message = message
        self.partition = partition
        super().__init__(_sentence(api, code, about, message))

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # Spark pickles exceptions on their way from worker to driver; keyword arguments need help.
        rebuild = partial(
            type(self), about=self.about, message=self.message, partition=self.partition
        )
        return rebuild, (self.api, self.code)


class ProducerFenced(Refused):
    """Another producer with the same transactional id took over, or the transaction timed out."""


class OutOfOrderSequence(Refused):
    """The partition has batches of this producer id and epoch that this writer did not send."""


class TransactionAbortable(Refused):
    """The transaction can no longer be committed. Abort it, then retry."""


class OffsetOutOfRange(Refused):
    """The requested offset is not in the log: it was deleted, or was never written."""


class UnknownTopicOrPartition(Refused):
    """The cluster has no such topic or partition."""


class BatchRefusedForSize(Refused):
    """The batch is larger than the topic accepts. Smaller batches may succeed."""

    records = 0
    size_bytes = 0


_CLASS_OF_CODE: Final[Mapping[int, type[Refused]]] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequence,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortable,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicOrPartition,
    ErrorCode.INCONSISTENT_TOPIC_ID: UnknownTopicOrPartition,
    ErrorCode.MESSAGE_TOO_LARGE: BatchRefusedForSize,
    ErrorCode.RECORD_LIST_TOO_LARGE: BatchRefusedForSize,
}

_FENCED: Final = (
    "a newer producer with this transactional id has taken over, or the transaction timed out and "
    "was aborted: do not use this producer again; stop the other one, or raise the transaction "
    "timeout"
)

_ADVICE: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "a second writer uses this producer id and epoch on "
    "the same partition: abort the transaction and retry with one writer per partition",
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction, then retry it",
    ErrorCode.INVALID_TXN_STATE: "the transaction is not in a state that allows this (it was "
    "ended, it timed out, or nothing was written in it)",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "this transactional id has expired or has another "
    "producer id now: call init_producer_id again",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "set a transaction timeout above 0 and up to the "
    "broker's transaction.max.timeout.ms",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant this user WRITE and DESCRIBE on the "
    "transactional id",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user the operation on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this user READ on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant this user the operation on the cluster",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is no longer in the log, or not yet: get the "
    "current range from list_offsets",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic first, or correct its name or "
    "partition number",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted, or deleted and created again: look it "
    "up again",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the topic was deleted and created again: look it up again",
    ErrorCode.MESSAGE_TOO_LARGE: "make batches smaller, or raise max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "make batches smaller than a segment of the topic",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of an offset is limited to "
    "offset.metadata.max.bytes (4096)",
    ErrorCode.INVALID_RECORD: "the topic does not accept such records (a compacted topic needs a "
    "key in each)",
    ErrorCode.SECURITY_DISABLED: "without an authorizer everybody may do everything; how to have "
    "ACLs: docs/guide/security-acls.md",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers than that",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this request",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "no producer has used this transactional id, or it "
    "has expired",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "correct the regular expression; it is in RE2's syntax",
    ErrorCode.INVALID_GROUP_ID: "a group id must not be empty",
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop its consumers first",
    ErrorCode.GROUP_ID_NOT_FOUND: "the cluster has no group of this name",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has live members: stop its consumers before "
    "committing from outside",
}


def refusal(
    api: str,
    code: int,
    *,
    about: str = "",
    message: str | None = None,
    partition: TopicPartition | None = None,
) -> Refused:
    """Returns the exception for this code."""
    assert code != ErrorCode.NONE
    kind = _CLASS_OF_CODE.get(code, Refused)
    return kind(api, code, about=about, message=message, partition=partition)


def _sentence(api: str, code: int, about: str, message: str | None) -> str:
    subject = f"{api} for {about}" if about else api
    parts = [f"{subject} was refused with {error_name(code)} ({int(code)})"]
    if advice := _ADVICE.get(code):
        parts.append(advice)
    if message:
        parts.append(message)
    return "; ".join(parts)
