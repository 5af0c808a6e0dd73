"""Proving who we are: PLAIN and SCRAM (RFC 5802), as Kafka speaks them.

An exchange is a small machine without I/O: `first()` is what the client says first,
`respond(challenge)` what it says to each answer of the broker, or None when it is satisfied. The
bytes travel inside SaslAuthenticate.

SCRAM proves both sides: the client's proof needs the password, and the broker's last word is signed
with a key that only a server which stores this user's verifier can have. A wrong signature means
that whoever answers is not the broker, so it is refused like a wrong password. Kafka does not use
channel binding (hence `biws`, the base64 of "n,,") and does not normalise names beyond the two
characters that the format needs for itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.client.failures import AuthenticationFailed

if TYPE_CHECKING:
    from fencepost.client.options import Login

_LEAST_ITERATIONS: Final = 4096
"""What Kafka demands of a verifier: fewer would make a stolen message easy to guess from."""
_MOST_ITERATIONS: Final = 1_000_000
"""Kafka's own maximum is 16384; a hostile server must not keep us computing for hours."""
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslExchange(Protocol):
    """The client's half of one authentication."""

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None: ...


def sasl_exchange(login: Login, nonce: bytes) -> SaslExchange:
    """The exchange of the login's mechanism; the nonce is fresh randomness."""
    if login.mechanism == "PLAIN":
        return PlainExchange(login)
    return ScramExchange(login, nonce)


class PlainExchange:
    """One message: the password itself. Only ever sensible inside TLS."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        return f"\0{self._login.username}\0{self._login.password.reveal()}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class ScramExchange:
    """Two messages each way, and the password in none of them."""

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
                "the broker's SCRAM answer does not continue our nonce: it is not for us"
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
                f"the broker asks for {iterations} SCRAM iterations; between "
                f"{_LEAST_ITERATIONS} and "
                f"{_MOST_ITERATIONS} are acceptable"
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
    """`r=...,s=...,i=...`; a value may itself hold equal signs."""
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
