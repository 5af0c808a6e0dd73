"""Connections to a listener with SASL, from their first request to their end."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import re
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.scram import Mechanism
from fencepost.broker.log_format import JsonLines
from fencepost.broker.security.sessions import ADMITTED, TRANSITIONS, Event, State
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from fencepost.wire.framing import INBOX_BYTES
from tests.broker.node_stage import Stage
from tests.broker.raw import ClosedError, frame_of
from tests.broker.security.logging_in import (
    ALL,
    SCRAM,
    give_passwords,
    handshake,
    log_in,
    say,
    secured,
    setting,
    upsertion,
)
from tests.halves import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.broker.node_stage import Line

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
ILLEGAL = ErrorCode.ILLEGAL_SASL_STATE
REAUTH = {"connections.max.reauth.ms": "10000"}


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = secured()
    yield made
    made.abandon()


def is_let_in(line: Line) -> bool:
    """Whether a request of a user is answered."""
    try:
        line.call(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
    except ClosedError:
        return False
    return True


# -- the tables


def test_what_a_session_may_become_follows_from_what_it_admits() -> None:
    asks = {
        Event.MECHANISM_CHOSEN: ApiKey.SASL_HANDSHAKE,
        Event.LOGGED_IN: ApiKey.SASL_AUTHENTICATE,
    }
    for state, event in itertools.product(State, Event):
        if event is Event.REFUSED:
            assert ((state, event) in TRANSITIONS) == (state is not State.FAILED)
        else:
            assert ((state, event) in TRANSITIONS) == (asks[event] in ADMITTED[state])


def test_nobody_becomes_logged_in_without_an_exchange() -> None:
    to_open = {state for (state, event), then in TRANSITIONS.items() if then is State.OPEN}
    assert to_open == {State.AUTHENTICATE, State.REAUTHENTICATE}


# -- who gets in


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_user_with_the_right_password_is_let_in(
    stage: Stage, mechanism: str, version: int
) -> None:
    give_passwords(stage, upsertion("alice", "pencil", "SCRAM-SHA-512", 8192))
    line = stage.connect()
    reply = log_in(line, mechanism=mechanism, version=version)
    assert (reply.error_code, reply.session_lifetime_ms) == (0, 0)
    assert line.connection.principal == "User:alice"
    assert is_let_in(line)


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "Pencil"), ("alice", "chalk"), ("carol", "pencil"), ("alice ", "pencil")],
)
def test_everybody_else_gets_one_answer_after_one_time_and_is_closed(
    stage: Stage, mechanism: str, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = stage.connect()
    began = stage.loop.time()
    reply = log_in(line, user, password, mechanism)
    assert reply.error_code == FAILED
    assert reply.error_message == (
        f"Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {mechanism}"
    )
    assert bytes(reply.auth_bytes) == b""
    assert stage.loop.time() - began == pytest.approx(0.1)
    assert not is_let_in(line)
    (logged,) = [each for each in caplog.records if "failed" in each.getMessage()]
    assert logged.levelno == logging.WARNING
    fields = json.loads(JsonLines().format(logged))
    assert (fields["event"], fields["mechanism"]) == ("login_failed", mechanism)
    assert fields["why"] in ("wrong password", "unknown user")
    assert fields["client"] == line.connection.client_name
    assert user not in logged.getMessage()
    assert password not in logged.getMessage()


def test_an_unknown_user_gets_a_challenge_as_lasting_as_that_of_others(stage: Stage) -> None:
    def challenge(user: str, on: Stage) -> bytes:
        line = on.connect()
        handshake(line)
        reply = say(line, f"n,,n={user},r=abc".encode())
        assert reply.error_code == 0
        return bytes(reply.auth_bytes).partition(b",s=")[2]

    first, other = challenge("carol", stage), challenge("dave", stage)
    assert first != other
    salt, iterations = first.split(b",")
    assert iterations == b"i=4096"
    # As UserScramCredentialUpsertion of Kafka makes salts, and `new_salt`: 130 bits in base 36.
    assert re.fullmatch(b"[0-9a-z]{20,26}", base64.b64decode(salt))
    assert challenge("carol", stage) == first
    again = stage.kill().again()
    assert challenge("carol", again) == first
    again.abandon()


def test_mechanisms_that_are_not_enabled_are_refused_with_the_list() -> None:
    stage = secured({"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    line = stage.connect()
    reply = handshake(line, "PLAIN")
    assert reply.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert reply.mechanisms == ["SCRAM-SHA-512"]
    assert not is_let_in(line)
    stage.abandon()


def test_a_handshake_that_announces_bare_tokens_is_refused(stage: Stage) -> None:
    line = stage.connect()
    assert handshake(line, version=0).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not is_let_in(line)


def test_passwords_of_a_jaas_setting_are_the_only_ones_of_plain() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_admin="admin-secret" user_alice="other";'
    )
    stage = secured({"listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas})
    assert log_in(stage.connect(), "admin", "admin-secret", "PLAIN").error_code == 0
    assert log_in(stage.connect(), "alice", "other", "PLAIN").error_code == 0
    for user, password in (("alice", "pencil"), ("bob", "chalk"), ("admin", ""), ("", "")):
        assert log_in(stage.connect(), user, password, "PLAIN").error_code == FAILED
    assert log_in(stage.connect(), "bob", "chalk").error_code == 0
    stage.abandon()


# -- what is served before


@pytest.mark.parametrize("api", sorted(API))
def test_before_a_handshake_two_requests_are_served_and_others_close_the_connection(
    stage: Stage, api: ApiKey
) -> None:
    line = stage.connect()
    if api is ApiKey.API_VERSIONS:
        form = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert line.call(api, API[api].max_version, form).error_code == 0
    elif api is ApiKey.SASL_HANDSHAKE:
        assert handshake(line).error_code == 0
    else:
        line.send_bytes(struct.pack(">ihhih", 10, api, API[api].min_version, 1, -1))
        stage.settle()
        assert line.is_closed
        assert not line.replies


def test_an_unknown_api_before_a_login_closes_the_connection(stage: Stage) -> None:
    line = stage.connect()
    line.send_bytes(struct.pack(">ihhih", 10, 999, 0, 1, -1))
    stage.settle()
    assert line.is_closed


def test_between_handshake_and_login_only_the_login_is_served(stage: Stage) -> None:
    for request in (
        (ApiKey.METADATA, 12, MetadataRequest(topics=[])),
        (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=SCRAM)),
    ):
        line = stage.connect()
        handshake(line)
        with pytest.raises(ClosedError):
            line.call(*request)


def test_requests_behind_a_failing_login_are_not_served(stage: Stage) -> None:
    line = stage.connect()
    handshake(line, "PLAIN")
    wrong = SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")
    right = SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
    line.send_bytes(
        frame_of(ApiKey.SASL_AUTHENTICATE, 2, wrong, 50)
        + frame_of(ApiKey.SASL_AUTHENTICATE, 2, right, 51)
        + frame_of(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 52)
    )
    reply = line.reply(ApiKey.SASL_AUTHENTICATE, 2, 50)
    assert reply.error_code == FAILED
    stage.settle()
    assert line.is_closed
    assert not line.replies


def test_requests_behind_a_good_login_are_served_after_it(stage: Stage) -> None:
    line = stage.connect()
    handshake(line, "PLAIN")
    right = SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
    line.send_bytes(
        frame_of(ApiKey.SASL_AUTHENTICATE, 2, right, 50)
        + frame_of(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 51)
    )
    assert line.reply(ApiKey.METADATA, 12, 51).error_code == 0


def test_a_frame_is_small_before_a_login_and_large_after_it() -> None:
    stage = secured({"sasl.server.max.receive.size": "1000"})
    line = stage.connect()
    line.send_bytes(struct.pack(">i", 1001))
    stage.settle()
    assert line.is_closed
    line = stage.connect()
    log_in(line)
    topics = [f"topic-{number}" for number in range(200)]
    form = MetadataRequest(topics=[MetadataRequestTopic(name=each) for each in topics])
    assert len(line.call(ApiKey.METADATA, 12, form).topics) == len(topics)
    stage.abandon()


def test_a_stranger_takes_nothing_from_the_memory_for_requests() -> None:
    stage = secured({"queued.max.request.bytes": "65536"})
    most = stage.node.config.sasl_server_max_receive_size
    assert most + 4 == INBOX_BYTES, "a larger frame gets a buffer of its own"
    strangers = [stage.connect() for _ in range(5)]
    for line in strangers:
        line.send_bytes(struct.pack(">i", most) + bytes(most - 1))
    refused = stage.connect()
    refused.send_bytes(struct.pack(">i", most + 1))
    stage.settle()
    assert refused.is_closed
    assert not any(line.is_closed for line in strangers)
    assert stage.node.requests.taken_bytes == 0
    known = stage.connect()
    log_in(known)
    topics = [MetadataRequestTopic(name=f"topic-{number}") for number in range(5_000)]
    reply = known.call(ApiKey.METADATA, 12, MetadataRequest(topics=topics))
    assert len(reply.topics) == len(topics), "it has more than 32 KB"
    stage.abandon()


def test_a_listener_without_sasl_has_nothing_to_authenticate() -> None:
    with Stage() as stage:
        assert handshake(stage.connect()).error_code == ILLEGAL
        assert say(stage.connect(), b"n,,n=alice,r=x").error_code == ILLEGAL


@given(st.lists(st.binary(max_size=60), max_size=4), st.sampled_from(ALL), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_no_message_but_the_right_one_lets_a_client_in(
    messages: list[bytes], mechanism: str, first: bool
) -> None:
    stage = SHARED.get()
    line = stage.connect()
    handshake(line, mechanism)
    try:
        if first:
            say(line, b"n,,n=alice,r=abc")
        for message in messages:
            say(line, message)
    except ClosedError:
        pass
    assert line.connection.principal == "User:ANONYMOUS"
    assert not is_let_in(line)
    assert not stage.fatal


@given(st.binary(max_size=80), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_no_bytes_before_or_after_a_login_hurt_the_broker(data: bytes, after: bool) -> None:
    stage = SHARED.get()
    line = stage.connect()
    if after:
        log_in(line)
    line.send_bytes(struct.pack(">i", len(data)) + data)
    stage.settle()
    assert not stage.fatal
    assert not stage.problems
    assert log_in(stage.connect()).error_code == 0


MOVES = {
    "versions": (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
    "handshake": (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN")),
    "right": (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")),
    "wrong": (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0chalk")),
    "metadata": (ApiKey.METADATA, 12, MetadataRequest(topics=[])),
}
RULES = {
    ("new", "versions"): "new",
    ("new", "handshake"): "chosen",
    ("chosen", "right"): "in",
    ("chosen", "wrong"): "failed",
    ("in", "versions"): "in",
    ("in", "metadata"): "in",
    ("in", "handshake"): "chosen",
    ("in", "right"): "in",  # Answered with an error: without a handshake it renews nothing.
    ("in", "wrong"): "in",
}
"""What a client has done, and sends: it is answered, with what follows. Others close."""


@given(
    st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=7),
    st.lists(st.integers(min_value=1, max_value=400), max_size=4),
)
@settings(max_examples=examples(60), deadline=None)
def test_requests_in_any_order_and_cut_anywhere_are_served_as_the_state_of_the_login_allows(
    moves: list[str], cuts: list[int]
) -> None:
    stage = SHARED.get()
    line = stage.connect()
    state, answered = "new", []
    for number, move in enumerate(moves, start=1):
        state = RULES.get((state, move), "closed")
        if state == "closed":
            break
        answered.append((number, move))
        if state == "failed":
            break
    frames = b"".join(frame_of(*MOVES[move], number) for number, move in enumerate(moves, start=1))
    edges = [0, *sorted(cuts), len(frames)]
    for start, end in itertools.pairwise(edges):
        line.send_bytes(frames[start:end])
    if state != "closed":  # What is closed at once may lose its last replies.
        for number, move in answered:
            api, version, _ = MOVES[move]
            line.reply(api, version, number)
    stage.settle()
    assert set(line.replies) <= (set(dict(answered)) if state == "closed" else set())
    assert line.is_closed is (state in ("closed", "failed"))
    assert not stage.fatal


class _Shared:
    """One stage for all random examples."""

    stage: Stage | None = None

    def get(self) -> Stage:
        if self.stage is None:
            self.stage = secured()
        return self.stage


SHARED = _Shared()


# -- time before a login


def test_a_connection_without_a_login_is_closed_after_a_minute_whatever_it_sends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    silent, stubborn, late = stage.connect(), stage.connect(), stage.connect()
    for _ in range(5):
        stage.advance(10_000)
        stubborn.call(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
    handshake(stubborn)
    log_in(late)
    assert not silent.is_closed
    stage.advance(10_001)
    assert (silent.is_closed, stubborn.is_closed) == (True, True)
    assert caplog.text.count("no login in 60 s") == 2
    stage.advance(100_000)
    assert is_let_in(late)


def test_nothing_is_left_of_connections_that_logged_in_or_left_before() -> None:
    stage = secured(REAUTH)
    user, stranger = stage.connect(), stage.connect()
    log_in(user)
    stranger.connection.close()
    stage.advance(9_000)
    log_in(user)  # A renewal has no time limit of its own.
    assert not user.connection.session._logins.deadlines._waiting  # type: ignore[union-attr]
    stage.abandon()


# -- re-authentication


def test_a_session_is_renewed_in_time_and_lives_on() -> None:
    stage = secured(REAUTH)
    line = stage.connect()
    assert log_in(line).session_lifetime_ms == 10_000
    for _ in range(3):
        stage.advance(9_000)
        assert is_let_in(line)
        assert log_in(line).error_code == 0
    stage.abandon()


def test_an_expired_session_is_closed_by_its_next_request() -> None:
    stage = secured(REAUTH)
    line = stage.connect()
    log_in(line)
    stage.advance(10_000)
    assert not line.is_closed
    assert not is_let_in(line)
    stage.abandon()


@pytest.mark.parametrize("version", [0, 1])
def test_an_expired_session_can_still_be_renewed(version: int) -> None:
    stage = secured(REAUTH)
    line = stage.connect()
    log_in(line, version=version)
    stage.advance(20_000)
    assert log_in(line, version=version).error_code == 0
    assert is_let_in(line)
    stage.abandon()


def test_a_listener_and_a_mechanism_have_their_own_time() -> None:
    stage = secured(
        {
            **REAUTH,
            "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": "1234",
        }
    )
    assert log_in(stage.connect()).session_lifetime_ms == 1234
    assert log_in(stage.connect(), mechanism="PLAIN").session_lifetime_ms == 10_000
    stage.abandon()


def test_the_principal_of_a_session_cannot_change(stage: Stage) -> None:
    line = stage.connect()
    log_in(line)
    reply = log_in(line, "bob", "chalk")
    assert reply.error_code == FAILED
    assert "Cannot change principals during re-authentication" in str(reply.error_message)
    assert line.connection.principal == "User:alice"
    assert not is_let_in(line)


def test_the_mechanism_of_a_session_cannot_change(stage: Stage) -> None:
    line = stage.connect()
    log_in(line)
    reply = log_in(line, mechanism="PLAIN")
    assert reply.error_code == FAILED
    assert "is not supported for reauthentication" in str(reply.error_message)
    assert not is_let_in(line)


def test_a_failed_renewal_ends_the_session(stage: Stage) -> None:
    line = stage.connect()
    log_in(line)
    assert log_in(line, password="wrong").error_code == FAILED
    assert not is_let_in(line)


def test_during_a_renewal_nothing_else_is_served(stage: Stage) -> None:
    line = stage.connect()
    log_in(line)
    handshake(line)
    assert not is_let_in(line)


def test_a_session_that_is_not_renewed_has_nothing_to_authenticate(stage: Stage) -> None:
    line = stage.connect()
    log_in(line)
    assert say(line, b"n,,n=alice,r=x").error_code == ILLEGAL
    assert is_let_in(line)


def test_a_session_outlives_its_password_until_it_is_renewed(stage: Stage) -> None:
    line, other = stage.connect(), stage.connect()
    log_in(line)
    log_in(other, "bob", "chalk")
    request = setting([upsertion("alice", "ballpoint")], [("bob", SCRAM)])
    reply = line.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    assert [each.error_code for each in reply.results] == [0, 0]
    assert is_let_in(line)
    assert is_let_in(other)
    assert log_in(line, password="ballpoint").error_code == 0
    assert log_in(other, "bob", "chalk").error_code == FAILED
    assert log_in(stage.connect(), password="pencil").error_code == FAILED


# -- passwords that are known


def test_a_known_password_is_worth_nothing_once_its_credential_has_changed(stage: Stage) -> None:
    """Also if a tool uses the salt again, as this test does, and if the user comes back."""
    admin = stage.connect()
    log_in(admin)

    def change(request: AlterUserScramCredentialsRequest) -> None:
        reply = admin.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        assert [each.error_code for each in reply.results] == [0]

    def try_plain(password: str) -> int:
        return log_in(stage.connect(), "bob", password, "PLAIN").error_code

    assert [try_plain("chalk"), try_plain("chalk"), try_plain("guess")] == [0, 0, FAILED]
    change(setting([upsertion("bob", "ballpoint")]))
    assert [try_plain("chalk"), try_plain("ballpoint")] == [FAILED, 0]
    change(setting([], [("bob", SCRAM)]))
    assert try_plain("ballpoint") == FAILED
    change(setting([upsertion("bob", "chalk")]))
    assert [try_plain("ballpoint"), try_plain("chalk")] == [FAILED, 0]


@pytest.mark.interpreted
def test_a_good_password_is_hashed_once_and_a_guess_each_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    hash_really = Mechanism.salted_password

    def count(self: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append(password)
        return hash_really(self, password, salt, iterations)

    monkeypatch.setattr(Mechanism, "salted_password", count)
    for password in ("guess", "pencil", "guess", "pencil", "pencil"):
        log_in(stage.connect(), password=password, mechanism="PLAIN")
    assert hashed == ["guess", "pencil", "guess"]


def test_a_known_password_needs_no_place_among_those_that_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log_in(stage.connect(), mechanism="PLAIN").error_code == 0
    monkeypatch.setattr("fencepost.broker.security.hash_queue.MAX_WAITING", 0)
    assert log_in(stage.connect(), mechanism="PLAIN").error_code == 0
    with pytest.raises(ClosedError):
        log_in(stage.connect(), "bob", "chalk", "PLAIN")


# -- many


def test_a_hundred_clients_log_in_at_once(stage: Stage) -> None:
    lines = [stage.connect() for _ in range(100)]
    for line in lines:
        handshake(line, "PLAIN")
    right = SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
    sent = [line.send(ApiKey.SASL_AUTHENTICATE, 2, right) for line in lines]
    for line, number in zip(lines, sent, strict=True):
        assert line.reply(ApiKey.SASL_AUTHENTICATE, 2, number).error_code == 0


def test_a_login_that_cannot_wait_for_its_hash_is_closed_and_not_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client tries a closed connection again; a failed login is the end for most of them."""
    monkeypatch.setattr("fencepost.broker.security.hash_queue.MAX_WAITING", 2)
    lines = [stage.connect() for _ in range(3)]
    for line in lines:
        handshake(line, "PLAIN")
    right = SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
    sent = [line.send(ApiKey.SASL_AUTHENTICATE, 2, right) for line in lines]
    with pytest.raises(ClosedError):
        lines[2].reply(ApiKey.SASL_AUTHENTICATE, 2, sent[2])
    for line, number in zip(lines[:2], sent[:2], strict=True):
        assert line.reply(ApiKey.SASL_AUTHENTICATE, 2, number).error_code == 0
    assert "too many logins wait" in caplog.text
    assert log_in(stage.connect(), mechanism="PLAIN").error_code == 0


def test_a_client_that_leaves_during_its_login_is_forgotten(stage: Stage) -> None:
    for message in (b"\0alice\0pencil", b"\0alice\0wrong"):
        line = stage.connect()
        handshake(line, "PLAIN")
        line.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=message))
        line.wire.close()
        stage.advance(1_000)
    assert not stage.problems
    assert log_in(stage.connect(), mechanism="PLAIN").error_code == 0
