"""Where the time of a producer went: in a call, in the client, or before a call.

A producer that hangs does it in one of three places, and a trace can tell them apart:

    in the call       a request was sent, and its reply came late or not at all
    in the client     a request failed, and the client took its time before it tried again
    before the call   nothing had failed, and no request was sent: the application asked for none

Attempts of one request belong together: a request that follows a failed one of the same API is its
retry, and so is a FindCoordinator in between. So a client that tries every 100 ms for a minute has
one wait of a minute, and not six hundred short ones. This is a pure function over calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from fencepost.forensics.tap.swimlane.story import Call

_LOOKUP: Final = "FindCoordinator"


class Place(Enum):
    """Where a producer waited."""

    IN_CALL = "in the call"
    IN_CLIENT = "in the client"
    BEFORE_CALL = "before the call"


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of time in one place, of all attempts together."""

    place: Place
    since_us: int
    spent_us: int
    attempts: Sequence[Call] = ()
    """The requests that it was about; none before a call."""
    after: Call | None = None
    """Before a call: the last request that was answered before it."""
    until: Call | None = None
    """Before a call: the request that ended it; None if the time ended first."""


@dataclass(slots=True)
class _Operation:
    """A request and its retries."""

    attempts: list[Call] = field(default_factory=list)
    in_call_us: int = 0
    in_client_us: int = 0
    failed_us: int = 0
    """When the first attempt failed."""


def find_waits(calls: Sequence[Call], start_us: int, end_us: int) -> list[Wait]:
    """Returns the waits of one producer between two moments; its calls are in the order of time."""
    mine = [call for call in calls if call.gets_reply and call.time_us < end_us]
    operations = _operations(mine)
    waits: list[Wait] = []
    busy_until_us, last = start_us, None
    for call, operation in zip(mine, operations, strict=True):
        if call.time_us > busy_until_us:
            gap_us = call.time_us - busy_until_us
            retried = _retried(call, operation, mine, operations)
            if retried is not None:
                _spend_in_client(retried, busy_until_us, gap_us)
            else:
                waits.append(Wait(Place.BEFORE_CALL, busy_until_us, gap_us, (), last, call))
        over_us = min(_over_us(call, operation, end_us), end_us)
        operation.in_call_us += max(0, over_us - max(call.time_us, start_us))
        if over_us >= busy_until_us:
            busy_until_us, last = over_us, call
    if busy_until_us < end_us:
        gap_us = end_us - busy_until_us
        if last is not None and not last.is_answered:
            _spend_in_client(operations[mine.index(last)], busy_until_us, gap_us)
        else:
            waits.append(Wait(Place.BEFORE_CALL, busy_until_us, gap_us, (), last))
    return [*waits, *_waits_of(operations, start_us)]


def longest(waits: Sequence[Wait]) -> Wait | None:
    """Returns the longest wait."""
    order = list(Place)
    return max(waits, key=lambda each: (each.spent_us, -order.index(each.place)), default=None)


def _operations(calls: Sequence[Call]) -> list[_Operation]:
    """Returns the operation of each call."""
    latest: dict[tuple[str, str], _Operation] = {}
    found = []
    for call in calls:
        before = [latest.get((call.api, subject)) for subject in call.subjects]
        operation = next(
            (each for each in before if each is not None and _failed(each.attempts[-1], call)),
            None,
        )
        if operation is None:
            operation = _Operation()
        latest.update(dict.fromkeys(((call.api, each) for each in call.subjects), operation))
        operation.attempts.append(call)
        found.append(operation)
    return found


def _failed(attempt: Call, following: Call) -> bool:
    """Whether a request was without success when another one of its kind was sent.

    A client that has given up waiting tries again on another connection, and a broker's trace does
    not tell that the first one was closed.
    """
    if attempt.over_us is None:
        return following.repeats(attempt)
    return not attempt.is_answered and attempt.over_us <= following.time_us


def _over_us(call: Call, operation: _Operation, end_us: int) -> int:
    if call.over_us is not None:
        return call.over_us
    later = operation.attempts[operation.attempts.index(call) + 1 :]
    return later[0].time_us if later else end_us


def _retried(
    call: Call, operation: _Operation, calls: Sequence[Call], operations: Sequence[_Operation]
) -> _Operation | None:
    """Returns what the client tried again after a pause, if that is what it did."""
    if operation.attempts[0] is not call:
        return operation
    if call.api != _LOOKUP:
        return None
    before = [number for number, each in enumerate(calls) if each.time_us < call.time_us]
    if not before or calls[before[-1]].is_answered:
        return None
    return operations[before[-1]]


def _spend_in_client(operation: _Operation, since_us: int, gap_us: int) -> None:
    operation.failed_us = operation.failed_us or since_us
    operation.in_client_us += gap_us


def _waits_of(operations: Sequence[_Operation], start_us: int) -> Iterator[Wait]:
    for operation in {id(each): each for each in operations}.values():
        attempts = operation.attempts
        if operation.in_call_us:
            since_us = max(attempts[0].time_us, start_us)
            yield Wait(Place.IN_CALL, since_us, operation.in_call_us, attempts)
        if operation.in_client_us:
            yield Wait(Place.IN_CLIENT, operation.failed_us, operation.in_client_us, attempts)
