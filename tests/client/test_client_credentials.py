"""Tokens of an identity provider on loopback, by the option names of Java, Spark and librdkafka."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import read_options
from fencepost.client.tokens import Token

OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SECRET = "planted/secret:+"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


class Provider:
    """An identity provider that answers as told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status = 200
        self.answer: Any = {"access_token": "t.1", "expires_in": 3600}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                login = base64.b64decode(self.headers["Authorization"].split()[1]).decode()
                provider.asked.append((login, body))
                self.send_response(provider.status)
                self.end_headers()
                self.wfile.write(json.dumps(provider.answer).encode())

            def log_message(self, *_: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider()
    yield running
    running.close()


def token(url: str, **given: str) -> Token:
    options = read_options("a:1", {**OAUTH, ENDPOINT: url, **given})
    again = pickle.loads(pickle.dumps(options))
    assert SECRET not in repr(again)
    assert again.login is not None
    assert again.login.tokens is not None
    found: Token = again.login.tokens.get()
    return found


JAVA = {"sasl.jaas.config": f'{MODULE} clientId="me" clientSecret="{SECRET}" scope="kafka";'}
VENDOR = {"sasl.jaas.config": f"kafkashaded.{JAVA['sasl.jaas.config']}"}
NEWER_JAVA = {
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    "sasl.oauthbearer.scope": "kafka",
}
LIBRDKAFKA = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.scope": "kafka",
}


@pytest.mark.parametrize("given", [JAVA, VENDOR, NEWER_JAVA, LIBRDKAFKA])
def test_the_names_of_every_client_lead_to_the_same_request(
    provider: Provider, given: dict[str, str]
) -> None:
    assert token(provider.url, **given).text.reveal() == "t.1"
    assert provider.asked == [
        ("me:planted%2Fsecret%3A%2B", "grant_type=client_credentials&scope=kafka")
    ]


def test_extensions_of_the_login_module_travel_beside_the_token(provider: Provider) -> None:
    module = f'{MODULE} clientId="me" clientSecret="x" extension_logicalCluster="lkc-1";'
    found = token(provider.url, **{"sasl.jaas.config": module})
    assert found.extensions == {"logicalCluster": "lkc-1"}


def test_a_token_is_kept_for_most_of_its_life_and_asked_for_again_after_it(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    provider.answer = {"access_token": "t.1", "expires_in": 100}
    assert [token(provider.url, **JAVA).text.reveal() for _ in range(3)] == ["t.1"] * 3
    assert len(provider.asked) == 1
    provider.answer = {"access_token": "t.2", "expires_in": 100}
    now += 80
    assert token(provider.url, **JAVA).text.reveal() == "t.2"


def test_a_token_without_a_lifetime_is_not_kept(provider: Provider) -> None:
    provider.answer = {"access_token": "t.1"}
    for _ in range(2):
        token(provider.url, **JAVA)
    assert len(provider.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, {"error": "invalid_client"}, "refused client me: HTTP 401 .*invalid_client"),
        (200, {"token": "x"}, "returned no access_token"),
        (200, ["x"], "returned no access_token"),
        (200, {"access_token": "two words"}, "more than a token"),
    ],
)
def test_a_provider_without_a_token_is_quoted_and_the_secret_is_not(
    provider: Provider, status: int, answer: Any, said: str
) -> None:
    provider.status, provider.answer = status, answer
    with pytest.raises(AuthenticationFailed, match=said) as failed:
        token(provider.url, **JAVA)
    assert SECRET not in str(failed.value)


def test_a_provider_that_is_away_is_named(provider: Provider) -> None:
    provider.close()
    with pytest.raises(AuthenticationFailed, match=f"no token from {provider.url}"):
        token(provider.url, **JAVA)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({ENDPOINT: "http://idp.example/token"} | JAVA, "must begin with https"),
        ({ENDPOINT: "file:///etc/passwd"} | JAVA, "must begin with https"),
        ({ENDPOINT: "https://idp.example"}, "client.credentials.client.id, or clientId"),
        ({ENDPOINT: "https://idp.example", "oauth_cb": str} | JAVA, "one source of tokens"),
        (JAVA, "one source of tokens"),
        ({"sasl.mechanism": "PLAIN"} | JAVA, "set sasl.mechanism=OAUTHBEARER"),
        (
            {
                ENDPOINT: "https://idp.example",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
                'required username="a" password="b";',
            },
            "OAUTHBEARER, but the login module",
        ),
    ],
)
def test_options_that_do_not_fit_say_what_is_missing(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_options("a:1", OAUTH | given)


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.mechanism": "AWS_MSK_IAM"},
        {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        },
    ],
)
def test_msk_iam_is_refused_with_the_line_that_works(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options("a:1", OAUTH | given)
    assert "sasl.mechanism=OAUTHBEARER" in str(refused.value)
    command = str(refused.value).partition("token.command=")[2].partition(", or in Python")[0]
    options = read_options("a:1", OAUTH | {"sasl.oauthbearer.token.command": command})
    assert options.login is not None
