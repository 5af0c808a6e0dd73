"""What a trace tells about the end of a producer: one place that concludes.

Theory of operation. `conclude` is a pure function over a story. It takes three steps:

    outcome   what the trace shows at its end: the first row of OUTCOMES that finds something
    facts     the transaction (age, timeout, coordinator), the longest wait (`waits.py`), and what
              was in flight
    cause     the first row of CAUSES that fits these facts

    outcome           the moment that it is about
    fenced            the first reply with a fencing error. The producer learns it then; what fenced
                      it is earlier
    waiting           the end of the trace: a request has no reply yet
    connection lost   the end of the trace: the connection of a request closed without a reply, and
                      the client has not sent it again
    open              the end of the trace: a transaction is open, and nothing is in flight
    ended             none of these

A transaction times out at the coordinator, whatever its producer does: waits in a call
count as well as waits before one. So the age of the transaction decides, not the longest pause.
Ages are of the clock that wrote the trace, and the coordinator looks for timeouts from time to time
only (every 10 s by default), so a timeout is a likely cause and never a certain one. A newer
instance is certain if it came through the same tap. Anything else the trace cannot tell: `fencepost
txn why` can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from fencepost.forensics.figures import Figure, estimated, exact, unknown
from fencepost.forensics.tap.swimlane.story import COORDINATOR_APIS, Call, Story
from fencepost.forensics.tap.swimlane.waits import Wait, find_waits, longest

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
_OPENING: Final = frozenset({"AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit"})
"""Requests that open a transaction: the first two with TV1, the others with TV2."""
_BOUNDARIES: Final = frozenset({"InitProducerId", "EndTxn"})
"""Requests after which no transaction is open."""


class Outcome(Enum):
    """What a trace shows at its end."""

    FENCED = "fenced"
    WAITING = "waiting"
    LOST = "connection lost"
    OPEN = "open"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Transaction:
    """The transaction of a producer at a moment, as far as the trace shows it."""

    since_us: int
    """When it was opened; if that is not in the trace, when the last one ended or the producer
    began: it is younger than that."""
    opened_by: Call | None
    """The request that opened it; None if it is not in the trace."""
    timeout_ms: int | None
    coordinator: str | None

    @property
    def times_out_us(self) -> int | None:
        """When its timeout passes; None if the trace does not tell."""
        if self.opened_by is None or self.timeout_ms is None:
            return None
        return self.since_us + self.timeout_ms * 1000


class Fact(NamedTuple):
    """What the causes are judged by."""

    outcome: Outcome
    newer: Call | None
    """The InitProducerId of a newer instance that preceded the moment."""
    is_overdue: bool | None
    """Whether the transaction was older than its timeout; None if that is not known."""
    may_be_overdue: bool
    """Whether it was silent for longer than its timeout, if its beginning is not in the trace."""


class CauseRule(NamedTuple):
    """One row of the table of causes."""

    fits: Callable[[Fact], bool]
    find: Callable[[Fact], Figure]


def _newer_instance(fact: Fact) -> Figure:
    assert fact.newer is not None
    request = fact.newer.request
    who = f"client id {request.get('client_id')!r} at {request.get('client')}"
    return exact(f"a newer instance, {who}", "InitProducerId in the trace")


TIMEOUT: Final = "its transaction timeout"

CAUSES: Final[Sequence[CauseRule]] = (
    CauseRule(lambda f: f.outcome is Outcome.ENDED, lambda f: unknown("nothing ended it")),
    CauseRule(lambda f: f.newer is not None, _newer_instance),
    CauseRule(
        lambda f: f.is_overdue is True,
        lambda f: estimated(TIMEOUT, "it was open for longer than that", "the trace"),
    ),
    CauseRule(
        lambda f: f.may_be_overdue,
        lambda f: estimated(TIMEOUT, "it was silent for longer than that", "the trace"),
    ),
    CauseRule(
        lambda f: f.is_overdue is False,
        lambda f: unknown("its timeout had not passed, and the trace shows no newer instance"),
    ),
    CauseRule(
        lambda f: True,
        lambda f: unknown("the trace shows neither its timeout nor a newer instance"),
    ),
)
"""What ended the transaction, or will: the first row that fits decides."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a producer, and what led to it."""

    outcome: Outcome
    at_us: int
    """The moment that it is about."""
    instance: int
    call: Call | None
    """The request that got the error, waits, or was lost."""
    error: str | None
    transaction: Transaction | None
    wait: Wait | None
    """The longest wait since the transaction was opened."""
    by: Figure
    """What fenced it or ended its transaction, in words."""
    decided_us: int | None
    """When that happened, if the trace tells: the timeout passed, or a newer instance took over."""
    in_flight_then: Sequence[Call]
    """The producer's requests without a reply at `decided_us`."""
    in_flight: Sequence[Call]
    """The id's other requests without a reply at `at_us`."""

    @property
    def age_us(self) -> int | None:
        """How old the transaction was; at most, if its beginning is not in the trace."""
        return None if self.transaction is None else self.at_us - self.transaction.since_us

    def as_row(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        transaction, wait, call = self.transaction, self.wait, self.call
        return {
            "outcome": self.outcome.value,
            "at_us": self.at_us,
            "instance": self.instance,
            "error": self.error,
            "request": None if call is None else _call_row(call, self.at_us),
            "lost_at_us": None if call is None else call.lost_us,
            "lost_reason": None if call is None else call.lost_reason or None,
            "transaction": None
            if transaction is None
            else {
                "opened_at_us": transaction.since_us if transaction.opened_by else None,
                "opened_by": transaction.opened_by.api if transaction.opened_by else None,
                "age_us": self.age_us if transaction.opened_by else None,
                "age_at_most_us": self.age_us,
                "timeout_ms": transaction.timeout_ms,
                "coordinator": transaction.coordinator,
            },
            "longest_wait": None
            if wait is None
            else {
                "place": wait.place.value,
                "since_us": wait.since_us,
                "spent_us": wait.spent_us,
                "api": _subject(wait),
                "attempts": len(wait.attempts),
            },
            "by": self.by,
            "decided_at_us": self.decided_us,
            "in_flight_then": [_call_row(each, self.decided_us) for each in self.in_flight_then],
            "in_flight": [_call_row(each, self.at_us) for each in self.in_flight],
        }


def conclude(story: Story) -> list[Conclusion]:
    """Concludes from a story: its first fence, or what its producer is doing at the end.

    After a fence there is a second conclusion if another producer of the id hangs.
    """
    shown = story.shown_calls
    fence = _find_fence(shown)
    found = [] if fence is None else [_conclude(story, *fence)]
    fenced = None if fence is None or fence.call is None else fence.call.instance
    others = [call for call in shown if call.instance != fenced]
    last = next(end for find in OUTCOMES if (end := find(story, others)) is not None)
    if fence is None or last.outcome in (Outcome.WAITING, Outcome.LOST):
        found.append(_conclude(story, *last))
    return found


# The outcome.


class End(NamedTuple):
    """An outcome, when it was, and the request it is about."""

    outcome: Outcome
    at_us: int
    call: Call | None
    error: str | None = None


def _find_fence(calls: Sequence[Call]) -> End | None:
    ended = [
        End(Outcome.FENCED, call.end_us, call, error)
        for call in calls
        if call.end_us is not None
        for error in call.errors
        if error in FENCING_ERRORS or (error == _ENDED_BY_OTHERS and call.instance)
    ]
    return min(ended, key=lambda end: end.at_us, default=None)


def _find_waiting(story: Story, calls: Sequence[Call]) -> End | None:
    waits = [
        call
        for call in calls
        if call.gets_reply and _waits_at(call, story.end_us) and not _was_repeated(call, calls)
    ]
    return End(Outcome.WAITING, story.end_us, waits[0]) if waits else None


def _find_lost(story: Story, calls: Sequence[Call]) -> End | None:
    lost = [
        call
        for call in calls
        if call.lost_us is not None and call.gets_reply and not _was_repeated(call, calls)
    ]
    return End(Outcome.LOST, story.end_us, lost[-1]) if lost else None


def _find_open(story: Story, calls: Sequence[Call]) -> End | None:
    if not calls:
        return None
    transaction = follow(story.calls, calls[-1].instance, story.end_us)
    if transaction is None or transaction.opened_by is None:
        return None
    return End(Outcome.OPEN, story.end_us, None)


def _find_ended(story: Story, calls: Sequence[Call]) -> End | None:
    return End(Outcome.ENDED, story.end_us, None)


OUTCOMES: Final[Sequence[Callable[[Story, Sequence[Call]], End | None]]] = (
    _find_waiting,
    _find_lost,
    _find_open,
    _find_ended,
)
"""What an unfenced producer is doing when the trace ends: the first that finds something."""


def _waits_at(call: Call, time_us: int) -> bool:
    return call.time_us <= time_us and (call.over_us is None or call.over_us > time_us)


def _was_repeated(call: Call, calls: Sequence[Call]) -> bool:
    """Whether the client no longer waits for it: it has tried again since."""
    return any(other.repeats(call) for other in calls)


# The facts.


def _conclude(
    story: Story, outcome: Outcome, at_us: int, call: Call | None, error: str | None
) -> Conclusion:
    instance = call.instance if call is not None else _last_instance(story)
    mine = [each for each in story.calls if each.instance == instance]
    transaction = follow(mine, instance, at_us)
    wait = None
    if transaction is not None and outcome is not Outcome.ENDED:
        wait = longest(find_waits(_since(mine, transaction), transaction.since_us, at_us))
    newer = _newer(story, instance, mine, at_us)
    fact = Fact(
        outcome,
        newer,
        _is_overdue(transaction, at_us),
        _may_be_overdue(transaction, wait, call),
    )
    by = next(rule.find(fact) for rule in CAUSES if rule.fits(fact))
    decided_us = _decided_us(by, newer, transaction)
    return Conclusion(
        outcome,
        at_us,
        instance,
        call,
        error,
        transaction,
        wait,
        by,
        decided_us,
        [] if decided_us is None else [each for each in mine if _waits_at(each, decided_us)],
        [each for each in story.calls if each is not call and _waits_at(each, at_us)],
    )


def follow(calls: Sequence[Call], instance: int, at_us: int) -> Transaction | None:
    """Follows the transactions of a producer up to a moment; None if the trace has none of it."""
    since_us: int | None = None
    opened_by: Call | None = None
    timeout_ms: int | None = None
    coordinator: str | None = None
    for call in calls:
        if call.instance != instance or call.time_us > at_us:
            continue
        since_us = call.time_us if since_us is None else since_us
        if call.api in COORDINATOR_APIS:
            coordinator = call.broker
        timeout_ms = _requested_timeout_ms(call) or timeout_ms
        if call.api in _BOUNDARIES and _was_answered(call, at_us):
            since_us, opened_by = call.end_us, None
        elif opened_by is None and _opens(call):
            since_us, opened_by = call.time_us, call
    if since_us is None:
        return None
    return Transaction(since_us, opened_by, timeout_ms, coordinator)


def _requested_timeout_ms(call: Call) -> int | None:
    found = call.body.get("transaction_timeout_ms") if call.api == "InitProducerId" else None
    return found if isinstance(found, int) else None


def _was_answered(call: Call, at_us: int) -> bool:
    return call.is_answered and (call.end_us or 0) <= at_us


def _opens(call: Call) -> bool:
    """Whether it opens a transaction, if none is open."""
    if call.api not in _OPENING or call.errors:
        return False
    return call.api != "Produce" or bool(call.body.get("transactional_id"))


def _since(calls: Sequence[Call], transaction: Transaction) -> list[Call]:
    """The calls of a transaction, with those that were in flight when it was opened."""
    return [call for call in calls if call.over_us is None or call.over_us >= transaction.since_us]


def _last_instance(story: Story) -> int:
    calls = story.shown_calls or story.calls
    return calls[-1].instance if calls else 0


def _newer(story: Story, instance: int, mine: Sequence[Call], at_us: int) -> Call | None:
    """The last InitProducerId of another instance since this one began."""
    found = [
        call
        for call in story.calls
        if call.api == "InitProducerId"
        and call.instance != instance
        and _was_answered(call, at_us)
        and (not mine or call.time_us >= mine[0].time_us)
    ]
    return found[-1] if found else None


def _is_overdue(transaction: Transaction | None, at_us: int) -> bool | None:
    if transaction is None or transaction.timeout_ms is None:
        return None
    is_older = at_us - transaction.since_us >= transaction.timeout_ms * 1000
    if transaction.opened_by is None:
        # It is younger than that, if it was open at all.
        return None if is_older else False
    return is_older


def _may_be_overdue(transaction: Transaction | None, wait: Wait | None, call: Call | None) -> bool:
    if transaction is None or transaction.timeout_ms is None or wait is None:
        return False
    if transaction.opened_by is not None or call is None or call.api in _OPENING:
        # A request that would open a transaction comes when none is open.
        return False
    return wait.spent_us >= transaction.timeout_ms * 1000


def _decided_us(by: Figure, newer: Call | None, transaction: Transaction | None) -> int | None:
    if newer is not None and by.value is not None:
        return newer.end_us
    if by.value == TIMEOUT and transaction is not None:
        return transaction.times_out_us
    return None


# Rows.


def _subject(wait: Wait) -> str | None:
    if wait.attempts:
        return wait.attempts[0].api
    return None if wait.until is None else wait.until.api


def _call_row(call: Call, at_us: int | None) -> dict[str, Any]:
    return {
        "number": call.number,
        "api": call.api,
        "at_us": call.time_us,
        "for_us": None if at_us is None else at_us - call.time_us,
        "broker": call.broker,
        "what": call.words,
    }
