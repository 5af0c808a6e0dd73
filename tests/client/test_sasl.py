"""SCRAM with the examples of the RFCs, and with dishonest servers."""

from __future__ import annotations

import base64

import pytest

from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import Login
from fencepost.client.sasl import ScramExchange, sasl_exchange
from fencepost.client.secret import Secret

# RFC 7677, section 3.
NONCE = base64.b64decode("rOprNGfwEbeRWgbNEkqO")
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def login(
    mechanism: str = "SCRAM-SHA-256", username: str = "user", password: str = "pencil"
) -> Login:
    return Login(mechanism=mechanism, username=username, password=Secret(password))


def test_the_rfc_example_is_reproduced() -> None:
    exchange = sasl_exchange(login(), NONCE)
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.respond(SERVER_FIRST) == CLIENT_FINAL
    assert exchange.respond(SERVER_FINAL) is None


def test_plain_is_one_message() -> None:
    exchange = sasl_exchange(login("PLAIN", "alice", "päss"), NONCE)
    assert exchange.first() == "\0alice\0päss".encode()
    assert exchange.respond(b"") is None


def test_reserved_characters_in_a_user_name_are_escaped() -> None:
    assert sasl_exchange(login(username="a=b,c"), NONCE).first().startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=somebody-elses,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=999999999"),
        SERVER_FIRST.replace(b"i=4096", b"i=-4096"),
        SERVER_FIRST.replace(b"i=4096", "i=4096²".encode()),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000),
        SERVER_FIRST.replace(b"W22ZaJ0", b"!!!"),
        b"",
        b"\xff\xfe",
    ],
)
def test_an_invalid_server_challenge_is_refused(challenge: bytes) -> None:
    exchange = sasl_exchange(login(), NONCE)
    exchange.first()
    with pytest.raises(AuthenticationFailed):
        exchange.respond(challenge)


@pytest.mark.parametrize(
    "final", [b"v=AAAA", b"v=", b"", b"e=other-error", SERVER_FINAL.replace(b"6rri", b"7rri")]
)
def test_a_server_that_cannot_prove_it_knows_the_password_is_refused(final: bytes) -> None:
    exchange = sasl_exchange(login(), NONCE)
    exchange.first()
    exchange.respond(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed):
        exchange.respond(final)


def test_sha_512_gives_a_longer_proof() -> None:
    exchange = ScramExchange(login("SCRAM-SHA-512"), NONCE)
    exchange.first()
    proof = exchange.respond(SERVER_FIRST)
    assert proof is not None
    assert len(base64.b64decode(proof.rpartition(b",p=")[2])) == 64
