"""The messages between the controller and a broker, on the link that joins them.

From the controller to a broker:

    START       what to be: the settings of the process (JSON); the first message
    STATE       the metadata up to an offset, as the records that lead to it
    PEER        a link to another broker (its id, its process, and a file)
    RECORDS     a batch of the metadata log; whether it may be opened at once
    OPEN        every broker has released what the batch takes from it: open what it gives
    STOP        stop; what the broker leads is closed cleanly
    CONTROL     a command of an operator or a test (JSON), answered by CONTROLLED
    REPLY       the reply to REQUEST
    ANSWER      the answer to ASK (JSON)

From a broker to the controller:

    HELLO       the port that is bound for clients, or why there is none (JSON)
    SERVING     clients are served
    HEARTBEAT   alive; whether there is a partition that the broker leads and could not open
    RELEASED    what the batches up to an offset take from this broker is closed
    DONE        the batches up to an offset are carried out
    REQUEST     a client's request that only the controller serves
    ASK         create topics, or reserve producer ids (JSON)
    CONTROLLED  the result of CONTROL (JSON)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer

Body = Sequence[Buffer]
"""The body of a message, in parts."""


class Kind(IntEnum):
    """The kind of a message; see above."""

    START = 1
    STATE = 2
    PEER = 3
    RECORDS = 4
    OPEN = 5
    STOP = 6
    CONTROL = 7
    REPLY = 8
    ANSWER = 9
    HELLO = 20
    SERVING = 21
    HEARTBEAT = 22
    RELEASED = 23
    DONE = 24
    REQUEST = 25
    ASK = 26
    CONTROLLED = 27


_OFFSET: Final = struct.Struct(">q")
_BATCH_HEAD: Final = struct.Struct(">q?i")
_SIZE: Final = struct.Struct(">i")
_REQUEST_HEAD: Final = struct.Struct(">qi")


class Batch(NamedTuple):
    """A batch of the metadata log, or the whole log up to an offset."""

    end_offset: int
    opens_at_once: bool
    """Whether the broker need not wait for OPEN, because no broker loses a partition."""
    records: list[bytes]


class Request(NamedTuple):
    """A client's request on its way to the controller."""

    number: int
    client_host: str
    principal: str
    listener: str
    frame: memoryview
    """The request with its header, as a client sends it."""


def encode_offset(offset: int) -> list[Buffer]:
    """The body of OPEN, RELEASED and DONE."""
    return [_OFFSET.pack(offset)]


def decode_offset(body: memoryview) -> int:
    """The offset of OPEN, RELEASED and DONE."""
    return int(_OFFSET.unpack(body)[0])


def encode_batch(end_offset: int, records: Sequence[bytes], *, opens_at_once: bool) -> list[Buffer]:
    """The body of STATE and RECORDS."""
    return [_BATCH_HEAD.pack(end_offset, opens_at_once, len(records)), *_sized(records)]


def _sized(records: Iterable[bytes]) -> Iterable[bytes]:
    for record in records:
        yield _SIZE.pack(len(record))
        yield record


def decode_batch(body: memoryview) -> Batch:
    """The batch of STATE and RECORDS."""
    end_offset, opens_at_once, count = _BATCH_HEAD.unpack_from(body)
    position = _BATCH_HEAD.size
    records = []
    for _ in range(count):
        (size,) = _SIZE.unpack_from(body, position)
        position += _SIZE.size
        records.append(bytes(body[position : position + size]))
        position += size
    if position != len(body):
        raise WireError(f"a batch of {position} bytes came in a message of {len(body)}")
    return Batch(end_offset, opens_at_once, records)


def encode_heartbeat(*, has_offline: bool) -> list[Buffer]:
    """The body of HEARTBEAT."""
    return [bytes((has_offline,))]


def decode_heartbeat(body: memoryview) -> bool:
    """Whether the broker could not open a partition that it leads."""
    return bool(body[0])


def encode_json(value: object) -> list[Buffer]:
    """The body of the messages that carry JSON."""
    return [json.dumps(value).encode()]


def decode_json(body: memoryview) -> Any:
    """The value of the messages that carry JSON."""
    return json.loads(bytes(body))


def encode_request(
    number: int, client_host: str, principal: str, listener: str, frame: Sequence[Buffer]
) -> list[Buffer]:
    """The body of REQUEST; `frame` has the size of its own in front, as on a socket."""
    client = json.dumps([client_host, principal, listener]).encode()
    return [_REQUEST_HEAD.pack(number, len(client)), client, *frame]


def decode_request(body: memoryview) -> Request:
    """The request of REQUEST."""
    number, size = _REQUEST_HEAD.unpack_from(body)
    start = _REQUEST_HEAD.size
    client_host, principal, listener = json.loads(bytes(body[start : start + size]))
    return Request(number, client_host, principal, listener, body[start + size + _SIZE.size :])


def encode_reply(number: int, frame: Sequence[Buffer]) -> list[Buffer]:
    """The body of REPLY; an empty frame if the controller failed."""
    return [_OFFSET.pack(number), *frame]


def decode_reply(body: memoryview) -> tuple[int, memoryview]:
    """The number of the request, and the reply with its header."""
    return int(_OFFSET.unpack_from(body)[0]), body[_OFFSET.size + _SIZE.size :]
