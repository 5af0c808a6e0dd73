"""The logins that wait for a slow hash, and the thread that computes it.

Passwords are hashed one after the other, outside of the interpreter's lock, so that other clients
are served meanwhile. Addresses take turns: somebody who guesses a thousand passwords a second waits
behind himself, and a login from elsewhere behind one of his. A network of 2^64 addresses of IPv6 is
one address here, as one machine may have them all.

`MAX_WAITING` logins may wait. When there are more, the address with most of them loses its newest:
the connection is closed without an answer, which clients try again, while they take a failed login
for a wrong password. A login whose client has left is forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.broker.security.exchanges import Accepted, Refused

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
"""Logins that wait for the hasher: about two seconds of its work, and a fleet that reconnects."""

AT_WORK: Final = 2
"""Logins that the thread has: the second is at hand when the first ends, whatever the loop does."""

Work = Callable[[], Accepted | Refused]


class WaitingLogin:
    """A login that waits."""

    __slots__ = ("answer", "drop", "network", "work")

    def __init__(
        self,
        host: str,
        work: Work,
        answer: Callable[[Accepted | Refused], None],
        drop: Callable[[], None],
    ) -> None:
        """`answer` gets the result of `work`, or `drop` is called because too many wait."""
        self.network: Final = _network(host)
        self.work: Final = work
        self.answer: Final = answer
        self.drop: Final = drop


class HashQueue:
    """The logins of one broker that wait for their hash."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hasher: ThreadPoolExecutor | None = None
        self._waiting: dict[str, deque[WaitingLogin]] = {}
        """By network; the first in the dictionary has the next turn."""
        self._count = 0
        self._at_work = 0
        self._is_closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that continues after a hash."""
        self._loop = loop

    def close(self) -> None:
        """Ends the thread; logins that wait get no answer."""
        self._is_closed = True
        self._waiting.clear()
        if self._hasher is not None:
            self._hasher.shutdown(wait=False, cancel_futures=True)

    def add(self, login: WaitingLogin) -> None:
        """Runs the work of a login beside the loop when its turn comes."""
        self._waiting.setdefault(login.network, deque()).append(login)
        self._count += 1
        if self._count + self._at_work > MAX_WAITING:
            # Of several the last in turn.
            dropped = max(reversed(self._waiting.values()), key=len)[-1]
            self.forget(dropped)
            dropped.drop()
        self._go_on()

    def forget(self, login: WaitingLogin) -> None:
        """Removes a login whose client has left; too late if its hash has begun."""
        queue = self._waiting.get(login.network)
        if queue is None or login not in queue:
            return
        queue.remove(login)
        self._count -= 1
        if not queue:
            del self._waiting[login.network]

    def _go_on(self) -> None:
        assert self._loop is not None, "a broker that serves has a loop"
        while self._waiting and self._at_work < AT_WORK:
            network = next(iter(self._waiting))
            queue = self._waiting.pop(network)
            login = queue.popleft()
            if queue:
                self._waiting[network] = queue  # The last in turn.
            self._count -= 1
            self._at_work += 1
            if self._hasher is None:
                self._hasher = ThreadPoolExecutor(1, thread_name_prefix="fencepost-hasher")
            future = self._loop.run_in_executor(self._hasher, login.work)
            future.add_done_callback(partial(self._hashed, login))

    def _hashed(self, login: WaitingLogin, future: asyncio.Future[Accepted | Refused]) -> None:
        self._at_work -= 1
        if self._is_closed or future.cancelled():
            return
        self._go_on()
        problem = future.exception()
        if problem is None:
            login.answer(future.result())
        else:
            log.error("a password could not be hashed", exc_info=problem)
            login.answer(Refused("an internal error"))


def _network(host: str) -> str:
    """What takes turns: an address of IPv4, the upper half of one of IPv6."""
    if ":" not in host:
        return host
    # Here, because it takes a while to import, and few brokers need it.
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:8].hex()
