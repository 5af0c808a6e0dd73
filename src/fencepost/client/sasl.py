"""SASL client exchanges: PLAIN and SCRAM (RFC 5802), as Kafka uses them.

An exchange is a state machine without I/O: `first()` returns the first message,
`respond(challenge)` the answer to each message of the broker, or None at the end. SaslAuthenticate
carries the bytes.

SCRAM authenticates both sides: the client's proof needs the password, and the broker signs its last
message with a key that only a server with this user's verifier has. A wrong signature means that
the peer is not the broker, and fails like a wrong password. Kafka does not use channel binding
(hence `biws`, the base64 of "n,,") and escapes only the two reserved characters in names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, Protocol

from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import Login

_LEAST_ITERATIONS: Final = 4096
"""Kafka's minimum. Fewer would make it easy to guess the password from a recorded login."""
_MOST_ITERATIONS: Final = 1_000_000
"""Kafka's maximum is 16384. A hostile server must not keep us computing for hours."""
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslExchange(Protocol):
    """The client side of one authentication."""

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None: ...


def sasl_exchange(login: Login, nonce: bytes) -> SaslExchange:
    """Returns the exchange for the login's mechanism. The nonce must be fresh."""
    if login.mechanism == "PLAIN":
        return PlainExchange(login)
    return ScramExchange(login, nonce)


class PlainExchange:
    """PLAIN: one message with the password. Use it inside TLS only."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        return f"\0{self._login.username}\0{self._login.password.reveal()}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class ScramExchange:
    """SCRAM: two messages each way, without the password."""

    def __init__(self, login: Login, nonce: bytes) -> None:
        assert len(nonce) >= 12, "a short nonce can be guessed"
        self._login = login
        self._hash = _HASHES[login.mechanism]
        self._nonce = base64.b64encode(nonce).decode("ascii").rstrip("=")
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return b"n,," + self._first_bare()

    def respond(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._prove(challenge)
        self._check_server(challenge)
        return None

    def _first_bare(self) -> bytes:
        name = self._login.username.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self._nonce}".encode()

    def _prove(self, challenge: bytes) -> bytes:
        attributes = _attributes(challenge)
        nonce = attributes.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed(
                "the broker's SCRAM answer does not contain our nonce: it answers another login"
            )
        salted = self._salted_password(attributes)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}".encode()
        signed = b",".join([self._first_bare(), challenge, without_proof])
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return without_proof + b",p=" + base64.b64encode(proof)

    def _salted_password(self, attributes: dict[str, str]) -> bytes:
        iterations = int(attributes["i"]) if attributes.get("i", "").isdigit() else 0
        if not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker requires {iterations} SCRAM iterations; this client accepts "
                f"{_LEAST_ITERATIONS} to {_MOST_ITERATIONS}"
            )
        salt = _base64(attributes.get("s", ""))
        password = self._login.password.reveal().encode()
        return hashlib.pbkdf2_hmac(self._hash, password, salt, iterations)

    def _check_server(self, challenge: bytes) -> None:
        attributes = _attributes(challenge)
        if "e" in attributes:
            raise AuthenticationFailed(f"the broker refused the login: {attributes['e']}")
        assert self._server_signature is not None
        if not hmac.compare_digest(_base64(attributes.get("v", "")), self._server_signature):
            raise AuthenticationFailed(
                "the broker could not prove that it knows this user: do not trust it"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _attributes(message: bytes) -> dict[str, str]:
    """Parses `r=...,s=...,i=...`. A value may contain equal signs."""
    attributes: dict[str, str] = {}
    for part in message.decode("utf-8", "replace").split(","):
        name, equals, value = part.partition("=")
        if equals:
            attributes[name] = value
    return attributes


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("the broker's SCRAM answer is not base64") from None
