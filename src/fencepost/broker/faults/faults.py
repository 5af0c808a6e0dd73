"""Which requests a fault applies to, and the faults that are armed.

Every armed fault counts the requests that it matches. It is due from the request number `first` on,
`count` times (None: always), each time with `probability`. If several are due at one request, the
first one armed takes it, and the others remain due for the next. So two faults of one request each
follow each other, and the third call is the third call whatever else goes wrong.

Any thread may arm and remove faults: the list is replaced, never changed. All else happens on the
loop of the broker.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey

Resume = Callable[[], None]

FAIL: Final = "fail"
LOSE_REQUEST: Final = "lose_request"
LOSE_REPLY: Final = "lose_reply"
DELAY: Final = "delay"
HOLD: Final = "hold"
THROTTLE: Final = "throttle"
DO: Final = "do"
CRASH: Final = "crash"

EXEMPT_CLIENT: Final = "fencepost-testing"
"""The client id of the test itself: what looks at the outcome does not meet its faults."""


class Asked(Protocol):
    """What is known of a request beside its body: by the broker, or by a proxy in front of one."""

    @property
    def api_version(self) -> int:
        """The version of the request."""

    @property
    def client_id(self) -> str | None:
        """Who sent it."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic, for requests that name it by its id."""


class Fault:
    """One fault: what happens, to which requests, and how often."""

    def __init__(
        self,
        api: ApiKey,
        action: str,
        *,
        error: ErrorCode = ErrorCode.NONE,
        delay_ms: int = 0,
        disconnect: bool = True,
        run: Callable[[object, Asked], object] | None = None,
        hold: Callable[[Resume], None] | None = None,
        crash: Callable[[], None] | None = None,
        fits: Callable[[object], bool] | None = None,
        client_id: str | None = None,
        transactional_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        version: int | None = None,
    ) -> None:
        self.api = api
        self.action = action
        self.error = error
        self.delay_ms = delay_ms
        self.disconnect = disconnect
        self.run = run
        """For DO: returns None to let the request pass, an error, or the form of a reply."""
        self.hold = hold
        """For HOLD: receives the function that lets the request take effect."""
        self.crash = crash
        self.fits = fits
        self.client_id = client_id
        self.transactional_id = transactional_id
        self.group = group
        self.topic = topic
        self.version = version
        self.first = 1
        self.count: int | None = 1
        self.probability = 1.0
        self.random = random.Random(0)
        self.seen = 0
        """How many requests of its API have come."""
        self.calls = 0
        """How many requests have matched."""
        self.fired = 0
        self.on_fired: Callable[[Fault, object, Asked], None] | None = None

    @property
    def is_spent(self) -> bool:
        """Whether it will not fire again."""
        return self.count is not None and self.fired >= self.count

    def is_due(self) -> bool:
        """Whether the request that was just counted is one of those that it is meant for."""
        if self.calls < self.first or self.is_spent:
            return False
        return self.probability >= 1.0 or self.random.random() < self.probability

    def matches(self, request: object, context: Asked) -> bool:
        """Whether it is about this request of its API."""
        if self.version is not None and self.version != context.api_version:
            return False
        if self.client_id is not None and self.client_id != context.client_id:
            return False
        if self.fits is not None and not self.fits(request):
            return False
        if self.action == FAIL and not self._has_place(request, context):
            return False
        if self.transactional_id is None and self.group is None and self.topic is None:
            return True
        from fencepost.broker.faults.subjects import is_about

        return is_about(
            request,
            context.topic_name,
            transactional_id=self.transactional_id,
            group=self.group,
            topic=self.topic,
        )

    def _has_place(self, request: object, context: Asked) -> bool:
        """Whether the reply to this request has a place for an error."""
        from fencepost.broker.faults.failed_replies import has_place

        return has_place(self.api, context.api_version, request, self.error)


class Faults:
    """The armed faults of one broker, in the order in which they were armed."""

    __slots__ = ("_armed", "_lock")

    def __init__(self) -> None:
        self._armed: tuple[Fault, ...] = ()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._armed)

    def add(self, fault: Fault) -> Fault:
        """Arms a fault."""
        with self._lock:
            self._armed = (*self._armed, fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Disarms a fault; no error if it is not armed."""
        with self._lock:
            self._armed = tuple(each for each in self._armed if each is not fault)

    def clear(self) -> None:
        """Disarms all faults."""
        with self._lock:
            self._armed = ()

    def take(self, api: ApiKey, request: object, context: Asked) -> Fault | None:
        """The fault that this request meets, if any."""
        if context.client_id == EXEMPT_CLIENT:
            return None
        found: Fault | None = None
        for fault in self._armed:
            if fault.api is not api:
                continue
            fault.seen += 1
            if not fault.matches(request, context):
                continue
            fault.calls += 1
            if found is None and fault.is_due():
                found = fault
        if found is not None:
            found.fired += 1
            if found.is_spent:
                self.remove(found)
            if found.on_fired is not None:
                found.on_fired(found, request, context)
        return found

    # -- for the next request, in tests of our own

    def fail(
        self, api: ApiKey, error: ErrorCode, *, fits: Callable[[object], bool] | None = None
    ) -> None:
        """Answers the next request of `api` with `error`; it has no effect."""
        self.add(Fault(api, FAIL, error=error, fits=fits))

    def delay(
        self,
        api: ApiKey,
        hold: Callable[[Resume], None],
        *,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """Holds the next request of `api`: it takes effect when `hold` calls its argument."""
        self.add(Fault(api, HOLD, hold=hold, fits=fits))

    def drop(
        self,
        api: ApiKey,
        *,
        effect: bool,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """Closes the connection of the next request of `api`, before or after it takes effect."""
        self.add(Fault(api, LOSE_REPLY if effect else LOSE_REQUEST, fits=fits))
