"""OAUTHBEARER: tokens of functions and commands, what is sent, and what is said without one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import Login, read_options
from fencepost.client.sasl import sasl_exchange
from fencepost.client.secret import Secret
from fencepost.client.sockets import Link
from fencepost.client.tokens import TokenSource, read_token_source

OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
TOKEN = "planted.token.secret"


def source(**given: Any) -> TokenSource:
    return read_token_source({name.replace("__", "."): value for name, value in given.items()})


def make_token(config: str) -> tuple[str, float, str, dict[str, str]]:
    """What functions for confluent-kafka return."""
    return (f"{TOKEN}.{config}", 1e9, "alice", {"own": "1"})


def test_a_token_is_one_message_with_its_extensions() -> None:
    login = Login(
        mechanism="OAUTHBEARER", password=Secret("t.o.k"), extensions={"logicalCluster": "lkc-1"}
    )
    exchange = sasl_exchange(login, b"")
    assert exchange.first() == b"n,,\x01auth=Bearer t.o.k\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.respond(b"") is None


def test_a_refusal_is_answered_so_that_the_broker_can_end_the_login() -> None:
    exchange = sasl_exchange(Login(mechanism="OAUTHBEARER", password=Secret("t")), b"")
    exchange.first()
    assert exchange.respond(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize("returned", ["  t.o.k\n", ("t.o.k", 1e9), ("t.o.k",)])
def test_a_function_returns_a_token_or_a_tuple(returned: Any) -> None:
    token = source(oauth_cb=lambda config: returned).get()
    assert token.text.reveal() == "t.o.k"
    assert token.extensions == {}


def test_a_function_gets_its_config_and_may_add_extensions() -> None:
    token = source(
        oauth_cb=make_token,
        sasl__oauthbearer__config="scope",
        sasl__oauthbearer__extensions="pool=p, own=0",
    ).get()
    assert token.text.reveal() == f"{TOKEN}.scope"
    assert token.extensions == {"pool": "p", "own": "1"}


def test_every_connection_gets_a_new_token() -> None:
    made = iter(["one", "two"])
    tokens = source(oauth_cb=lambda config: next(made))
    assert [tokens.get().text.reveal() for _ in range(2)] == ["one", "two"]


def test_a_command_prints_the_token() -> None:
    assert source(sasl__oauthbearer__token__command="echo t.o.k").get().text.reveal() == "t.o.k"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "exit code 3"),
        ("true", "returned no token"),
        ("echo two words", "more than a token"),
        (f"echo {TOKEN} >&2; exit 1", "run it by hand"),
    ],
)
def test_a_command_without_a_token_says_so_and_shows_nothing(command: str, said: str) -> None:
    with pytest.raises(AuthenticationFailed, match=said) as failed:
        source(sasl__oauthbearer__token__command=command).get()
    assert TOKEN not in str(failed.value)


def test_a_command_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.client.tokens.COMMAND_SECONDS", 0.1)
    with pytest.raises(AuthenticationFailed, match="took longer"):
        source(sasl__oauthbearer__token__command="exec sleep 60").get()


@pytest.mark.parametrize("returned", [None, "", 7, (), (None, 1.0), b"bytes"])
def test_a_function_without_a_token_says_so(returned: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="returned no token"):
        source(oauth_cb=lambda config: returned).get()


def test_a_function_that_fails_is_named() -> None:
    def fail(config: str) -> str:
        raise OSError("the identity provider is away")

    with pytest.raises(AuthenticationFailed, match="oauth_cb failed: OSError: the identity"):
        source(oauth_cb=fail).get()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"oauth_cb": make_token, "sasl.oauthbearer.token.command": "echo x"},
        {"oauth_cb": "not a function"},
        {"oauth_cb": make_token, "sasl.oauthbearer.extensions": "nothing"},
    ],
)
def test_options_need_one_source_of_tokens(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_options("a:1", {**OAUTH, **given})


def test_options_can_be_sent_to_other_processes_and_print_no_token() -> None:
    options = read_options("a:1", {**OAUTH, "oauth_cb": make_token})
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.login is not None
    assert again.login.tokens is not None
    shown = repr([options, again.login.tokens, again.login.tokens.get()])
    assert TOKEN not in shown


def test_a_link_begins_with_a_token_of_its_own() -> None:
    made = iter(["one", "two"])
    options = read_options("127.0.0.1:1", {**OAUTH, "oauth_cb": lambda config: next(made)})

    class NoDice:
        def bytes(self, count: int) -> bytes:
            return bytes(count)

    links = [Link(options.bootstrap[0], options, NoDice()) for _ in range(2)]
    logins = [link.conversation._login for link in links]
    assert [each.password.reveal() for each in logins if each is not None] == ["one", "two"]
