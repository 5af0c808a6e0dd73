"""SCRAM (RFC 5802) as Kafka uses it: what the two sides of an exchange share.

    salted password = PBKDF2(password, salt, iterations)      slow, so that guesses are slow
    client key      = HMAC(salted password, "Client Key")     proves the client
    stored key      = H(client key)                           what a server keeps of it
    server key      = HMAC(salted password, "Server Key")     proves the server

A client proves that it has the client key: it sends the key XOR HMAC(stored key, exchange). A
server undoes the XOR and compares the hash. So a server needs no password and hashes nothing
slowly. Whoever has a stored key and hears one exchange has the client key, and whoever has a
salted password has everything: no message prints either of them.

Kafka uses UTF-8 passwords as they are (no SASLprep), no channel binding, and escapes only the two
reserved characters in names. `client/sasl.py` is the client's side of an exchange, and
`broker/security/exchanges.py` the server's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

LEAST_ITERATIONS: Final = 4096
"""Kafka's minimum. Fewer would make it easy to guess the password from a recorded login."""
MOST_ITERATIONS: Final = 16_384
"""Kafka's maximum for new credentials."""
DEFAULT_ITERATIONS: Final = 4096
"""Kafka's default; users that do not exist appear to have it."""
SALT_BYTES: Final = 16
"""The shortest salt for a new password."""
SALT_BITS: Final = 130
"""The randomness of a salt; see `new_salt`."""
SALT_SEED_BYTES: Final = 17
NONCE_BYTES: Final = 24


class Mechanism(NamedTuple):
    """A SCRAM mechanism: its name, its number in requests and records, and its hash."""

    name: str
    number: int
    hash_name: str
    hash_bytes: int

    def hash(self, data: bytes) -> bytes:
        """H of the RFC."""
        return hashlib.new(self.hash_name, data).digest()

    def mac(self, key: bytes, message: bytes) -> bytes:
        """HMAC of the RFC."""
        return hmac.digest(key, message, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Hi of the RFC: some milliseconds, without the interpreter lock."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)

    def client_key(self, salted_password: bytes) -> bytes:
        """The key with which a client proves itself."""
        return self.mac(salted_password, b"Client Key")

    def server_key(self, salted_password: bytes) -> bytes:
        """The key with which a server proves itself."""
        return self.mac(salted_password, b"Server Key")


MECHANISMS: Final[Mapping[str, Mechanism]] = {
    each.name: each
    for each in (
        Mechanism("SCRAM-SHA-256", 1, "sha256", 32),
        Mechanism("SCRAM-SHA-512", 2, "sha512", 64),
    )
}
BY_NUMBER: Final[Mapping[int, Mechanism]] = {each.number: each for each in MECHANISMS.values()}


class Credential(NamedTuple):
    """What a server knows of a user's password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential({self.iterations} iterations)"


def credential_of(
    mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int
) -> Credential:
    """The credential for a salted password."""
    stored_key = mechanism.hash(mechanism.client_key(salted_password))
    return Credential(salt, stored_key, mechanism.server_key(salted_password), iterations)


class NewPassword(NamedTuple):
    """What sets a password: the salted password for one mechanism."""

    mechanism: int
    salt: bytes
    salted_password: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"NewPassword({self.mechanism}, {self.iterations} iterations)"


def new_salt(seed: bytes) -> bytes:
    """A salt from random bytes, as the tools of Apache Kafka write one: a number in base 36.

    A broker shows salts to strangers, and makes them up for users that do not exist. If all look
    alike, they do not tell who exists.
    """
    assert len(seed) == SALT_SEED_BYTES
    number = int.from_bytes(seed, "big") >> (8 * SALT_SEED_BYTES - SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


def new_password(
    mechanism: Mechanism, password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS
) -> NewPassword:
    """Salts a password; the salt must be fresh."""
    assert len(salt) >= SALT_BYTES, "a short salt may be that of another password"
    salted = mechanism.salted_password(password, salt, iterations)
    return NewPassword(mechanism.number, salt, salted, iterations)


def attributes(message: bytes) -> dict[str, str]:
    """Parses `r=...,s=...,i=...`. A value may contain equal signs."""
    found: dict[str, str] = {}
    for part in message.decode("utf-8", "replace").split(","):
        name, equals, value = part.partition("=")
        if equals:
            found[name] = value
    return found


def exclusive_or(left: bytes, right: bytes) -> bytes:
    """The two byte strings, of one length, combined."""
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


def escape_name(name: str) -> str:
    """A user's name as it is in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str | None:
    """The user's name in a message; None if an equal sign is not one of the two escapes."""
    parts = text.split("=")
    for index, part in enumerate(parts[1:], 1):
        code, rest = part[:2], part[2:]
        if code not in ("2C", "3D"):
            return None
        parts[index] = ("," if code == "2C" else "=") + rest
    return "".join(parts)


def to_base64(data: bytes) -> str:
    """Base64 with its padding."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes | None:
    """The bytes; None if the text is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
