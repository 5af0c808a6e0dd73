"""The broker's side of PLAIN and SCRAM, as state machines without I/O.

`respond(message)` returns what the exchange has come to:

    Challenge   send these bytes, and pass on the client's next message
    Accepted    the client is this user; send these bytes, which prove the broker
    Refused     the client is not who it says it is, or does not speak the mechanism
    Hashing     a password must be hashed first: run `work` off the loop, it returns one of the
                two before

An exchange never says whether a user exists. For an unknown user it goes through the same messages
and the same arithmetic, with a credential that nobody has the password of (`UnknownUsers`), and
compares at the end like with any other. `Refused.reason` is for the broker's log alone.

SCRAM has two messages of the client. Which one is read in which state is the table `_SCRAM`; a pair
that is not there is refused, so an exchange that has ended refuses everything.

    FIRST     n,,n=alice,r=<client nonce>           -> r=<both nonces>,s=<salt>,i=<iterations>
    FINAL     c=biws,r=<both nonces>,p=<proof>      -> v=<server signature>
    DONE
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from fencepost.base.scram import (
    BY_NUMBER,
    DEFAULT_ITERATIONS,
    SALT_SEED_BYTES,
    Credential,
    Mechanism,
    attributes,
    exclusive_or,
    from_base64,
    new_salt,
    to_base64,
    unescape_name,
)
from fencepost.broker.security.known_passwords import KnownPasswords

PLAIN: Final = "PLAIN"

MAX_NAME_BYTES: Final = 1024
"""The longest name or password of a PLAIN message, and the longest SCRAM message is four of it.
Longer ones are refused before anything is computed with them."""


class Challenge(NamedTuple):
    """The next message for the client."""

    message: bytes


class Accepted(NamedTuple):
    """The client is this user."""

    user: str
    message: bytes


class Refused(NamedTuple):
    """The client is not let in."""

    reason: str


class Hashing(NamedTuple):
    """The answer needs a slow hash."""

    work: Callable[[], Accepted | Refused]
    keep: Callable[[], None]
    """To be called in the loop if it was accepted: the next login is spared the hash."""


Step = Challenge | Accepted | Refused | Hashing


class Exchange(Protocol):
    """The broker's side of one authentication."""

    def respond(self, message: bytes) -> Step: ...


class UnknownUsers:
    """Credentials for users that do not exist: always the same for a name, and of no password.

    Every broker of a cluster must show the same salt, before and after a restart, or the salt would
    tell. So it follows from the cluster's id, which clients get to see only after a login.
    """

    def __init__(self, cluster_id: str) -> None:
        self._key = f"unknown users of {cluster_id}".encode()

    def credential(self, mechanism: Mechanism, user: str) -> Credential:
        """The credential for a name. Its keys are not hashes of anything known."""
        name = f"{mechanism.name} {user}".encode("utf-8", "surrogatepass")
        salt = new_salt(hmac.digest(self._key, name, "sha256")[:SALT_SEED_BYTES])
        stored_key = mechanism.mac(self._key, b"stored key " + name)
        server_key = mechanism.mac(self._key, b"server key " + name)
        return Credential(salt, stored_key, server_key, DEFAULT_ITERATIONS)


Users = Mapping[str, Mapping[int, Credential]]
"""Credentials by user and number of the mechanism, as the metadata log has them."""


# -- SCRAM
# -------------------------------------------------------------------------------------------------


class State(Enum):
    """Where a SCRAM exchange is."""

    FIRST = "first"
    """The client has to say who it is."""
    FINAL = "final"
    """The client has to prove it."""
    DONE = "done"
    """Accepted or refused: no further message is answered."""


class ClientFirst(NamedTuple):
    """The client's first message."""

    user: str
    nonce: str
    bare: bytes
    """The message without its header, which both sides sign."""


class ClientFinal(NamedTuple):
    """The client's last message."""

    nonce: str
    proof: bytes
    without_proof: bytes


_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")
"""Printable ASCII without the comma (RFC 5802, section 7)."""


class ScramExchange:
    """One exchange of SCRAM."""

    def __init__(
        self, mechanism: Mechanism, users: Users, unknown: UnknownUsers, nonce: bytes
    ) -> None:
        """The nonce must be fresh."""
        self.state = State.FIRST
        self._mechanism = mechanism
        self._users = users
        self._unknown = unknown
        self._nonce = to_base64(nonce).rstrip("=")
        self._header = ""
        self._user = ""
        self._is_known = False
        self._credential: Credential | None = None
        self._signed = b""

    def respond(self, message: bytes) -> Step:
        """Goes on with a message of the client."""
        parsed = parse_scram(message)
        serve = None if isinstance(parsed, str) else _SCRAM.get((self.state, type(parsed)))
        if serve is None:
            self.state = State.DONE
            return Refused(parsed if isinstance(parsed, str) else "a message out of order")
        self.state, step = serve(self, parsed)
        return step

    def challenge(self, first: ClientFirst) -> tuple[State, Step]:
        """Answers the first message."""
        self._user = first.user
        self._nonce = first.nonce + self._nonce
        # Both are computed for every user, so that neither can be told by the time it takes.
        made_up = self._unknown.credential(self._mechanism, first.user)
        known = self._users.get(first.user, {}).get(self._mechanism.number)
        self._is_known = known is not None
        self._credential = credential = made_up if known is None else known
        challenge = (
            f"r={self._nonce},s={to_base64(credential.salt)},i={credential.iterations}".encode()
        )
        self._signed = first.bare + b"," + challenge
        return State.FINAL, Challenge(challenge)

    def verify(self, final: ClientFinal) -> tuple[State, Step]:
        """Answers the last message."""
        mechanism, credential = self._mechanism, self._credential
        assert credential is not None, "the table has led here"
        signed = self._signed + b"," + final.without_proof
        signature = mechanism.mac(credential.stored_key, signed)
        answer = b"v=" + to_base64(mechanism.mac(credential.server_key, signed)).encode()
        is_this_exchange = hmac.compare_digest(final.nonce.encode(), self._nonce.encode())
        is_whole = len(final.proof) == mechanism.hash_bytes
        client_key = exclusive_or(final.proof if is_whole else signature, signature)
        is_proved = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if is_this_exchange and is_whole and is_proved and self._is_known:
            return State.DONE, Accepted(self._user, answer)
        return State.DONE, Refused("wrong password" if self._is_known else "unknown user")


_SCRAM: Final[
    Mapping[
        tuple[State, type[ClientFirst | ClientFinal]],
        Callable[[ScramExchange, Any], tuple[State, Step]],
    ]
] = {
    (State.FIRST, ClientFirst): ScramExchange.challenge,
    (State.FINAL, ClientFinal): ScramExchange.verify,
}


def parse_scram(message: bytes) -> ClientFirst | ClientFinal | str:
    """A message of a client, or what is wrong with it."""
    if len(message) > 4 * MAX_NAME_BYTES:
        return "a message that is too long"
    try:
        text = message.decode()
    except UnicodeDecodeError:
        return "a message that is not UTF-8"
    return _parse_final(text) if text.startswith("c=") else _parse_first(text)


def _parse_first(text: str) -> ClientFirst | str:
    header, bare = text[:3], text[3:]
    if header != "n,,":
        # "p=..." wants channel binding; "y,," and a name to act as ("n,a=bob,") are refused too:
        # Kafka accepts the first alone, and no client sends the others.
        return "a message that is not SCRAM's first"
    given = attributes(bare.encode())
    if "m" in given:
        return "a mandatory extension"
    if given.get("tokenauth", "").lower() == "true":
        return "a delegation token, which this broker does not support"
    user = unescape_name(given.get("n", ""))
    nonce = given.get("r", "")
    if not user or not bare.startswith("n=") or _NONCE.fullmatch(nonce) is None:
        return "a first message without a name or a nonce"
    return ClientFirst(user, nonce, bare.encode())


def _parse_final(text: str) -> ClientFinal | str:
    without_proof, separator, encoded = text.rpartition(",p=")
    given = attributes(without_proof.encode())
    proof = from_base64(encoded)
    if not separator or given.get("c") != "biws" or "r" not in given or proof is None:
        return "a last message without a nonce or a proof"
    return ClientFinal(given["r"], proof, without_proof.encode())


# -- PLAIN
# -------------------------------------------------------------------------------------------------


class PlainExchange:
    """One exchange of PLAIN: a single message with name and password.

    With `passwords`, those of the listener's JAAS setting, they are the only users. Otherwise the
    users are those of SCRAM: the password is salted and hashed as theirs were, unless it is known
    to be good.
    """

    def __init__(
        self,
        users: Users,
        unknown: UnknownUsers,
        known: KnownPasswords,
        passwords: Mapping[str, bytes] | None,
    ) -> None:
        self._users = users
        self._unknown = unknown
        self._known = known
        self._passwords = passwords

    def respond(self, message: bytes) -> Step:
        """Goes on with the client's message."""
        parts = message.split(b"\0")
        if len(parts) != 3 or any(len(part) > MAX_NAME_BYTES for part in parts):
            return Refused("a message that is not PLAIN's")
        try:
            acting, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            return Refused("a message that is not UTF-8")
        if not user or not password or acting not in ("", user):
            return Refused("no name, no password, or another name to act as")
        if self._passwords is not None:
            return self._compare(user, password.encode(), self._passwords)
        return self._hash(user, password)

    def _compare(self, user: str, given: bytes, passwords: Mapping[str, bytes]) -> Step:
        # Digests have one length, so the time says nothing about that of the password.
        expected = hmac.digest(b"PLAIN", passwords.get(user, given), "sha256")
        is_equal = hmac.compare_digest(hmac.digest(b"PLAIN", given, "sha256"), expected)
        return _judge(user, is_known=user in passwords, is_proved=is_equal)

    def _hash(self, user: str, password: str) -> Step:
        credentials = self._users.get(user, {})
        mechanism = BY_NUMBER[min(credentials, default=min(BY_NUMBER))]
        made_up = self._unknown.credential(mechanism, user)
        credential = credentials.get(mechanism.number, made_up)
        if self._known.has(user, credential, password):
            return Accepted(user, b"")

        def work() -> Accepted | Refused:
            salted = mechanism.salted_password(password, credential.salt, credential.iterations)
            stored_key = mechanism.hash(mechanism.client_key(salted))
            is_equal = hmac.compare_digest(stored_key, credential.stored_key)
            return _judge(user, is_known=bool(credentials), is_proved=is_equal)

        return Hashing(work, partial(self._known.keep, user, credential, password))


def _judge(user: str, *, is_known: bool, is_proved: bool) -> Accepted | Refused:
    if is_known and is_proved:
        return Accepted(user, b"")
    return Refused("wrong password" if is_known else "unknown user")
