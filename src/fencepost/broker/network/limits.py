"""How many connections there may be, of one address and in all, and how fast they may come.

    max.connections                of the broker; with listener.name.NAME. of one listener
    max.connections.per.ip         of one address; max.connections.per.ip.overrides names others
    max.connection.creation.rate   new ones per second, of the broker or of one listener

A connection over one of the first two limits is closed. One that comes too fast waits: it is
accepted and counts, but its first bytes are read when its time has come. Up to a second's worth may
come at once. One that would wait for longer than `MOST_WAIT_SECONDS` is closed and takes no turn,
so that a flood is over soon after its last connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NO_LIMIT: Final = 2**31 - 1
"""Kafka's default of all these limits."""

MOST_WAIT_SECONDS: Final = 5.0
"""How long a connection may wait for its turn. Clients give up after 10 to 30 seconds, and nobody
notices that a client has left before its turn."""

MAPPED: Final = "::ffff:"
"""Before an IPv4 address, on a socket for both kinds."""


class CreationRate:
    """Gives each new connection the time from which it may be served."""

    def __init__(self, per_second: int) -> None:
        self._seconds = 1 / per_second
        self._next = 0.0
        """When the connection after the last one would be served, without a burst."""

    def wait_seconds(self, now: float) -> float:
        """How long a connection that comes now has to wait for its turn."""
        return max(0.0, self._turn(now) - now)

    def take(self, now: float) -> None:
        """The turn is taken."""
        self._next = self._turn(now)

    def _turn(self, now: float) -> float:
        return max(self._next, now - 1) + self._seconds


class ConnectionLimits:
    """Counts the connections of one broker."""

    def __init__(
        self,
        *,
        most: int,
        most_of_listener: Mapping[str, int],
        most_per_ip: int = NO_LIMIT,
        overrides: Mapping[str, int] | None = None,
        rate: int = NO_LIMIT,
        rate_of_listener: Mapping[str, int] | None = None,
    ) -> None:
        self._most: Final = most
        self._most_of_listener: Final = most_of_listener
        self._most_per_ip: Final = most_per_ip
        self._overrides: Final = overrides or {}
        self._count = 0
        self._of_listener: Final[dict[str, int]] = {}
        self._of_ip: Final[dict[str, int]] = {}
        rates = rate_of_listener or {}
        self._rate: Final = None if rate == NO_LIMIT else CreationRate(rate)
        self._rates: Final = {
            name: CreationRate(each) for name, each in rates.items() if each != NO_LIMIT
        }

    def joined(self, listener: str, host: str) -> str | None:
        """Counts a connection, until `left`; returns why it must be closed, if it must."""
        address = host.removeprefix(MAPPED)
        self._count += 1
        self._of_listener[listener] = self._of_listener.get(listener, 0) + 1
        self._of_ip[address] = self._of_ip.get(address, 0) + 1
        if self._count > self._most:
            return f"there are already {self._most} (max.connections)"
        most = self._most_of_listener.get(listener, self._most)
        if self._of_listener[listener] > most:
            return f"listener {listener} has already {most} (max.connections)"
        most = self._overrides.get(address, self._most_per_ip)
        if self._of_ip[address] > most:
            return f"{address} has already {most} (max.connections.per.ip)"
        return None

    def left(self, listener: str, host: str) -> None:
        """Forgets a connection that was counted."""
        self._count -= 1
        self._of_listener[listener] -= 1
        address = host.removeprefix(MAPPED)
        self._of_ip[address] -= 1
        if not self._of_ip[address]:
            del self._of_ip[address]

    def wait_seconds(self, listener: str, now: float) -> float | None:
        """How long a connection that was just accepted has to wait; None if that is too long."""
        if self._rate is None and not self._rates:
            return 0.0
        rates = [each for each in (self._rate, self._rates.get(listener)) if each is not None]
        seconds = max((rate.wait_seconds(now) for rate in rates), default=0.0)
        if seconds > MOST_WAIT_SECONDS:
            return None
        for rate in rates:
            rate.take(now)
        return seconds
