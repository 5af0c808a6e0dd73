"""The faults of one broker, as a test in another process arms them and counts what they did.

A fault has a number, which its test gives. The numbers, the counts and what is held end with the
process of the broker: after a restart the test finds that its fault is not there.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.broker.faults import faults as mechanism
from fencepost.wire.apis import API, ApiKey

if TYPE_CHECKING:
    from fencepost.broker.context import Context

_ACTIONS: Final = frozenset(
    {
        mechanism.FAIL,
        mechanism.LOSE_REQUEST,
        mechanism.LOSE_REPLY,
        mechanism.DELAY,
        mechanism.HOLD,
        mechanism.THROTTLE,
    }
)
"""Those that are plain data, and that the process survives."""

_MOST_FIRED: Final = 1_000
"""A fault that always applies fires without an end."""


class RemoteFaults:
    """The faults that were armed from another process."""

    def __init__(self, faults: mechanism.Faults, now_ms: Callable[[], int]) -> None:
        self._faults = faults
        self._now_ms = now_ms
        self._armed: dict[int, mechanism.Fault] = {}
        self._held: dict[int, list[mechanism.Resume]] = {}
        self._fired: deque[dict[str, Any]] = deque(maxlen=_MOST_FIRED)

    def arm(self, number: int, given: Mapping[str, Any]) -> None:
        """Makes a fault apply; or changes how often it does, if there is one of this number."""
        fault = self._armed.get(number)
        if fault is None:
            fault = self._made(number, given)
            self._armed[number] = fault
        fault.first, fault.count = given["first"], given["count"]
        fault.probability, fault.random = given["probability"], random.Random(given["seed"])
        self._faults.remove(fault)
        if not fault.is_spent:
            self._faults.add(fault)

    def _made(self, number: int, given: Mapping[str, Any]) -> mechanism.Fault:
        action, error = given["action"], given["error"]
        if action not in _ACTIONS:
            raise FencepostError(f"A broker of a cluster has no fault {action!r}.")
        if error not in ErrorCode.__members__:
            raise FencepostError(f"Kafka has no error {error!r}; use a name like NOT_COORDINATOR.")
        held = self._held[number] = []
        made = mechanism.Fault(
            _api(given["api"]),
            action,
            error=ErrorCode[error],
            delay_ms=given["delay_ms"],
            disconnect=given["disconnect"],
            hold=held.append,
            **given["match"],
        )
        made.on_fired = partial(self._note, number)
        return made

    def _note(self, number: int, fault: mechanism.Fault, request: object, context: Context) -> None:
        self._fired.append(
            {
                "number": number,
                "at_ms": self._now_ms(),
                "version": context.api_version,
                "client_id": context.client_id,
            }
        )

    def counts(self) -> dict[str, Any]:
        """What has become of the faults."""
        faults = {
            str(number): {
                "seen": fault.seen,
                "calls": fault.calls,
                "fired": fault.fired,
                "held": len(self._held[number]),
            }
            for number, fault in self._armed.items()
        }
        return {"faults": faults, "fired": list(self._fired)}

    def remove(self, number: int) -> None:
        """Ends a fault; what it holds stays held. No error if there is none."""
        if number in self._armed:
            self._faults.remove(self._armed[number])

    def release(self, numbers: Iterable[int]) -> None:
        """Lets what these faults hold take effect."""
        for number in numbers:
            held = self._held.get(number, [])
            found, held[:] = list(held), []
            for resume in found:
                resume()


def _api(name: object) -> ApiKey:
    for key, api in API.items():
        if name in (api.name, key.name):
            return key
    raise FencepostError(f"There is no API {name!r}; use Kafka's name, such as EndTxn.")
