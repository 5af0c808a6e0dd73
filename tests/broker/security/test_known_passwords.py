"""The last good password of each user, which is not hashed a second time."""

from __future__ import annotations

import os

import pytest

from fencepost.base.scram import Credential
from fencepost.broker.security import known_passwords
from fencepost.broker.security.known_passwords import KnownPasswords

CREDENTIAL = Credential(b"salt", b"stored", b"server", 4096)


def test_only_the_last_good_password_of_a_user_is_known() -> None:
    known = KnownPasswords(os.urandom)
    assert not known.has("alice", CREDENTIAL, "pencil")
    known.keep("alice", CREDENTIAL, "chalk")
    known.keep("alice", CREDENTIAL, "pencil")
    assert known.has("alice", CREDENTIAL, "pencil")
    for user, password in (("alice", "chalk"), ("alice", ""), ("bob", "pencil"), ("", "pencil")):
        assert not known.has(user, CREDENTIAL, password)
    assert known.has("alice", CREDENTIAL, "pencil"), "guesses make nobody forget"


@pytest.mark.parametrize(
    "other",
    [
        CREDENTIAL._replace(salt=b"other"),
        CREDENTIAL._replace(stored_key=b"other"),
        CREDENTIAL._replace(server_key=b"other"),
        CREDENTIAL._replace(iterations=8192),
    ],
)
def test_another_credential_makes_it_unknown_for_good(other: Credential) -> None:
    known = KnownPasswords(os.urandom)
    known.keep("alice", CREDENTIAL, "pencil")
    assert not known.has("alice", other, "pencil")
    assert not known.has("alice", CREDENTIAL, "pencil")


def test_every_process_has_its_own_key() -> None:
    drawn = []

    def draw(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    for _ in range(2):
        known = KnownPasswords(draw)
        known.keep("alice", CREDENTIAL, "pencil")
        known.keep("bob", CREDENTIAL, "pencil")
    assert len(set(drawn)) == len(drawn) == 2
    assert min(map(len, drawn)) >= 32


def test_a_bounded_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_passwords, "MAX_KNOWN", 2)
    known = KnownPasswords(os.urandom)
    for user in ("alice", "bob", "bob", "carol"):
        known.keep(user, CREDENTIAL, "pencil")
    assert [known.has(user, CREDENTIAL, "pencil") for user in ("alice", "bob", "carol")] == [
        False,
        True,
        True,
    ]


def test_nothing_that_is_kept_prints_a_password() -> None:
    known = KnownPasswords(os.urandom)
    known.keep("alice", CREDENTIAL, "pencil")
    assert "pencil" not in repr(vars(known))
