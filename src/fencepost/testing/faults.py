"""Faults on demand, in plain words.

    broker.faults.on("EndTxn").lose_reply()                        # the next EndTxn, once
    broker.faults.on("Produce", topic="refunds").fail("NOT_LEADER_OR_FOLLOWER").times(3)
    broker.faults.on("Fetch", client_id="report").delay(0.5).always()
    broker.faults.at("commit.prepare-appended").crash(restart=True)

APIs and errors have Kafka's names, which are checked at once. Without a trigger a fault applies
once. If several faults are due at one request, the first one applies, and the others remain due for
the next. A fault survives `restart()` until it has fired.

A fault that never fired is a mistake of the test more often than not, so the fixture
`fencepost_broker` fails a test that left one behind, unless it is `optional()`.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from fencepost.base.arguments import checked
from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.broker.faults import faults as mechanism
from fencepost.broker.handlers import HANDLERS, max_served_version
from fencepost.testing.api_errors import refuse_foreign
from fencepost.testing.crashing import Crash
from fencepost.testing.names import no_such
from fencepost.wire.apis import API, ApiKey

WAIT_SECONDS: Final = 10.0
"""How long `wait` waits if it is not told otherwise."""

LARGEST: Final = 2**31 - 1
"""Kafka's int32, in which replies carry times."""

FOR_TESTS: Final = frozenset(
    {"at", "check", "clear", "fired", "held", "on", "pending", "release", "reset", "steps"}
)
"""The names of `Faults` that tests use."""

Function = Callable[["Request"], object]


class Carrier(Protocol):
    """What carries faults out: the node of a broker, or a proxy in front of one."""

    @property
    def faults(self) -> mechanism.Faults:
        """The armed faults."""


class UnfiredFault(AssertionError):  # noqa: N818 - it reads as the sentence that it is
    """A fault never fired, so the test has not tried what it says."""


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that was carried out on one request."""

    api: str
    """The request by Kafka's name, or the step of a commit."""
    fault: str
    """What happened, such as `lose_reply()`."""
    version: int
    """The version of the request; -1 for a step."""
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a function of `do` sees it."""

    api: str
    version: int
    client_id: str | None
    body: Any
    """The fields of the request's newest version, with Kafka's names in snake_case."""

    def reply(self, **fields: Any) -> Any:
        """An answer, to return from the function; fields that are left out have their defaults."""
        return _api(self.api)[1].response(**fields)


@checked
class Fault:
    """One fault; its methods say how often it applies."""

    def __init__(self, faults: Faults, made: mechanism.Fault, where: str, words: str) -> None:
        self._faults = faults
        self._made = made
        self._where = where
        self._words = words
        self._is_optional = False
        self._held: list[mechanism.Resume] = []
        self._carried_out = 0
        """Counted when its effect is there: a request is held, the broker is cut off."""
        if made.action == mechanism.HOLD:
            made.hold = self._hold
        elif made.action == mechanism.CRASH:
            self._cut_off = made.crash
            made.crash = self._crash
        made.on_fired = self._note

    def __repr__(self) -> str:
        return f"<{self}: {self.fired} times>"

    def __str__(self) -> str:
        return f"{self._where}: {self._words}"

    # -- how often

    def once(self) -> Self:
        """Applies to the next request that matches; so does a fault without a trigger."""
        return self._trigger(1, 1)

    def times(self, count: int) -> Self:
        """Applies to the next `count` requests that match."""
        _require(count >= 1, f"times({count}) would never apply: use 1 or more.")
        return self._trigger(1, count)

    def on_call(self, number: int) -> Self:
        """Applies to the request with this number among those that match; the first one is 1."""
        _require(number >= 1, f"on_call({number}) would never apply: the first request is 1.")
        return self._trigger(number, 1)

    def always(self) -> Self:
        """Applies to every request that matches, until `remove()` or `faults.clear()`."""
        return self._trigger(1, None)

    def with_probability(self, probability: float, *, seed: int) -> Self:
        """Applies to each matching request with this probability; a seed repeats the choices."""
        _require(0 < probability <= 1, f"A probability of {probability} is not in (0, 1].")
        self._made.random = random.Random(seed)
        return self._trigger(1, None, probability)

    def _trigger(self, first: int, count: int | None, probability: float = 1.0) -> Self:
        """The last trigger is the one that counts."""
        self._made.first, self._made.count = first, count
        self._made.probability = probability
        self._faults.arm_again(self)
        return self

    def optional(self) -> Self:
        """Whether it fires or not, the test passes."""
        self._is_optional = True
        return self

    # -- what became of it

    @property
    def fired(self) -> int:
        """How often it has fired."""
        self._faults.refresh()
        return self._made.fired

    @property
    def is_missing(self) -> bool:
        """Whether it should have fired and never did."""
        return not self._is_optional and self.fired == 0

    def why(self) -> str:
        """Why it has not fired, for the message of a test that fails."""
        made = self._made
        if made.calls:
            came = "1 request" if made.calls == 1 else f"{made.calls} requests"
            if made.calls < made.first:
                return f"{came} matched, and it waits for number {made.first}"
            if made.fired:
                times = "once" if made.fired == 1 else f"{made.fired} times"
                return f"{came} matched, and it has fired {times}"
            if made.probability < 1:
                return f"{came} matched, and a probability of {made.probability:g} chose none"
            return f"{came} matched, and another fault took each"
        if made.seen:
            return f"{made.seen} came, and none of them matched"
        return "none came: does the client send it, in this test, to this broker?"

    def wait(self, timeout_seconds: float = WAIT_SECONDS, *, times: int = 1) -> None:
        """Returns when it has fired; UnfiredFault if that takes too long.

        After `hold()` the request is held when this returns, and after `crash()` the broker is
        down.
        """
        if not self._faults.wait_until(lambda: self._carried_out >= times, timeout_seconds):
            raise UnfiredFault(f"{self} has not fired in {timeout_seconds:g} s: {self.why()}.")

    def release(self) -> None:
        """Lets the requests that `hold()` holds take effect, in the order in which they came."""
        self._faults.release_all((self,))

    def remove(self) -> None:
        """Ends the fault; requests that it holds stay held until `release()`."""
        self._faults.remove(self)

    # -- used by `Faults`

    @property
    def made(self) -> mechanism.Fault:
        """The fault as the broker has it."""
        return self._made

    @property
    def held(self) -> int:
        """How many requests wait for `release()`."""
        return len(self._held)

    def resume_held(self) -> None:
        """On the broker's thread: lets them take effect."""
        held, self._held[:] = list(self._held), []
        for resume in held:
            resume()

    def forget_held(self) -> None:
        """The broker that held them is gone, and so are their connections."""
        self._held.clear()

    def _note(self, made: mechanism.Fault, request: object, context: mechanism.Asked) -> None:
        name = API[made.api].name
        if made.action not in (mechanism.HOLD, mechanism.CRASH):
            self._carried_out += 1
        self._faults.note(Fired(name, self._words, context.api_version, context.client_id))

    def _hold(self, resume: mechanism.Resume) -> None:
        self._held.append(resume)
        self._carried_out += 1
        self._faults.notify()

    def _crash(self) -> None:
        assert self._cut_off is not None
        self._cut_off()
        self._carried_out += 1
        self._faults.notify()
        raise Crash

    def note_step(self, step: str) -> None:
        """It fires at a step of a commit."""
        self._faults.note(Fired(step, self._words, -1, None))


@checked
class Target:
    """The requests that a fault is for; its methods say what happens to them."""

    def __init__(self, faults: Faults, api: ApiKey, matched: dict[str, Any]) -> None:
        self._faults = faults
        self._api = api
        self._matched = matched
        faults.begun[self] = f"on({API[api].name!r})"

    def fail(self, error: str) -> Fault:
        """Answers with this error of Kafka, such as NOT_COORDINATOR; the request has no effect.

        The error is where this version of the API has it: of the whole, or of each topic, partition
        or group that the request names.
        """
        code = _error(error)
        refuse_foreign(self._api, code)
        return self._arm(mechanism.FAIL, f"fail({code.name!r})", error=code)

    def lose_request(self, *, disconnect: bool = True) -> Fault:
        """The request never arrives, and its connection is cut.

        With `disconnect=False` the connection stays open, and is no longer answered.
        """
        return self._arm(mechanism.LOSE_REQUEST, "lose_request()", disconnect=disconnect)

    def lose_reply(self, *, disconnect: bool = True) -> Fault:
        """The request takes effect, durably; then the connection is cut instead of the answer.

        With `disconnect=False` the connection stays open, and is no longer answered.
        """
        return self._arm(mechanism.LOSE_REPLY, "lose_reply()", disconnect=disconnect)

    def disconnect(self) -> Fault:
        """Cuts the connection on which the request comes, before it has an effect."""
        return self._arm(mechanism.LOSE_REQUEST, "disconnect()")

    def delay(self, seconds: float) -> Fault:
        """The request takes effect so much later, even if its client has left by then."""
        _require(seconds >= 0, f"A delay of {seconds} s is in the past.")
        _require(seconds < math.inf, "A delay without an end: use hold().")
        return self._arm(mechanism.DELAY, f"delay({seconds:g})", delay_ms=round(seconds * 1000))

    def hold(self) -> Fault:
        """The request takes effect at `release()`, even if its client has left by then."""
        return self._arm(mechanism.HOLD, "hold()")

    def throttle(self, ms: int) -> Fault:
        """Answers at once, and asks the client to pause for so long (throttle_time_ms).

        Until then the broker reads nothing from it, as Kafka does with quotas.
        """
        _require(
            type(ms) is int and 1 <= ms <= LARGEST,
            f"throttle({ms}) is no pause: use a whole number of 1 ms to {LARGEST} ms.",
        )
        names = {each.name for each in API[self._api].response.form_fields}
        _require(
            "throttle_time_ms" in names,
            f"{API[self._api].name} cannot be throttled: its reply has no throttle_time_ms.",
        )
        return self._arm(mechanism.THROTTLE, f"throttle({ms})", delay_ms=ms)

    def do(self, function: Function) -> Fault:
        """Calls `function(request)`, which decides.

        It returns None to let the request pass, the name of an error, or `request.reply(...)`. It
        runs on the broker's thread, and all clients wait for it: so it must not use the broker. If
        it raises, the request passes, and `faults.check()` raises the same.
        """
        name = getattr(function, "__name__", "function")
        run = self._faults.guard(self._api, function)
        return self._arm(mechanism.DO, f"do({name})", run=run)

    def crash(self, *, restart: bool = False) -> Fault:
        """The broker crashes when the request comes, before it has an effect.

        `broker.restart()` recovers it; with `restart=True` it recovers by itself, and what the test
        asks of it meanwhile waits.
        """
        self._faults.begun.pop(self, None)
        self._faults.refuse_crash()
        return self._arm(mechanism.CRASH, "crash()", crash=lambda: self._faults.cut_off(restart))

    def _arm(self, action: str, words: str, **more: Any) -> Fault:
        made = mechanism.Fault(self._api, action, **self._matched, **more)
        shown = ", ".join(
            f"{name}={value!r}" for name, value in self._matched.items() if value is not None
        )
        where = API[self._api].name + (f" ({shown})" if shown else "")
        self._faults.begun.pop(self, None)
        return self._faults.arm(self._make(made, where, words))

    def _make(self, made: mechanism.Fault, where: str, words: str) -> Fault:
        return Fault(self._faults, made, where, words)


@checked
class Step:
    """A step of a commit or an abort."""

    def __init__(self, faults: Faults, step: str) -> None:
        self._faults = faults
        self._step = step
        faults.begun[self] = f"at({step!r})"

    def crash(self, *, restart: bool = False) -> Fault:
        """The broker crashes at this step.

        `broker.restart()` recovers it; with `restart=True` it recovers by itself.
        """
        made = mechanism.Fault(
            ApiKey.END_TXN,
            mechanism.CRASH,
            crash=lambda: self._faults.cut_off(restart),
        )
        self._faults.begun.pop(self, None)
        return self._faults.arm(Fault(self._faults, made, self._step, "crash()"), self._step)


@checked
class Faults:
    """The faults of one broker."""

    def __init__(
        self,
        call: Callable[[Callable[[Any], None]], None],
        cut_off: Callable[[bool], None],
    ) -> None:
        self._call = call
        self.cut_off = cut_off
        """On the broker's thread: from now on nothing that it does has an effect."""
        self._armed: list[Fault] = []
        self._steps: list[tuple[str, Fault]] = []
        self._fired: list[Fired] = []
        self._problems: list[BaseException] = []
        self.begun: dict[Target | Step, str] = {}
        """What `on` and `at` were called for, without a word yet on what is to happen."""
        self._changed = threading.Condition()
        self._carrier: Carrier | None = None
        self._process_id = os.getpid()

    def __repr__(self) -> str:
        return f"<{len(self.pending)} faults, {len(self._fired)} fired>"

    def __dir__(self) -> list[str]:
        """What is for tests: the rest is for the broker and its faults."""
        return sorted(FOR_TESTS)

    # -- for tests

    def on(
        self,
        api: str,
        *,
        client_id: str | None = None,
        transactional_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        version: int | None = None,
    ) -> Target:
        """The requests of an API, such as EndTxn; all that is given has to match.

        A request matches a topic, a group or a transactional id if it names it, perhaps among
        others.
        """
        matched = {
            "client_id": client_id,
            "transactional_id": transactional_id,
            "group": group,
            "topic": topic,
            "version": version,
        }
        return Target(self, checked_api(api, version), matched)

    def at(self, step: str) -> Step:
        """A step between two writes of the end of a transaction; `steps` has their names."""
        self.refuse_crash()
        if step not in self.steps:
            raise no_such(f"A commit has no step {step!r}", step, self.steps)
        return Step(self, step)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of a commit and of an abort, in their order."""
        from fencepost.broker.transactions.ending import CRASH_POINTS

        return CRASH_POINTS

    @property
    def fired(self) -> list[Fired]:
        """What has happened so far, in order."""
        self._refuse_fork()
        with self._changed:
            return list(self._fired)

    @property
    def pending(self) -> list[Fault]:
        """The faults that will fire again."""
        return [each for each in self._all() if not each.made.is_spent]

    @property
    def held(self) -> int:
        """How many requests wait for `release()`."""
        return sum(each.held for each in self._all())

    def clear(self) -> None:
        """Removes all faults, and lets held requests take effect."""
        for fault in self._all():
            self.remove(fault)
        self.release()

    def reset(self) -> None:
        """Clears, and forgets what has happened: for the next test on the same broker."""
        self.clear()
        with self._changed:
            self._armed.clear()
            self._steps.clear()
            self._fired.clear()
            self._problems.clear()
            self.begun.clear()

    def release(self) -> None:
        """Lets all held requests take effect."""
        self.release_all(self._all(holding=True))

    def check(self) -> None:
        """UnfiredFault if a fault never fired that is not optional; the fixture calls it.

        Also if a fault says when it happens, and not what. Raises what a function of `do` has
        raised.
        """
        if self._problems:
            raise self._problems.pop(0)
        if self.begun:
            raise UnfiredFault(
                f"faults.{next(iter(self.begun.values()))} does not say what is to happen: add "
                '.crash(), or after on(...) also .lose_reply(), .fail("NOT_COORDINATOR"), .hold() '
                "or another action."
            )
        missing = [each for each in self._all() if each.is_missing]
        if missing:
            lines = "\n".join(f"  {each}: {each.why()}" for each in missing)
            raise UnfiredFault(
                f"{len(missing)} of the test's faults never fired:\n{lines}\n"
                "So the test has not tried what it says. Call .optional() on a fault that need "
                "not fire."
            )

    # -- for `Fault` and `Broker`

    def refuse_crash(self) -> None:
        """Called before a crash is armed; a broker of our own can always crash."""

    def arm(self, fault: Fault, step: str | None = None) -> Fault:
        """Makes a fault apply from now on."""
        self._refuse_fork()
        with self._changed:
            if step is not None:
                self._steps.append((step, fault))
            else:
                self._armed.append(fault)
                if self._carrier is not None:
                    self._carrier.faults.add(fault.made)
        return fault

    def arm_again(self, fault: Fault) -> None:
        """A trigger has changed: it applies although it may have fired before."""
        self._refuse_fork()
        with self._changed:
            if self._carrier is not None and any(each is fault for each in self._armed):
                self._carrier.faults.remove(fault.made)
                if not fault.made.is_spent:
                    self._carrier.faults.add(fault.made)

    def remove(self, fault: Fault) -> None:
        """Makes a fault apply no longer."""
        self._refuse_fork()
        fault.optional()
        fault.made.count = fault.made.fired
        if self._carrier is not None:
            self._carrier.faults.remove(fault.made)

    def release_all(self, faults: Iterable[Fault]) -> None:
        """Lets the requests take effect that these faults hold."""
        found = [each for each in faults if each.held]
        if found:

            def resume(_: object) -> None:
                for each in found:
                    each.resume_held()

            self._call(resume)

    def wait_until(self, is_done: Callable[[], bool], timeout_seconds: float) -> bool:
        """Waits until something has fired that makes it true."""
        self._refuse_fork()
        with self._changed:
            return self._changed.wait_for(is_done, timeout_seconds)

    def note(self, fired: Fired) -> None:
        """On the broker's thread: something has fired."""
        with self._changed:
            self._fired.append(fired)
            self._changed.notify_all()

    def notify(self) -> None:
        """Lets `wait_until` look again."""
        with self._changed:
            self._changed.notify_all()

    def guard(self, api: ApiKey, function: Function) -> Callable[[object, mechanism.Asked], object]:
        """The function of `do` as the broker calls it: it cannot stop the broker."""

        def run(body: object, context: mechanism.Asked) -> object:
            name = API[api].name
            request = Request(name, context.api_version, context.client_id, body)
            try:
                return _answer(function(request), api, request)
            except BaseException as problem:  # noqa: BLE001 - raised by `check`
                self.note_problem(problem)
                return None

        return run

    def note_problem(self, problem: BaseException) -> None:
        """On the broker's thread: `check` raises this."""
        self._problems.append(problem)

    def refresh(self) -> None:
        """Learns what has fired; of a broker in this process it is known."""

    def attach(self, carrier: Carrier) -> None:
        """A broker or a proxy starts: it gets the faults that have not fired."""
        with self._changed:
            self._process_id = os.getpid()
            self._carrier = carrier
            for fault in self._armed:
                if not fault.made.is_spent:
                    carrier.faults.add(fault.made)

    def detach(self) -> None:
        """The broker has stopped, and what it held is lost."""
        with self._changed:
            self._carrier = None
        for fault in self._all():
            fault.forget_held()

    def reach(self, step: str) -> None:
        """On the broker's thread: it has come to a step of a commit."""
        for wanted, fault in self._steps:
            made = fault.made
            if wanted != step:
                continue
            made.calls += 1
            if made.is_due():
                made.fired += 1
                fault.note_step(step)
                assert made.crash is not None
                made.crash()

    def _refuse_fork(self) -> None:
        """A forked child has a copy of the faults, which no request meets."""
        if self._carrier is not None and os.getpid() != self._process_id:
            raise FencepostError(
                f"The faults are those of process {self._process_id}, the parent of this fork, and "
                "no request meets a copy of them: use them there."
            )

    def _all(self, *, holding: bool = False) -> list[Fault]:
        self._refuse_fork()
        with self._changed:
            found = [*self._armed, *(fault for _, fault in self._steps)]
        return [each for each in found if each.held] if holding else found


def _answer(answer: object, api: ApiKey, request: Request) -> object:
    """What a function of `do` has returned, if it can be used."""
    if answer is None:
        return None
    if isinstance(answer, API[api].response):
        _require_writable(answer, api, request)
        return answer
    if isinstance(answer, str):
        from fencepost.broker.faults.failed_replies import has_place

        code = _error(answer)
        refuse_foreign(api, code)
        if has_place(api, request.version, request.body, code):
            return code
        raise FencepostError(f"The reply to this {request.api} has no place for {answer}.")
    raise FencepostError(
        f"A function of do() returned {answer!r}: return None to let the request pass, the name "
        "of an error, or request.reply(...)."
    )


def _require_writable(reply: object, api: ApiKey, request: Request) -> None:
    """The broker takes a reply that it cannot write for a bug of its own, and stops."""
    from fencepost.wire.codec import encode_response

    if api is ApiKey.PRODUCE and request.body.acks == 0:
        raise FencepostError(
            "This Produce waits for no reply (acks=0): return None to let it pass, or the name of "
            "an error, which cuts its connection."
        )
    try:
        encode_response(api, request.version, 0, reply)
    except Exception as problem:
        raise FencepostError(
            f"The reply of a function of do() cannot be written: {problem}"
        ) from problem


def checked_api(name: str, version: int | None) -> ApiKey:
    """The API of this name; ConfigError if the broker has none, or not this version."""
    key, found = _api(name)
    newest = max_served_version(key)
    _require(
        version is None or found.min_version <= version <= newest,
        f"{found.name} has no version {version}: this broker serves {found.min_version} to "
        f"{newest}.",
    )
    return key


def _api(name: str) -> tuple[ApiKey, Any]:
    for key in HANDLERS:
        if name in (API[key].name, key.name):
            return key, API[key]
    names = [API[key].name for key in HANDLERS]
    raise no_such(f"This broker has no API {name!r}", name, names)


def _error(name: str) -> ErrorCode:
    found = ErrorCode.__members__.get(str(name))
    if found is None:
        raise no_such(f"Kafka has no error {name!r}", name, ErrorCode.__members__)
    _require(
        found is not ErrorCode.NONE,
        "NONE is not an error: use lose_reply() for a request that succeeds unseen.",
    )
    return found


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigError(sentence)
