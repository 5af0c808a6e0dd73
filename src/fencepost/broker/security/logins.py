"""Who may log in at this broker, and what logins share: users, salts, nonces, timers, the hasher.

A password of PLAIN has to be hashed before it can be compared with the credential of a user, which
takes some milliseconds on purpose (`hash_queue.py`), unless it is the last good one of its user
(`known_passwords.py`). SCRAM needs no slow hash on the broker's side, as its client has done that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from fencepost.base.limits import LOGIN_SECONDS
from fencepost.base.scram import MECHANISMS, NONCE_BYTES
from fencepost.broker.deadlines import Deadlines
from fencepost.broker.security.exchanges import (
    PLAIN,
    Exchange,
    PlainExchange,
    ScramExchange,
    UnknownUsers,
)
from fencepost.broker.security.hash_queue import HashQueue
from fencepost.broker.security.known_passwords import KnownPasswords
from fencepost.broker.security.sessions import Session
from fencepost.broker.settings.sasl import SaslListener, sasl_listener

if TYPE_CHECKING:
    import asyncio

    from fencepost.base.seams import Randomness
    from fencepost.broker.metadata.follower import MetadataFollower
    from fencepost.broker.network.connection import Connection
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.settings.config import BrokerConfig


class ListenerLogins:
    """What the sessions of one listener need to know."""

    def __init__(self, settings: SaslListener) -> None:
        self.name: Final = settings.name
        self.mechanisms: Final = settings.mechanisms
        self.passwords: Final[Mapping[str, bytes] | None] = (
            None
            if settings.passwords is None
            else {user: each.reveal().encode() for user, each in settings.passwords.items()}
        )
        self._reauth_ms = settings.reauth_ms

    def max_reauth_ms(self, mechanism: str) -> int:
        """How long a session with this mechanism lasts; 0 for any time."""
        return self._reauth_ms[mechanism]


class Logins:
    """The logins of one broker."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        follower: MetadataFollower,
        randomness: Randomness,
    ) -> None:
        self._runtime = runtime
        self._follower = follower
        self._randomness = randomness
        self._max_bytes = config.sasl_server_max_receive_size
        self._delay_ms = config.connection_failed_authentication_delay_ms
        self._listeners = {
            each.name: ListenerLogins(sasl_listener(config, each.name))
            for each in config.client_listeners
            if each.protocol.startswith("SASL")
        }
        self._known_passwords = KnownPasswords(randomness.bytes)
        self.hashes: Final = HashQueue()
        self.deadlines: Final = Deadlines(runtime, int(LOGIN_SECONDS * 1_000))
        """Of the connections that nobody has logged in on."""
        self.renewed_count = 0
        """Sessions that were renewed since the start."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that continues after a hash."""
        self.hashes.attach(loop)

    def close(self) -> None:
        """Ends the hasher; logins that wait for it get no answer."""
        self.hashes.close()

    def begin(self, connection: Connection) -> None:
        """Makes a new connection to a listener with SASL begin with a login."""
        session = Session(self, self._listeners[connection.listener], connection)
        connection.begin_session(session, self._max_bytes)

    def exchange(self, listener: ListenerLogins, mechanism: str) -> Exchange:
        """A new exchange of one of the listener's mechanisms."""
        users = self._follower.state.users
        unknown = UnknownUsers(self._follower.cluster_id)
        if mechanism == PLAIN:
            return PlainExchange(users, unknown, self._known_passwords, listener.passwords)
        nonce = self._randomness.bytes(NONCE_BYTES)
        return ScramExchange(MECHANISMS[mechanism], users, unknown, nonce)

    def now_ms(self) -> int:
        """The time, whatever happens to the wall clock."""
        return self._runtime.steady_ms()

    def delay(self, arrived_at_ms: int | None, answer: Callable[[], None]) -> None:
        """Calls back when a failed login that arrived then may be answered; None for now."""
        now_ms = self.now_ms()
        due_ms = (now_ms if arrived_at_ms is None else arrived_at_ms) + self._delay_ms
        self._runtime.call_later(max(0, due_ms - now_ms), answer)
