"""Fault injection for tests: fail, delay or drop a request in the dispatcher.

    node.faults.fail(ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR)  # the next EndTxn gets the error
    node.faults.delay(ApiKey.END_TXN, hold)                      # it waits until `hold` resumes it
    node.faults.drop(ApiKey.END_TXN, effect=True)                # takes effect; the reply is lost

Each fault applies to the first request that matches. Without faults the cost is one truth test per
request.
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
    """One fault, for one request."""

    api: ApiKey
    kind: Literal["fail", "delay", "drop"]
    error: ErrorCode = ErrorCode.NONE
    effect: bool = False
    hold: Callable[[Resume], None] | None = None
    fits: Callable[[object], bool] | None = None


class Faults:
    """The faults that no request has matched yet."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fail(
        self, api: ApiKey, error: ErrorCode, *, fits: Callable[[object], bool] | None = None
    ) -> None:
        """Answers the next request of `api` with `error`; it has no effect."""
        if not hasattr(API[api].response(), "error_code"):
            raise ValueError(
                f"a reply of {API[api].name} has no top-level error code: use drop or delay"
            )
        self._waiting.append(Fault(api, "fail", error=error, fits=fits))

    def delay(
        self,
        api: ApiKey,
        hold: Callable[[Resume], None],
        *,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """Holds the next request of `api`: it takes effect when `hold` calls its argument."""
        self._waiting.append(Fault(api, "delay", hold=hold, fits=fits))

    def drop(
        self,
        api: ApiKey,
        *,
        effect: bool,
        fits: Callable[[object], bool] | None = None,
    ) -> None:
        """Closes the connection of the next request of `api`, before or after it takes effect."""
        self._waiting.append(Fault(api, "drop", effect=effect, fits=fits))

    def take(self, api: ApiKey, request: object) -> Fault | None:
        """Removes and returns the first fault that matches."""
        for index, fault in enumerate(self._waiting):
            if fault.api is api and (fault.fits is None or fault.fits(request)):
                return self._waiting.pop(index)
        return None
