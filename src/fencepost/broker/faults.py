"""Faults that a test asks for: fail, delay or drop a request, at the one place where all requests pass.

    node.faults.fail(ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR)     # the next one is answered with the error
    node.faults.delay(ApiKey.END_TXN, until=event_callback)         # the next one waits before it takes effect
    node.faults.drop(ApiKey.END_TXN, effect=True)                   # it takes effect, but its answer is lost

Each fault is used up by the first request that it fits. Without faults the cost is one truth test
per request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import API, ApiKey

Resume = Callable[[], None]


@dataclass(slots=True)
class Fault:
    """What is to happen to one request."""

    api: ApiKey
    kind: Literal["fail", "delay", "drop"]
    error: ErrorCode = ErrorCode.NONE
    effect: bool = False
    hold: Callable[[Resume], None] | None = None
    fits: Callable[[object], bool] | None = None


class Faults:
    """The faults that wait for their request."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fail(
        self, api: ApiKey, error: ErrorCode, *, fits: Callable[[object], bool] | None = None
    ) -> None:
        """The next request of `api` is answered with `error` and has no effect."""
        if not hasattr(API[api].response(), "error_code"):
            raise ValueError(f"{API[api].name} has no error of the whole reply: drop or delay it")
        self._waiting.append(Fault(api, "fail", error=error, fits=fits))

    def delay(
        self,
        api: ApiKey,
        hold: Callable[[Resume], None],
        *,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """The next request of `api` takes effect only when what is given to `hold` is called."""
        self._waiting.append(Fault(api, "delay", hold=hold, fits=fits))

    def drop(
        self,
        api: ApiKey,
        *,
        effect: bool,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """The connection of the next request of `api` is cut: before it takes effect, or after."""
        self._waiting.append(Fault(api, "drop", effect=effect, fits=fits))

    def take(self, api: ApiKey, request: object) -> Fault | None:
        """The first fault that fits, used up by this call."""
        for index, fault in enumerate(self._waiting):
            if fault.api is api and (fault.fits is None or fault.fits(request)):
                return self._waiting.pop(index)
        return None
