"""A conclusion in sentences, for the terminal and the picture.

The sentences are composed of four parts, each from a table: what happened (by outcome), the longest
wait (by place), the transaction with the cause, and what was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from fencepost.forensics.tap.swimlane.conclusion import TIMEOUT, Conclusion, Outcome
from fencepost.forensics.tap.swimlane.story import Call
from fencepost.forensics.tap.swimlane.waits import Place, Wait
from fencepost.forensics.tap.wording import moment


def sentences(transactional_id: str, conclusions: Sequence[Conclusion]) -> list[str]:
    """Returns the sentences below a swim-lane."""
    return [line for each in conclusions for line in _sentences(transactional_id, each)]


def duration(time_us: int) -> str:
    """A duration in seconds or milliseconds."""
    return f"{time_us / 1_000_000:.1f} s" if time_us >= 1_000_000 else f"{time_us / 1000:.1f} ms"


def _sentences(name: str, found: Conclusion) -> Iterator[str]:
    yield HEADLINES[found.outcome](name, found)
    if found.outcome is Outcome.ENDED:
        return
    if found.wait is not None:
        said = WAITS[found.wait.place](found.wait)
        yield f"Longest wait: {duration(found.wait.spent_us)} {found.wait.place.value}: {said}."
    yield f"{_transaction(found)}; {_cause(found)} (see `fencepost txn why {name}`)."
    yield from _in_flight(found)


# What happened.


def _fenced(name: str, found: Conclusion) -> str:
    assert found.call is not None
    call = found.call
    took = duration(found.at_us - call.time_us)
    return (
        f"{call.api} got {found.error} from {call.broker} at {moment(found.at_us)} UTC, {took} "
        "after it was sent."
    )


def _waiting(name: str, found: Conclusion) -> str:
    assert found.call is not None
    waited = duration(found.at_us - found.call.time_us)
    return (
        f"{name} was not fenced in this trace. When it ends, at {moment(found.at_us)} UTC, "
        f"{_whereto(found.call)} has been in flight for {waited}, since "
        f"{moment(found.call.time_us)}."
    )


def _lost(name: str, found: Conclusion) -> str:
    assert found.call is not None
    assert found.call.lost_us is not None
    waited = duration(found.call.lost_us - found.call.time_us)
    reason = f" ({found.call.lost_reason})" if found.call.lost_reason else ""
    return (
        f"{name} was not fenced in this trace. {_whereto(found.call)}, sent at "
        f"{moment(found.call.time_us)} UTC, lost its connection after {waited} without a reply"
        f"{reason}: whether it took effect is not in the trace."
    )


def _open(name: str, found: Conclusion) -> str:
    return (
        f"{name} was not fenced in this trace, which ends at {moment(found.at_us)} UTC with its "
        "transaction open and nothing in flight."
    )


def _ended(name: str, found: Conclusion) -> str:
    return f"{name} was not fenced in this trace."


HEADLINES: Final[Mapping[Outcome, Callable[[str, Conclusion], str]]] = {
    Outcome.FENCED: _fenced,
    Outcome.WAITING: _waiting,
    Outcome.LOST: _lost,
    Outcome.OPEN: _open,
    Outcome.ENDED: _ended,
}


# The longest wait.


def _in_call(wait: Wait) -> str:
    first = wait.attempts[0]
    said = f"{_whereto(first)}, since {moment(wait.since_us)} ({first.words})"
    if len(wait.attempts) == 1:
        return said
    return f"{said}, in {len(wait.attempts)} attempts, of which the first {_failure(first)}"


def _in_client(wait: Wait) -> str:
    first = wait.attempts[0]
    failed = [call for call in wait.attempts[:-1] if not call.is_answered]
    if len(wait.attempts) == 1:
        return f"no request after {_whereto(first)} {_failure(first)} at {moment(wait.since_us)}"
    tried = f"{len(wait.attempts)} attempts of {_whereto(first)} since {moment(first.time_us)}"
    return f"between {tried}, of which the last failed one {_failure(failed[-1])}"


def _failure(call: Call) -> str:
    if call.errors:
        return f"got {' '.join(call.errors)}"
    reason = f" ({call.lost_reason})" if call.lost_reason else ""
    return f"lost its connection{reason}" if call.lost_us is not None else "got no reply"


def _before_call(wait: Wait) -> str:
    since = "" if wait.after is None else f" after the reply to {wait.after.api}"
    until = "to the end" if wait.until is None else f"before {_whereto(wait.until)}"
    return f"no request{since} at {moment(wait.since_us)}, {until}"


WAITS: Final[Mapping[Place, Callable[[Wait], str]]] = {
    Place.IN_CALL: _in_call,
    Place.IN_CLIENT: _in_client,
    Place.BEFORE_CALL: _before_call,
}


# The transaction, and what ended it.


def _transaction(found: Conclusion) -> str:
    transaction = found.transaction
    if transaction is None:
        return "No request of its transaction is in the trace"
    timeout = "its timeout is not in the trace"
    if transaction.timeout_ms is not None:
        timeout = f"its timeout is {transaction.timeout_ms / 1000:g} s"
    coordinator = f"its coordinator is {transaction.coordinator}"
    if transaction.coordinator is None:
        coordinator = "its coordinator is not in the trace"
    age = duration(found.at_us - transaction.since_us)
    verb = "was" if found.outcome is Outcome.FENCED else "is"
    since = f"What opened its transaction is not in the trace; it {verb} at most {age} old"
    if transaction.opened_by is not None:
        began = f"{transaction.opened_by.api} at {moment(transaction.since_us)}"
        since = f"Its transaction {verb} {age} old, since {began}"
    return f"{since}; {timeout}; {coordinator}"


def _cause(found: Conclusion) -> str:
    if found.by.value is None:
        if found.outcome is Outcome.FENCED:
            return f"what fenced it is not in the trace: {found.by.source}"
        return "nothing in the trace has ended it"
    sign = "~" if found.by.certainty.value == "estimated" else ""
    return f"{sign}{'fenced' if found.outcome is Outcome.FENCED else 'ended'} by {found.by.value}"


def _in_flight(found: Conclusion) -> Iterator[str]:
    if found.decided_us is not None:
        calls = "; ".join(_waiting_call(call, found.decided_us) for call in found.in_flight_then)
        when = "its timeout passed" if found.by.value == TIMEOUT else "the newer instance took over"
        yield f"In flight when {when}, at {moment(found.decided_us)}: {calls or 'nothing'}."
    if found.outcome is Outcome.FENCED:
        calls = "; ".join(_waiting_call(call, found.at_us) for call in found.in_flight)
        yield f"In flight when the error came: {calls or 'nothing else'}."
    elif found.in_flight:
        calls = "; ".join(_waiting_call(call, found.at_us) for call in found.in_flight)
        yield f"Also in flight: {calls}."


def _waiting_call(call: Call, at_us: int) -> str:
    waited = duration(at_us - call.time_us)
    return f"{_whereto(call)} for {waited}, since {moment(call.time_us)} ({call.words})"


def _whereto(call: Call) -> str:
    return f"{call.api} to {call.broker}"
