"""The last good password of each user of PLAIN, so that only the first login hashes it slowly.

What is kept is an HMAC with a key of this process, and the credential that the password was checked
against. Every use compares both: a user who was removed, or has another credential, is unknown
again. Only a good password is kept, so a guess costs what it did before, and takes as long.

Somebody who reads the memory of the process can test guesses faster with this than with the
credential beside it. They could also read passwords there, as clients send them.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, NamedTuple

from fencepost.base.scram import Credential

MAX_KNOWN: Final = 10_000
"""Users whose passwords are kept, of some 400 bytes each; the one kept first goes first."""

KEY_BYTES: Final = 32


class _Known(NamedTuple):
    credential: Credential
    digest: bytes


class KnownPasswords:
    """Good passwords, by user."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        """`draw` returns random bytes; it is called once, for the first good password."""
        self._draw: Final = draw
        self._key = b""
        self._known: dict[str, _Known] = {}

    def has(self, user: str, credential: Credential, password: str) -> bool:
        """Whether the password is the last good one, and the credential is still the same."""
        known = self._known.get(user)
        if known is None:
            return False
        if known.credential != credential:
            del self._known[user]
            return False
        return hmac.compare_digest(known.digest, self._digest(user, password))

    def keep(self, user: str, credential: Credential, password: str) -> None:
        """Keeps a password that was found good with this credential."""
        if not self._key:
            self._key = self._draw(KEY_BYTES)
        self._known.pop(user, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[user] = _Known(credential, self._digest(user, password))

    def _digest(self, user: str, password: str) -> bytes:
        # A message of PLAIN ends a name with a zero byte, so no other pair has these bytes.
        return hmac.digest(self._key, f"{user}\0{password}".encode(), "sha256")
