"""Commands that a broker of a cluster obeys for tests: faults, and a broker that is out of reach.

{"do": "fault", "id": 7, "fault": {...}}                      arms a fault (`remote_faults.py`)
{"do": "unfault", "id": 7}                                    ends it
{"do": "release", "ids": [7]}                                 what it holds takes effect
{"do": "faults"}                                              what has become of all of them
{"do": "die", "at": "commit.marker-appended:2"}               it kills itself at that crash point
{"do": "down"}                                                clients are cut off and refused
{"do": "up"}                                                  they are served again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.base.failures import FencepostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencepost.cluster.broker.remote_faults import RemoteFaults

    Reach = Callable[[], Awaitable[None]]
    """Cuts the broker off from its clients, or lets them reach it again."""


class Controls:
    """The commands of one broker."""

    def __init__(
        self, faults: RemoteFaults, *, die_at: Callable[[str], None], down: Reach, up: Reach
    ) -> None:
        self._faults = faults
        self._die_at = die_at
        self._down = down
        self._up = up

    async def run(self, command: dict[str, Any]) -> Any:
        """Carries out a command, returns its result; FencepostError if it is not understood."""
        match command:
            case {"do": "down"}:
                await self._down()
            case {"do": "up"}:
                await self._up()
            case {"do": "die", "at": str(point)}:
                self._die_at(point)
            case {"do": "fault", "id": int(number), "fault": dict(fault)}:
                try:
                    self._faults.arm(number, fault)
                except (KeyError, TypeError) as problem:
                    raise FencepostError(f"This is not a fault: {fault}.") from problem
            case {"do": "unfault", "id": int(number)}:
                self._faults.remove(number)
            case {"do": "release", "ids": list(numbers)}:
                self._faults.release(numbers)
            case {"do": "faults"}:
                return self._faults.counts()
            case _:
                raise FencepostError(f"A broker has no command {command}.")
        return None
