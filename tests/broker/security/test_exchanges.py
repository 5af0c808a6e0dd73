"""The broker's side of PLAIN and SCRAM against RFC 7677, our client, and dishonest clients."""

from __future__ import annotations

import base64
import itertools
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.scram import (
    BY_NUMBER,
    MECHANISMS,
    SALT_SEED_BYTES,
    Credential,
    credential_of,
    escape_name,
    new_salt,
    unescape_name,
)
from fencepost.broker.security.exchanges import (
    Accepted,
    Challenge,
    ClientFinal,
    ClientFirst,
    Hashing,
    PlainExchange,
    Refused,
    ScramExchange,
    State,
    Step,
    UnknownUsers,
    parse_scram,
)
from fencepost.broker.security.known_passwords import KnownPasswords
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import Login
from fencepost.client.sasl import sasl_exchange
from fencepost.client.secret import Secret
from tests.halves import examples

UNKNOWN = UnknownUsers("a-cluster")
NONCE = bytes(range(24))
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SCRAM = MECHANISMS["SCRAM-SHA-256"]


def credential(mechanism: str, password: str, iterations: int = 4096) -> Credential:
    scram = MECHANISMS[mechanism]
    return credential_of(scram, scram.salted_password(password, SALT, iterations), SALT, iterations)


def users(**passwords: str) -> dict[str, dict[int, Credential]]:
    return {
        user: {each.number: credential(each.name, password) for each in BY_NUMBER.values()}
        for user, password in passwords.items()
    }


ALICE = users(alice="pencil")


def scram(mechanism: str = "SCRAM-SHA-256") -> ScramExchange:
    return ScramExchange(MECHANISMS[mechanism], ALICE, UNKNOWN, NONCE)


def plain(passwords: dict[str, bytes] | None = None) -> PlainExchange:
    return PlainExchange(ALICE, UNKNOWN, KnownPasswords(os.urandom), passwords)


def settled(step: Step) -> Step:
    return step.work() if isinstance(step, Hashing) else step


def joined(mechanism: str, user: str, password: str) -> Step:
    """A whole exchange of our client with the broker, without a connection."""
    login = Login(mechanism=mechanism, username=user, password=Secret(password))
    client = sasl_exchange(login, b"client's nonce")
    broker = plain() if mechanism == "PLAIN" else scram(mechanism)
    message: bytes | None = client.first()
    while True:
        assert message is not None
        step = settled(broker.respond(message))
        if isinstance(step, Refused):
            return step
        assert isinstance(step, (Accepted, Challenge))
        message = client.respond(step.message)
        if isinstance(step, Accepted):
            assert message is None
            return step


def test_the_example_of_the_rfc_is_reproduced() -> None:
    # RFC 7677, section 3: its server's nonce is text, so it is put in place of ours.
    exchange = ScramExchange(SCRAM, {"user": {1: credential(SCRAM.name, "pencil")}}, UNKNOWN, NONCE)
    exchange._nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    challenge = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == Accepted("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
def test_our_client_and_broker_agree_on_a_password(mechanism: str) -> None:
    assert isinstance(joined(mechanism, "alice", "pencil"), Accepted)
    assert joined(mechanism, "alice", "chalk") == Refused("wrong password")
    assert joined(mechanism, "carol", "pencil") == Refused("unknown user")


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
@settings(max_examples=examples(40), deadline=None)
def test_names_and_passwords_of_any_characters_work(user: str, password: str) -> None:
    if "\0" in user + password or any("\ud800" <= each <= "\udfff" for each in user + password):
        return
    known = {user: {1: credential(SCRAM.name, password)}}
    login = Login(mechanism=SCRAM.name, username=user, password=Secret(password))
    client = sasl_exchange(login, b"client's nonce")
    broker = ScramExchange(SCRAM, known, UNKNOWN, NONCE)
    challenge = broker.respond(client.first())
    assert isinstance(challenge, Challenge)
    final = client.respond(challenge.message)
    assert final is not None
    step = broker.respond(final)
    assert isinstance(step, Accepted)
    assert step.user == user
    assert client.respond(step.message) is None
    assert unescape_name(escape_name(user)) == user


def test_every_state_refuses_every_message_that_is_not_its_own() -> None:
    first = b"n,,n=alice,r=abc"
    final = b"c=biws,r=abc,p=AAAA"
    own = {State.FIRST: first, State.FINAL: final}
    ways = {State.FIRST: [], State.FINAL: [first], State.DONE: [first, b"nonsense"]}
    for state, message in itertools.product(State, (first, final, b"", b"nonsense")):
        exchange = scram()
        for each in ways[state]:
            exchange.respond(each)
        assert exchange.state is state
        step = exchange.respond(message)
        if own.get(state) == message:
            assert isinstance(step, Challenge | Refused)
        else:
            assert isinstance(step, Refused)
            assert exchange.state is State.DONE


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,r=abc,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,,n=al=ice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=a\xff",
        b"n,,n=alice,r=" + b"a" * 600,
        b"n,,n=" + b"a" * 5000 + b",r=abc",
        b"c=biws,r=abc",
        b"c=biws,p=AAAA",
        b"c=eSws,r=abc,p=AAAA",
        b"c=biws,r=abc,p=!!!!",
    ],
)
def test_a_message_that_is_not_scrams_says_what_is_wrong(message: bytes) -> None:
    assert isinstance(parse_scram(message), str)
    assert isinstance(scram().respond(message), Refused)


@given(st.binary(max_size=100))
@settings(max_examples=examples(300), deadline=None)
def test_no_bytes_break_the_parser(message: bytes) -> None:
    for prefix in (b"", b"n,,n=alice,r=", b"c=biws,r=abc,p="):
        assert isinstance(parse_scram(prefix + message), str | ClientFirst | ClientFinal)
    step = settled(plain().respond(message))
    assert isinstance(step, Refused)


def test_a_proof_for_another_exchange_is_refused() -> None:
    login = Login(mechanism=SCRAM.name, username="alice", password=Secret("pencil"))
    client = sasl_exchange(login, b"client's nonce")
    heard = scram().respond(client.first())
    assert isinstance(heard, Challenge)
    final = client.respond(heard.message)
    assert final is not None
    other = ScramExchange(SCRAM, ALICE, UNKNOWN, NONCE[::-1])
    other.respond(client.first())
    assert isinstance(other.respond(final), Refused)


@pytest.mark.parametrize("proof", [b"", bytes(32), bytes(31), bytes(64)])
def test_a_proof_of_any_length_is_compared(proof: bytes) -> None:
    exchange = scram()
    challenge = exchange.respond(b"n,,n=alice,r=abc")
    assert isinstance(challenge, Challenge)
    nonce = challenge.message.partition(b",")[0]
    step = exchange.respond(b"c=biws," + nonce + b",p=" + base64.b64encode(proof))
    assert step == Refused("wrong password")


def test_a_client_refuses_a_broker_that_does_not_know_the_user() -> None:
    login = Login(mechanism=SCRAM.name, username="carol", password=Secret("pencil"))
    client = sasl_exchange(login, b"client's nonce")
    challenge = scram().respond(client.first())
    assert isinstance(challenge, Challenge)
    client.respond(challenge.message)
    with pytest.raises(AuthenticationFailed, match="could not prove"):
        client.respond(b"v=" + base64.b64encode(bytes(32)))


def test_made_up_salts_look_like_those_of_users() -> None:
    """Kafka's tools, our own and the broker write a number of 130 bits in base 36."""
    assert int(new_salt(b"\xff" * SALT_SEED_BYTES), 36) == 2**130 - 1
    assert int(new_salt((1 << 100).to_bytes(SALT_SEED_BYTES, "big")), 36) == 1 << 94
    for number in range(1000):
        salt = UNKNOWN.credential(SCRAM, f"user-{number}").salt
        assert re.fullmatch(b"[0-9a-z]{20,26}", salt)
        assert int(salt, 36) < 2**130


def test_an_unknown_user_costs_the_same_arithmetic() -> None:
    """Counted, not timed: the hashes and macs of a login are the same in number and order."""
    counted: list[str] = []

    class Counting(type(SCRAM)):  # type: ignore[misc]
        def mac(self, key: bytes, message: bytes) -> bytes:
            counted.append("mac")
            return bytes(super().mac(key, message))

        def hash(self, data: bytes) -> bytes:
            counted.append("hash")
            return bytes(super().hash(data))

    def steps(user: str) -> list[str]:
        counted.clear()
        exchange = ScramExchange(Counting(*SCRAM), ALICE, UNKNOWN, NONCE)
        challenge = exchange.respond(f"n,,n={user},r=abc".encode())
        assert isinstance(challenge, Challenge)
        counted.append("sent")
        nonce = challenge.message.partition(b",")[0]
        exchange.respond(b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32)))
        return counted.copy()

    assert steps("alice") == steps("carol")
    assert "hash" in steps("carol")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice\0pencil",
        b"\0alice\0pencil\0",
        b"\0\0pencil",
        b"\0alice\0",
        b"bob\0alice\0pencil",
        b"\0alice\0\xff",
        b"\0alice\0" + b"a" * 2000,
    ],
)
def test_a_message_that_is_not_plains_is_refused_without_a_hash(message: bytes) -> None:
    assert isinstance(plain().respond(message), Refused)


def test_plain_compares_with_the_passwords_of_the_listener_if_it_has_some() -> None:
    own = {"dave": b"secret"}
    assert isinstance(plain(own).respond(b"\0dave\0secret"), Accepted)
    assert isinstance(plain(own).respond(b"dave\0dave\0secret"), Accepted)
    assert plain(own).respond(b"\0dave\0Secret") == Refused("wrong password")
    assert plain(own).respond(b"\0alice\0pencil") == Refused("unknown user")


def test_nothing_that_an_exchange_keeps_prints_a_secret() -> None:
    known = ALICE["alice"][1]
    shown = repr(known) + repr(settled(plain().respond(b"\0alice\0pencil")))
    for secret in (known.stored_key, known.server_key, known.salt, b"pencil"):
        assert repr(secret) not in shown
        assert secret.hex() not in shown
