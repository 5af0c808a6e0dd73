"""The steps of a procedure, and the loop that runs them on a blocking driver.

A procedure is a generator. It yields `Start` and receives a ticket; it yields `Wait` for tickets
and receives the answers that have arrived, at least one unless the wait timed out; it yields
`Pause`. Answers are `Reply` or `Lost`: a lost request may or may not have taken effect, unless
`sent` is False. Errors that no retry can fix (a wrong password, a broker that is too old) are
raised by the driver inside the procedure.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from fencepost.client.options import Endpoint
from fencepost.wire.apis import ApiKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """A request to an endpoint. The connection chooses its version."""

    endpoint: Endpoint
    api: ApiKey
    request: Any
    timeout_ms: int
    at_most: int | None = None
    """The highest version to use, where TV1 and TV2 differ."""
    setup_timeout_ms: int | None = None
    """How long a new connection may take to connect, greet and log in. None leaves it to
    socket.connection.setup.timeout.ms; less where another broker could be asked instead."""


class Reply(NamedTuple):
    """The reply to a request, and the version of both."""

    form: Any
    version: int


class Lost(NamedTuple):
    """No reply will arrive. `reason` is for people."""

    reason: str
    sent: bool = True
    """False when the request cannot have reached the broker."""
    closed_by_broker: bool = False
    """True when the broker closed a working connection instead of answering."""
    connected: bool = True
    """False when no connection was established: the port is closed, or the host is away."""


Answer = Reply | Lost


class Start(NamedTuple):
    """Send this request; the driver returns a ticket."""

    send: Send


class Wait(NamedTuple):
    """Wait for at least one answer to these tickets; none after the timeout."""

    tickets: tuple[int, ...]
    timeout_ms: int


class Pause(NamedTuple):
    """Wait without doing anything."""

    pause_ms: int


Step = Start | Wait | Pause
Steps = Generator[Step, Any, T]


class Driver(Protocol):
    """The steps that a blocking driver carries out."""

    def start(self, send: Send) -> int: ...

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]: ...

    def pause(self, pause_ms: int) -> None: ...


def run(procedure: Steps[T], driver: Driver) -> T:
    """Runs a procedure to its end on a blocking driver."""
    try:
        step = procedure.send(None)
        while True:
            try:
                answer = _carry_out(step, driver)
            except Exception as problem:  # noqa: BLE001
                # Raised inside the procedure, so that its clean-up runs and the traceback shows
                # where.
                step = procedure.throw(problem)
            else:
                step = procedure.send(answer)
    except StopIteration as end:
        return cast("T", end.value)


def _carry_out(step: Step, driver: Driver) -> object:
    match step:
        case Start(send):
            return driver.start(send)
        case Wait(tickets, timeout_ms):
            return driver.wait(tickets, timeout_ms)
        case Pause(pause_ms):
            driver.pause(pause_ms)
            return None


def start(send: Send) -> Steps[int]:
    """Sends without waiting. Returns the ticket to wait for."""
    ticket: int = yield Start(send)
    return ticket


def wait(tickets: Collection[int], timeout_ms: int) -> Steps[Mapping[int, Answer]]:
    """Returns the answers that have arrived; empty after the timeout."""
    answers: Mapping[int, Answer] = yield Wait(tuple(tickets), timeout_ms)
    return answers


def exchange(send: Send) -> Steps[Answer]:
    """Sends and waits for the answer.

    The driver answers every ticket within the request's timeout.
    """
    ticket = yield from start(send)
    while True:
        answers = yield from wait((ticket,), send.timeout_ms)
        if ticket in answers:
            return answers[ticket]


def exchange_all(sends: Collection[Send]) -> Steps[list[Answer]]:
    """Sends all, then waits for all. Returns the answers in the order of the requests."""
    tickets: list[int] = []
    for send in sends:
        ticket = yield from start(send)
        tickets.append(ticket)
    got: dict[int, Answer] = {}
    longest_ms = max((send.timeout_ms for send in sends), default=0)
    while missing := [ticket for ticket in tickets if ticket not in got]:
        answers = yield from wait(missing, longest_ms)
        got.update(answers)
    return [got[ticket] for ticket in tickets]
