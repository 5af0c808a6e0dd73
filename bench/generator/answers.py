"""Replies, read only as far as they decide.

Where the error codes of a reply stand follows from the request (how many topics and partitions, how
long their names are), so the wire room encodes a reply of the same shape once, and the places are
looked up in it.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import encode_response
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from fencepost.wire.forms.end_txn import EndTxnResponse
from fencepost.wire.forms.init_producer_id import InitProducerIdResponse
from fencepost.wire.forms.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

CONCURRENT_TRANSACTIONS: Final = ErrorCode.CONCURRENT_TRANSACTIONS.to_bytes(2, "big")
COORDINATOR_COMES: Final = tuple(
    code.to_bytes(2, "big")
    for code in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""What a coordinator says that is not ready yet."""
NO_ERROR: Final = b"\x00\x00"
_SOME_CODE: Final = 0x5A5E
_IDENTITY: Final = struct.Struct(">qh")


class RefusedError(Exception):
    """The broker answered with an error that nobody retries; the figures would mean nothing."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


class Answer:
    """The shape of the replies to one kind of request."""

    __slots__ = ("_first", "_places", "what")

    def __init__(self, what: str, api: ApiKey, version: int, form: Any) -> None:
        """`form` has an impossible error code wherever one can be."""
        self.what = what
        data = b"".join(encode_response(api, version, 0, form))
        places = []
        place = data.find(_SOME_CODE.to_bytes(2, "big"))
        while place >= 0:
            places.append(place)
            place = data.find(_SOME_CODE.to_bytes(2, "big"), place + 2)
        assert places, f"replies to {what} have no error code"
        self._first = places[0]
        self._places = tuple(slice(place, place + 2) for place in places)

    def error_in(self, reply: bytes) -> bytes:
        """The first error of a reply as its two bytes; NO_ERROR when all went well."""
        for place in self._places:
            if (code := reply[place]) != NO_ERROR:
                return code
        return NO_ERROR

    def identity_in(self, reply: bytes) -> Identity:
        """The producer id and epoch that follow the error code."""
        return Identity(*_IDENTITY.unpack_from(reply, self._first + 2))

    def refusal(self, code: bytes) -> RefusedError:
        if len(code) < 2:
            return RefusedError(f"the reply to {self.what} is cut short")
        number = int.from_bytes(code, "big", signed=True)
        names = {int(one): one.name for one in ErrorCode}
        known = names.get(number, "a code that nobody knows")
        return RefusedError(f"{self.what} was refused: {known} ({number})")


def produced(topic: str, version: int, spread: int = 1) -> Answer:
    parts = [PartitionProduceResponse(index=0, error_code=_SOME_CODE) for _ in range(spread)]
    form = ProduceResponse(responses=[TopicProduceResponse(name=topic, partition_responses=parts)])
    return Answer("Produce", ApiKey.PRODUCE, version, form)


def partitions_added(topic: str, transactional_id: str, version: int, spread: int = 1) -> Answer:
    parts = [
        AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=_SOME_CODE)
        for _ in range(spread)
    ]
    topics = [AddPartitionsToTxnTopicResult(name=topic, results_by_partition=parts)]
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
    form = AddPartitionsToTxnResponse(results_by_transaction=[result])
    return Answer("AddPartitionsToTxn", ApiKey.ADD_PARTITIONS_TO_TXN, version, form)


def ended(version: int) -> Answer:
    return Answer("EndTxn", ApiKey.END_TXN, version, EndTxnResponse(error_code=_SOME_CODE))


def initialised(version: int) -> Answer:
    form = InitProducerIdResponse(error_code=_SOME_CODE)
    return Answer("InitProducerId", ApiKey.INIT_PRODUCER_ID, version, form)
