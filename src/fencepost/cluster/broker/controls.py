"""Commands that a broker of a cluster obeys for tests: faults, and a broker that is out of reach.

{"do": "fail", "api": "EndTxn", "error": "NOT_COORDINATOR"}   the next EndTxn gets the error
{"do": "delay", "api": "EndTxn", "ms": 500}                   it takes effect half a second later
{"do": "drop", "api": "EndTxn", "effect": true}               it takes effect; the reply is lost
{"do": "die", "at": "commit.marker-appended:2"}               it kills itself at that crash point
{"do": "down"}                                                clients are cut off and refused
{"do": "up"}                                                  they are served again
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.wire.apis import API, ApiKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencepost.broker.faults.faults import Faults

    Reach = Callable[[], Awaitable[None]]
    """Cuts the broker off from its clients, or lets them reach it again."""


class Controls:
    """The commands of one broker."""

    def __init__(
        self, faults: Faults, *, die_at: Callable[[str], None], down: Reach, up: Reach
    ) -> None:
        self._faults = faults
        self._die_at = die_at
        self._down = down
        self._up = up

    async def run(self, command: dict[str, Any]) -> None:
        """Carries out a command; FencepostError if it cannot be understood."""
        match command:
            case {"do": "down"}:
                await self._down()
            case {"do": "up"}:
                await self._up()
            case {"do": "die", "at": str(point)}:
                self._die_at(point)
            case {"do": "fail", "api": api, "error": error}:
                self._fail(_api(api), error)
            case {"do": "delay", "api": api, "ms": int(delay_ms)} if delay_ms >= 0:
                self._faults.delay(_api(api), partial(_resume_later, delay_ms))
            case {"do": "drop", "api": api, "effect": bool(effect)}:
                self._faults.drop(_api(api), effect=effect)
            case _:
                raise FencepostError(f"A broker has no command {command}.")

    def _fail(self, api: ApiKey, error: object) -> None:
        if not isinstance(error, str) or error not in ErrorCode.__members__:
            raise FencepostError(f"Kafka has no error {error!r}; use a name like NOT_COORDINATOR.")
        self._faults.fail(api, ErrorCode[error])


def _resume_later(delay_ms: int, resume: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_ms / 1000, resume)


def _api(name: object) -> ApiKey:
    for key, api in API.items():
        if name in (api.name, key.name):
            return key
    raise FencepostError(f"There is no API {name!r}; use Kafka's name, such as EndTxn.")
