"""What was going on when a producer was fenced.

The first reply with a fencing error is the moment at which the producer learnt it; the cause is
earlier. The trace shows a newer instance if it came through the same tap, and a silence that was
longer than the transaction timeout. Anything else it cannot tell: `fencepost txn why` can.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from fencepost.forensics.figures import Figure, estimated, exact, unknown
from fencepost.forensics.tap.swimlane.story import Call, Story

FENCING_ERRORS: Final = frozenset(
    {
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "UNKNOWN_PRODUCER_ID",
    }
)
_ENDED_BY_OTHERS: Final = "INVALID_TXN_STATE"
"""What a producer of TV2 gets after the coordinator has ended its transaction."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The first fencing error of an id, and what preceded it."""

    call: Call
    error: str
    in_flight: list[Call]
    """The id's other requests that had no reply at that moment."""
    silence_us: int | None
    """The longest pause between two requests of the same producer, since it began or ended a
    transaction; None if the trace has none before."""
    timeout_ms: int | None
    by: Figure
    """What fenced it, in words."""

    def as_row(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {
            "error": self.error,
            "api": self.call.api,
            "at_us": self.call.end_us,
            "broker": self.call.broker,
            "instance": self.call.instance,
            "silence_us": self.silence_us,
            "transaction_timeout_ms": self.timeout_ms,
            "by": self.by,
            "in_flight": [
                {"api": call.api, "at_us": call.time_us, "broker": call.broker, "what": call.words}
                for call in self.in_flight
            ],
        }


def find_fence(story: Story) -> Fence | None:
    """Finds the first fencing error of a story."""
    ended = [
        (call.end_us, call, error)
        for call in story.shown_calls
        if call.end_us is not None
        for error in call.errors
        if error in FENCING_ERRORS or (error == _ENDED_BY_OTHERS and call.instance)
    ]
    if not ended:
        return None
    at_us, call, error = min(ended, key=lambda each: each[0])
    before = [
        other
        for other in story.calls
        if other.instance == call.instance and other.time_us < call.time_us
    ]
    silence_us = _longest_silence([*before, call])
    timeout_ms = _timeout(before)
    return Fence(
        call,
        error,
        [
            other
            for other in story.calls
            if other is not call
            and other.time_us <= at_us
            and (other.end_us is None or other.end_us > at_us)
        ],
        silence_us,
        timeout_ms,
        _cause(story, call, before, silence_us, timeout_ms),
    )


def _longest_silence(calls: list[Call]) -> int | None:
    """After a silence a producer may send several requests at once, and all of them fail."""
    ends = [
        number
        for number, call in enumerate(calls[:-1])
        if call.api in ("InitProducerId", "EndTxn") and call.end_us is not None and not call.errors
    ]
    recent = calls[ends[-1] if ends else 0 :]
    pauses = [after.time_us - before.time_us for before, after in pairwise(recent)]
    return max(pauses, default=None)


def _timeout(before: list[Call]) -> int | None:
    for call in reversed(before):
        if call.api == "InitProducerId":
            timeout = call.body.get("transaction_timeout_ms")
            return timeout if isinstance(timeout, int) else None
    return None


def _cause(
    story: Story,
    call: Call,
    before: list[Call],
    silence_us: int | None,
    timeout_ms: int | None,
) -> Figure:
    newer = [
        other
        for other in story.calls
        if other.api == "InitProducerId"
        and other.instance != call.instance
        and not other.errors
        and other.end_us is not None
        and other.end_us <= (call.end_us or 0)
        and (not before or other.time_us >= before[0].time_us)
    ]
    if newer:
        found = newer[-1]
        who = f"client id {found.request.get('client_id')!r} at {found.request.get('client')}"
        return exact(f"a newer instance, {who}", "InitProducerId in the trace")
    if silence_us is not None and timeout_ms is not None and silence_us >= timeout_ms * 1000:
        return estimated(
            "its transaction timeout", "it was silent for longer than that", "the trace"
        )
    return unknown("the trace does not show what fenced it")
