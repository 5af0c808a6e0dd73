"""What a procedure asks of its driver, and the loop that lets a blocking driver serve it.

A procedure is a generator. It yields `Start` and gets a ticket; it yields `Wait` for tickets and
gets the answers that have come, at least one unless the time ran out; it yields `Pause`. Answers
are `Reply` or `Lost`: a lost request may have been carried out or not, unless `sent` is False. What
can never get better (a wrong password, a broker that is too old) is raised by the driver inside the
procedure.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.client.options import Endpoint
    from fencepost.wire.apis import ApiKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """One request for one endpoint; its version is chosen when the connection is there."""

    endpoint: Endpoint
    api: ApiKey
    request: Any
    timeout_ms: int
    at_most: int | None = None
    """The highest version that may be used, where the protocol makes a difference (TV1 and TV2)."""


class Reply(NamedTuple):
    """The answer to a request, and the version that both were in."""

    form: Any
    version: int


class Lost(NamedTuple):
    """No answer will come. `reason` is for people."""

    reason: str
    sent: bool = True
    """False when the request cannot have reached the broker."""
    closed_by_broker: bool = False
    """True when the broker closed a working connection instead of answering."""


Answer = Reply | Lost


class Start(NamedTuple):
    """Send this; the driver gives back a ticket."""

    send: Send


class Wait(NamedTuple):
    """Give me the answers of these tickets, some of them at least, or none when the time is over."""

    tickets: tuple[int, ...]
    timeout_ms: int


class Pause(NamedTuple):
    """Do nothing for a while."""

    pause_ms: int


Step = Start | Wait | Pause
Steps = Generator[Step, Any, T]


class Driver(Protocol):
    """What a blocking shell offers to procedures."""

    def start(self, send: Send) -> int: ...

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]: ...

    def pause(self, pause_ms: int) -> None: ...


class PendingProcedure(Generic[T]):
    """A procedure on a driver that blocks: begun now and finished later, with other work between.

    Whoever begins one finishes it: a request whose answer nobody waits for may still have its
    effect.
    """

    def __init__(self, procedure: Steps[T], driver: Driver) -> None:
        self._procedure = procedure
        self._driver = driver
        self._step: Step | None = None
        self._result: T | None = None
        self._failure: Exception | None = None
        self._go_on(lambda: procedure.send(None))

    def begin(self) -> None:
        """Goes as far as the first thing to wait for: what is to be sent first is on its way then."""
        while isinstance(self._step, Start):
            self._take_step(self._step)

    def finish(self) -> T:
        """Goes to the end, and raises here what went wrong on the way."""
        while self._step is not None:
            self._take_step(self._step)
        if self._failure is not None:
            raise self._failure
        return cast("T", self._result)

    def _take_step(self, step: Step) -> None:
        try:
            answer = _carry_out(step, self._driver)
        except Exception as problem:  # noqa: BLE001
            # Raised inside the procedure, so that its own clean-up runs and its caller sees where
            # it stood.
            failure = problem
            self._go_on(lambda: self._procedure.throw(failure))
        else:
            self._go_on(lambda: self._procedure.send(answer))

    def _go_on(self, advance: Callable[[], Step]) -> None:
        self._step = None
        try:
            self._step = advance()
        except StopIteration as end:
            self._result = end.value
        except Exception as problem:  # noqa: BLE001 - raised again by `finish`.
            self._failure = problem


def run(procedure: Steps[T], driver: Driver) -> T:
    """Carries a procedure to its end on a driver that blocks."""
    return PendingProcedure(procedure, driver).finish()


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
    """Sends without waiting; the ticket is what to wait for."""
    ticket: int = yield Start(send)
    return ticket


def wait(tickets: Collection[int], timeout_ms: int) -> Steps[Mapping[int, Answer]]:
    """The answers that have come; empty when the time is over."""
    answers: Mapping[int, Answer] = yield Wait(tuple(tickets), timeout_ms)
    return answers


def exchange(send: Send) -> Steps[Answer]:
    """Sends and waits for the answer.

    The driver answers every ticket within the request's own time.
    """
    ticket = yield from start(send)
    while True:
        answers = yield from wait((ticket,), send.timeout_ms)
        if ticket in answers:
            return answers[ticket]


def exchange_all(sends: Collection[Send]) -> Steps[list[Answer]]:
    """Sends all, then waits for all; answers stand in the order of the requests."""
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
