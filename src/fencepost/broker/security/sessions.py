"""The session of a connection to a SASL listener: from its first request to its end.

The dispatcher asks `admits` before it reads a request of such a connection; connections to other
listeners have no session. Which requests a state admits is the table `ADMITTED`, and which state
follows which is the table `TRANSITIONS`.

    HANDSHAKE        nothing has been said: ApiVersions and SaslHandshake
    AUTHENTICATE     a mechanism was chosen: SaslAuthenticate, until the exchange has ended
    OPEN             somebody is logged in: everything, until the session expires
    REAUTHENTICATE   SaslHandshake was sent again on an open session (KIP-368): SaslAuthenticate
    FAILED           the answer to a failed login is on its way, then the connection is closed

A login that fails is answered with one sentence, whatever was wrong: an unknown user, a wrong
password, a message that is not the mechanism's. It is answered `connection.failed.authentication.
delay.ms` after the message arrived, so the time that the check took does not show, and guessing is
slow. Nothing else of the connection is served until then. The reason is in the broker's log: one
line per failed login, without the name, which may be a password typed into the wrong field.
A connection without a login is closed after `LOGIN_SECONDS`, whatever it sends: strangers take the
places of others only as long as they keep coming.

Re-authentication must use the same mechanism and end with the same principal. Otherwise it fails,
as does the connection. A session whose time is over is closed by its next request, unless that
begins a re-authentication. Changes of a user's password, even the removal of the user, do not end
sessions: as in Kafka, they last until they have to authenticate again. `connections.max.reauth.ms`
bounds that time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import LOGIN_SECONDS
from fencepost.broker.security.exchanges import Accepted, Challenge, Exchange, Hashing, Refused
from fencepost.broker.security.hash_queue import WaitingLogin
from fencepost.broker.waiting import NoReply, Parked
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateResponse
from fencepost.wire.forms.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from fencepost.broker.network.connection import Connection
    from fencepost.broker.security.logins import ListenerLogins, Logins

log = logging.getLogger(__name__)

FIRST_HANDSHAKE_WITH_FRAMES: Final = 1
"""After SaslHandshake v0, tokens are sent as bare frames, without a request around them."""


class State(Enum):
    """Where a session is; see above."""

    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    OPEN = "open"
    REAUTHENTICATE = "reauthenticate"
    FAILED = "failed"


class Event(Enum):
    """What happens to a session."""

    MECHANISM_CHOSEN = "a mechanism was chosen"
    LOGGED_IN = "the exchange has ended well"
    REFUSED = "the exchange has failed, or the mechanism"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.HANDSHAKE, Event.MECHANISM_CHOSEN): State.AUTHENTICATE,
    (State.HANDSHAKE, Event.REFUSED): State.FAILED,
    (State.AUTHENTICATE, Event.LOGGED_IN): State.OPEN,
    (State.AUTHENTICATE, Event.REFUSED): State.FAILED,
    (State.OPEN, Event.MECHANISM_CHOSEN): State.REAUTHENTICATE,
    (State.OPEN, Event.REFUSED): State.FAILED,
    (State.REAUTHENTICATE, Event.LOGGED_IN): State.OPEN,
    (State.REAUTHENTICATE, Event.REFUSED): State.FAILED,
}
"""A pair that is not here cannot happen: `ADMITTED` keeps its request away."""

ADMITTED: Final[Mapping[State, frozenset[int]]] = {
    State.HANDSHAKE: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    State.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
    State.OPEN: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    State.REAUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
    State.FAILED: frozenset(),
}
"""The requests that a state admits; of an open session, those that it admits when it has
expired."""

_WHERE: Final[Mapping[State, str]] = {
    State.HANDSHAKE: "before authentication",
    State.AUTHENTICATE: "during authentication",
    State.OPEN: "after the session has expired (connections.max.reauth.ms)",
    State.REAUTHENTICATE: "during re-authentication",
    State.FAILED: "after a failed authentication",
}


class Session:
    """The session of one connection."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_exchange",
        "_expires_at_ms",
        "_listener",
        "_logins",
        "_mechanism",
        "_refusal",
        "state",
    )

    def __init__(
        self, logins: Logins, listener: ListenerLogins, connection: Connection | None
    ) -> None:
        """`connection` refers to the session, too, until it is lost and calls `end`."""
        self.state = State.HANDSHAKE
        self._logins = logins
        self._listener = listener
        self._connection = connection
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._expires_at_ms = 0
        """When it has to authenticate again; 0 for never."""
        self._refusal: str | None = None
        """Why the next SaslAuthenticate fails, whatever it says."""
        self._deadline = logins.deadlines.set(self._give_up)

    def end(self) -> None:
        """The connection is lost."""
        self._connection = None
        self._logins.deadlines.cancel(self._deadline)

    def _give_up(self) -> None:
        if self._connection is not None:
            self._connection.close(f"no login in {LOGIN_SECONDS:.0f} s")

    def admits(self, api: int) -> bool:
        """Whether a request may be read now."""
        if self.state is State.OPEN and not self._has_expired():
            return True
        return api in ADMITTED[self.state]

    def why_not(self) -> str:
        """Why a request was not admitted, as the end of a sentence."""
        return _WHERE[self.state]

    def _has_expired(self) -> bool:
        return 0 < self._expires_at_ms <= self._logins.now_ms()

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    # -- SaslHandshake ----------------------------------------------------------------------------

    def choose(self, mechanism: str, version: int) -> SaslHandshakeResponse | Parked:
        """Serves a SaslHandshake: begins a login with this mechanism."""
        enabled = self._listener.mechanisms
        if version < FIRST_HANDSHAKE_WITH_FRAMES:
            reply = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, mechanisms=list(enabled)
            )
            return self._fail(reply, "SaslHandshake v0, whose tokens have no request around them")
        if mechanism not in enabled:
            reply = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(enabled)
            )
            return self._fail(reply, f"the mechanism is none of {', '.join(enabled)}")
        if self.state is State.OPEN and mechanism != self._mechanism:
            # Kafka answers the handshake, and fails the message after it.
            self._refusal = (
                f"SaslMechanism '{mechanism}' requested by client is not supported for "
                f"reauthentication of mechanism '{self._mechanism}'"
            )
        if self.state is State.HANDSHAKE:
            self._mechanism = mechanism
        self._move(Event.MECHANISM_CHOSEN)
        self._exchange = self._logins.exchange(self._listener, mechanism)
        return SaslHandshakeResponse(mechanisms=list(enabled))

    # -- SaslAuthenticate -------------------------------------------------------------------------

    def authenticate(self, message: bytes) -> SaslAuthenticateResponse | Parked:
        """Serves a SaslAuthenticate: goes on with the login."""
        if self._exchange is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        if self._refusal is not None:
            return self._refuse("another mechanism in re-authentication", self._refusal)
        arrived_at_ms = self._logins.now_ms()
        step = self._exchange.respond(message)
        if isinstance(step, Challenge):
            return SaslAuthenticateResponse(error_message=None, auth_bytes=step.message)
        if not isinstance(step, Hashing):
            return self._conclude(step, arrived_at_ms, None)
        parked = Parked(holds_followers=True)
        host = "" if self._connection is None else self._connection.client_host
        login = WaitingLogin(
            host,
            step.work,
            partial(self._hashed, parked, arrived_at_ms, step.keep),
            partial(self._drop, parked),
        )
        parked.when_abandoned(partial(self._logins.hashes.forget, login))
        self._logins.hashes.add(login)
        return parked

    def _drop(self, parked: Parked) -> None:
        """Too many logins wait, and most of them are from where this one came."""
        if self._connection is not None:
            self._connection.hold()  # For good: nothing is served until it is closed.
        parked.answer(NoReply("too many logins wait for their passwords to be hashed"))

    def _hashed(
        self,
        parked: Parked,
        arrived_at_ms: int,
        keep: Callable[[], None],
        step: Accepted | Refused,
    ) -> None:
        if isinstance(step, Accepted):
            keep()
        reply = self._conclude(step, arrived_at_ms, parked)
        if reply is not parked:
            parked.answer(reply)

    def _conclude(
        self, step: Accepted | Refused, arrived_at_ms: int, parked: Parked | None
    ) -> SaslAuthenticateResponse | Parked:
        """Ends a login; a failed one is answered by `parked`, if there is one already."""
        if isinstance(step, Refused):
            return self._refuse(step.reason, None, arrived_at_ms, parked)
        connection = self._connection
        principal = f"User:{step.user}"
        if connection is None:
            return SaslAuthenticateResponse(error_message=None)  # The client has left.
        if self.state is State.REAUTHENTICATE and principal != connection.principal:
            return self._refuse(
                "another user in re-authentication",
                f"Cannot change principals during re-authentication from "
                f"{connection.principal}: {principal}",
                arrived_at_ms,
                parked,
            )
        self._logins.renewed_count += self.state is State.REAUTHENTICATE
        self._logins.deadlines.cancel(self._deadline)
        self._move(Event.LOGGED_IN)
        self._exchange = None
        connection.let_in(principal)
        lifetime_ms = self._listener.max_reauth_ms(self._mechanism)
        self._expires_at_ms = self._logins.now_ms() + lifetime_ms if lifetime_ms > 0 else 0
        return SaslAuthenticateResponse(
            error_message=None,
            auth_bytes=step.message,
            session_lifetime_ms=max(0, lifetime_ms),
        )

    # -- failures ---------------------------------------------------------------------------------

    def _refuse(
        self,
        reason: str,
        message: str | None,
        arrived_at_ms: int | None = None,
        parked: Parked | None = None,
    ) -> Parked:
        reply = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=message
            or "Authentication failed during authentication due to invalid credentials with SASL "
            f"mechanism {self._mechanism}",
        )
        return self._fail(reply, reason, arrived_at_ms, parked)

    def _fail(
        self,
        reply: object,
        reason: str,
        arrived_at_ms: int | None = None,
        parked: Parked | None = None,
    ) -> Parked:
        """Answers after the delay, then closes the connection."""
        connection = self._connection
        log.warning(
            "a login of %s on listener %s%s failed: %s",
            "a client that has left" if connection is None else connection.client_name,
            self._listener.name,
            f" with {self._mechanism}" if self._mechanism else "",
            reason,
            extra={
                "event": "login_failed",
                "client": None if connection is None else connection.client_name,
                "listener": self._listener.name,
                "mechanism": self._mechanism or None,
                "why": reason,
            },
        )
        self._move(Event.REFUSED)
        self._exchange = None
        parked = parked or Parked()
        if connection is not None:
            connection.hold()  # For good: nothing is served between the reply and the end.
        self._logins.delay(arrived_at_ms, partial(self._answer_and_close, parked, reply))
        return parked

    def _answer_and_close(self, parked: Parked, reply: object) -> None:
        parked.answer(reply)
        if self._connection is not None:
            self._connection.close()  # It sends the reply first.
