"""Replies, decoded only as far as needed.

The positions of the error codes in a reply follow from the request (the number of topics and
partitions, the length of their names). So the wire room encodes one reply of the same shape, and
the positions are looked up in it.
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
"""The errors of a coordinator that is not ready yet."""
NO_ERROR: Final = b"\x00\x00"
_SOME_CODE: Final = 0x5A5E
_IDENTITY: Final = struct.Struct(">qh")


class RefusedError(Exception):
    """The broker answered with an error that clients do not retry; the run is invalid."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


class Answer:
    """The layout of the replies to one kind of request."""

    __slots__ = ("_first", "_places", "what")

    def __init__(self, what: str, api: ApiKey, version: int, form: Any) -> None:
        """`form` is a reply with an impossible error code in every place for one."""
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
        """The first error of a reply as its two bytes; NO_ERROR if there is none."""
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
        known = names.get(number, "an unknown code")
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
