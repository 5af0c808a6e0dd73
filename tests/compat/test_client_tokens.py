"""Goal: the client logs in at Apache Kafka with OAUTHBEARER, with unsigned and with signed tokens.

Method: one broker with two listeners. One takes tokens without a signature, as Kafka's examples do;
the other checks RS256 signatures against a key set in a file, issuer, audience and expiry. openssl
makes the keys and the signatures.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.failures import AuthenticationFailed
from fencepost.records.opened import Record
from tools.apache_kafka import ApacheKafka
from tools.processes import free_port

ISSUER, AUDIENCE, KEY_ID = "https://issuer.test", "kafka", "key-1"
OAUTH = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker with two listeners, and the key that it trusts."""

    unsigned: str
    signed: str
    key: Path


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**other: Any) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "scope": "read", "iat": now,
        "exp": now + 3600, **other,
    }  # fmt: skip


def unsigned(given: dict[str, Any]) -> str:
    header = encoded(json.dumps({"alg": "none"}).encode())
    return f"{header}.{encoded(json.dumps(given).encode())}."


def signed(key: Path, given: dict[str, Any]) -> str:
    header = encoded(json.dumps({"alg": "RS256", "typ": "JWT", "kid": KEY_ID}).encode())
    content = f"{header}.{encoded(json.dumps(given).encode())}"
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    done = subprocess.run(command, input=content.encode(), capture_output=True, check=True)
    return f"{content}.{encoded(done.stdout)}"


def make_key(path: Path) -> dict[str, Any]:
    """Writes a private key; returns the public one as a member of a key set."""
    subprocess.run(
        ["openssl", "genrsa", "-out", str(path), "2048"], check=True, capture_output=True
    )
    shown = subprocess.run(
        ["openssl", "rsa", "-in", str(path), "-noout", "-modulus"], check=True, capture_output=True
    )
    modulus = bytes.fromhex(shown.stdout.decode().strip().partition("=")[2])
    return {
        "kty": "RSA", "kid": KEY_ID, "alg": "RS256", "use": "sig", "e": "AQAB",
        "n": encoded(modulus),
    }  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, not found on this machine")
    folder = tmp_path_factory.mktemp("tokens")
    key = folder / "key.pem"
    key_set = folder / "keys.json"
    key_set.write_text(json.dumps({"keys": [make_key(key)]}))
    names = ("PLAINTEXT", "UNSIGNED", "SIGNED", "CONTROLLER")
    ports: dict[str, int] = {}
    while len(set(ports.values())) < len(names):
        ports = {name: free_port() for name in names}
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    jaas = f"{OAUTH}.OAuthBearerLoginModule required"
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners[:-1]),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "UNSIGNED:SASL_PLAINTEXT,SIGNED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.unsigned.oauthbearer.sasl.jaas.config": (
            f'{jaas} unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.signed.oauthbearer.sasl.jaas.config": f"{jaas};",
        "listener.name.signed.oauthbearer.sasl.server.callback.handler.class": (
            f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.signed.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": key_set.as_uri(),
        "listener.name.signed.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.signed.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
    }
    with pytest.MonkeyPatch.context() as patch:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={key_set.as_uri()}"
        patch.setenv("JAVA_TOOL_OPTIONS", allowed)
        broker = ApacheKafka(folder / "data", settings=settings, port=ports["PLAINTEXT"])
    with broker:
        yield Secured(f"127.0.0.1:{ports['UNSIGNED']}", f"127.0.0.1:{ports['SIGNED']}", key)


def options(token: Callable[[str], Any]) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }


def write_and_read(address: str, given: dict[str, Any], topic: str) -> None:
    """One complete transaction."""
    partition = TopicPartition(topic, 0)
    with connect(address, given) as cluster:
        cluster.create_topics([NewTopic(topic, 1)])
        identity = cluster.init_producer_id(f"tx-{topic}")
        with cluster.writer(identity) as writer:
            writer.write_records(partition, [Record(value=b"value")])
            assert writer.flush()[partition].records == 1
        cluster.end_txn(identity, commit=True)
        assert len(list(cluster.records(partition, 0, 1))) == 1


def test_a_transaction_with_a_token_without_a_signature(secured: Secured, topic: str) -> None:
    write_and_read(secured.unsigned, options(lambda _: unsigned(claims())), topic)


def test_a_transaction_with_a_signed_token(secured: Secured, topic: str) -> None:
    write_and_read(secured.signed, options(lambda _: signed(secured.key, claims())), topic)


def test_a_command_may_print_the_token(secured: Secured, topic: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(signed(secured.key, claims()) + "\n")
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.command": f"cat {tmp_path / 'token'}",
    }
    write_and_read(secured.signed, given, topic)


@pytest.mark.parametrize(
    "wrong", [{"exp": 1}, {"aud": "another"}, {"iss": "https://another.test"}, {"sub": ""}]
)
def test_a_token_that_the_broker_refuses_is_reported(
    secured: Secured, wrong: dict[str, Any]
) -> None:
    token = signed(secured.key, claims(**wrong))
    with (
        pytest.raises(AuthenticationFailed, match="the broker refused the token") as refused,
        connect(secured.signed, options(lambda _: token)) as cluster,
    ):
        cluster.metadata(())
    assert token not in str(refused.value)


def test_a_token_of_another_key_is_refused(secured: Secured, tmp_path: Path) -> None:
    make_key(tmp_path / "other.pem")
    tokens = [signed(tmp_path / "other.pem", claims()), unsigned(claims())]
    for _ in range(2):
        with (
            pytest.raises(AuthenticationFailed, match="the broker refused the token"),
            connect(secured.signed, options(lambda _: tokens[0])) as cluster,
        ):
            cluster.metadata(())
        tokens.reverse()


def test_a_connection_is_replaced_before_its_token_expires(secured: Secured) -> None:
    made: list[str] = []

    def token(_: str) -> str:
        made.append(signed(secured.key, claims(exp=int(time.time()) + 3)))
        return made[-1]

    with connect(secured.signed, options(token)) as cluster:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert cluster.metadata(()).brokers
            time.sleep(0.1)
    assert len(made) > 2
