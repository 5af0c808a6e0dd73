"""What logins share: the thread that hashes, and the settings of a listener with TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.base.scram import Mechanism
from fencepost.client.blocking import connect
from fencepost.client.failures import AuthenticationFailed, ClientError
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from tests.broker.raw import RawClient
from tests.broker.security.certificates import Authority, tls_config
from tests.foreign_clients.test_sasl import add_alice

pytestmark = pytest.mark.interpreted  # A hash that the test holds up.

CLIENTS = 100


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    with fencepost.Broker(config=config) as running:
        running.call(add_alice)
        yield running


def test_a_hundred_passwords_are_hashed_while_others_are_served(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hash is held up until a stranger was served behind all logins."""
    go_on = threading.Event()
    threads: set[str] = set()
    hash_really = Mechanism.salted_password

    def held(self: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
        threads.add(threading.current_thread().name)
        assert go_on.wait(30)
        return hash_really(self, password, salt, iterations)

    monkeypatch.setattr(Mechanism, "salted_password", held)
    clients = [RawClient(broker.bootstrap_servers) for _ in range(CLIENTS)]
    sent = []
    for client in clients:
        client.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        request = SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
        sent.append(client.send(ApiKey.SASL_AUTHENTICATE, 2, request))
    with RawClient(broker.bootstrap_servers) as stranger:
        form = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert stranger.call(ApiKey.API_VERSIONS, 3, form).error_code == 0
    go_on.set()
    for client, number in zip(clients, sent, strict=True):
        assert client.reply(ApiKey.SASL_AUTHENTICATE, 2, number).error_code == 0
        client.close()
    (name,) = threads
    assert name.startswith("fencepost-hasher")


def test_our_client_says_that_its_connection_ended_in_the_login(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.broker.security.hash_queue.MAX_WAITING", 0)
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "pencil",
        "default.api.timeout.ms": "500",
    }
    with (
        pytest.raises(ClientError, match="no answer to the login") as caught,
        connect(broker.bootstrap_servers, options) as cluster,
    ):
        cluster.metadata(())
    assert not isinstance(caught.value, AuthenticationFailed), "a retry may succeed"


def test_a_broker_stops_while_passwords_wait_for_their_hash(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def held(self: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
        started.set()
        assert go_on.wait(30)
        return b""

    monkeypatch.setattr(Mechanism, "salted_password", held)
    clients = [RawClient(broker.bootstrap_servers) for _ in range(3)]
    for client in clients:
        client.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        client.send(
            ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0pencil")
        )
    assert started.wait(30)
    broker.stop()
    go_on.set()
    for client in clients:
        assert client.is_closed_by_broker()
        client.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_users_log_in_behind_tls(tmp_path: Path, mechanism: str) -> None:
    authority = Authority(tmp_path)
    config = {
        **tls_config(authority),
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    }
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "pencil",
    }
    with fencepost.Broker(config=config) as broker:
        broker.call(add_alice)
        with connect(broker.bootstrap_servers, options) as cluster:
            assert cluster.metadata(()).brokers
