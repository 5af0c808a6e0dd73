"""SASL client exchanges: PLAIN, SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628), as Kafka uses them.

An exchange is a state machine without I/O: `first()` returns the first message,
`respond(challenge)` the answer to each message of the broker, or None at the end. SaslAuthenticate
carries the bytes.

SCRAM authenticates both sides: the client's proof needs the password, and the broker signs its last
message with a key that only a server with this user's verifier has. A wrong signature means that
the peer is not the broker, and fails like a wrong password. Kafka does not use channel binding
(hence `biws`, the base64 of "n,,"). `base/scram.py` has the keys and the syntax.
"""

from __future__ import annotations

import hmac
import re
from typing import Final, Protocol

from fencepost.base.scram import (
    LEAST_ITERATIONS,
    MECHANISMS,
    attributes,
    escape_name,
    exclusive_or,
    from_base64,
    to_base64,
)
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import OAUTHBEARER, Login

_MOST_ITERATIONS: Final = 1_000_000
"""Kafka's maximum is 16384. A hostile server must not keep us computing for hours."""


class SaslExchange(Protocol):
    """The client side of one authentication."""

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None: ...


def sasl_exchange(login: Login, nonce: bytes) -> SaslExchange:
    """Returns the exchange for the login's mechanism. The nonce must be fresh."""
    if login.mechanism == "PLAIN":
        return PlainExchange(login)
    if login.mechanism == OAUTHBEARER:
        return TokenExchange(login)
    return ScramExchange(login, nonce)


class PlainExchange:
    """PLAIN: one message with the password. Use it inside TLS only."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        return f"\0{self._login.username}\0{self._login.password.reveal()}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class TokenExchange:
    """OAUTHBEARER: one message with the token. Use it inside TLS only.

    A broker that refuses the token says why in JSON, and fails the login when we have answered.
    """

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        parts = {"auth": f"Bearer {self._login.password.reveal()}", **self._login.extensions}
        pairs = "".join(f"{name}={value}\x01" for name, value in parts.items())
        return f"n,,\x01{pairs}\x01".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        return b"\x01" if challenge else None


class ScramExchange:
    """SCRAM: two messages each way, without the password."""

    def __init__(self, login: Login, nonce: bytes) -> None:
        assert len(nonce) >= 12, "a short nonce can be guessed"
        self._login = login
        self._mechanism = MECHANISMS[login.mechanism]
        self._nonce = to_base64(nonce).rstrip("=")
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return b"n,," + self._first_bare()

    def respond(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._prove(challenge)
        self._check_server(challenge)
        return None

    def _first_bare(self) -> bytes:
        return f"n={escape_name(self._login.username)},r={self._nonce}".encode()

    def _prove(self, challenge: bytes) -> bytes:
        given = attributes(challenge)
        nonce = given.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed(
                "the broker's SCRAM answer does not contain our nonce: it answers another login"
            )
        mechanism = self._mechanism
        salted = self._salted_password(given)
        client_key = mechanism.client_key(salted)
        without_proof = f"c=biws,r={nonce}".encode()
        signed = b",".join([self._first_bare(), challenge, without_proof])
        signature = mechanism.mac(mechanism.hash(client_key), signed)
        self._server_signature = mechanism.mac(mechanism.server_key(salted), signed)
        proof = exclusive_or(client_key, signature)
        return without_proof + b",p=" + to_base64(proof).encode()

    def _salted_password(self, given: dict[str, str]) -> bytes:
        text = given.get("i", "")
        # Other digits than these are digits to Python, too, and not all of them are a number.
        iterations = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
        if not LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker requires {iterations} SCRAM iterations; this client accepts "
                f"{LEAST_ITERATIONS} to {_MOST_ITERATIONS}"
            )
        salt = _decoded(given.get("s", ""))
        return self._mechanism.salted_password(self._login.password.reveal(), salt, iterations)

    def _check_server(self, challenge: bytes) -> None:
        given = attributes(challenge)
        if "e" in given:
            raise AuthenticationFailed(f"the broker refused the login: {given['e']}")
        assert self._server_signature is not None
        if not hmac.compare_digest(_decoded(given.get("v", "")), self._server_signature):
            raise AuthenticationFailed(
                "the broker could not prove that it knows this user: do not trust it"
            )


def _decoded(text: str) -> bytes:
    found = from_base64(text)
    if found is None:
        raise AuthenticationFailed("the broker's SCRAM answer is not base64")
    return found
