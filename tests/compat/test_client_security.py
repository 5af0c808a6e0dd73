"""Goal: the client connects to Apache Kafka with TLS and SASL, or reports why it cannot.

Method: one broker with a plain listener (for its own tools) and listeners for SASL_SSL,
SASL_PLAINTEXT and SSL with client certificates; openssl creates certificates for this run.
Users live in the broker: PLAIN ones in its configuration, SCRAM ones in its metadata, put there by
Kafka's own tool.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.failures import AuthenticationFailed, RetriesExhausted
from fencepost.records.opened import Record
from tools.apache_kafka import ApacheKafka
from tools.java_tools import JavaTools
from tools.processes import free_port

PASSWORD = 'pass"word\\;='
"""Every character that is special in a JAAS file."""


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker with four listeners."""

    ports: Mapping[str, int]
    folder: Path

    def at(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Secured]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, not found on this machine")
    folder = tmp_path_factory.mktemp("secured")
    _make_certificates(folder)
    doors = ("PLAINTEXT", "SASL_SSL", "SASL_PLAINTEXT", "SSL", "CONTROLLER")
    ports = dict(zip(doors, _different_ports(len(doors)), strict=True))
    settings = _settings(folder, ports)
    with ApacheKafka(folder / "data", settings=settings, port=ports["PLAINTEXT"]) as broker:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            tools.check(
                *("kafka-configs", "--bootstrap-server", broker.bootstrap_servers),
                *("--alter", "--entity-type", "users", "--entity-name", "scram-user"),
                *("--add-config", f"{mechanism}=[iterations=4096,password=scram-secret]"),
            )
        yield Secured(ports, folder)


def _different_ports(count: int) -> list[int]:
    """Distinct ports: the system may offer the same one twice."""
    ports: dict[int, None] = {}
    while len(ports) < count:
        ports[free_port()] = None
    return list(ports)


def _make_certificates(folder: Path) -> None:
    """An authority, and a certificate each for the broker and for a client."""
    _openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("broker", "client"):
        _openssl(
            folder,
            f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr",
        )
        _openssl(
            folder,
            f"x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
            f"-extfile names -out {name}.crt",
        )
        (folder / f"{name}.pem").write_text(
            (folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text()
        )


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


def _settings(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    plain = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="broker" password="broker" user_broker="broker" user_alice="{escaped}";'
    )
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": listeners,
        "advertised.listeners": listeners.rpartition(",")[0],
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in ports
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        # Resources without an ACL are open to every user; users of the plain listener may do
        # everything.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:broker",
        "allow.everyone.if.no.acl.found": "true",
        # Short, so that a test's connection outlives its login.
        "connections.max.reauth.ms": "2000",
    }
    for door in ("sasl_ssl", "sasl_plaintext"):
        settings[f"listener.name.{door}.plain.sasl.jaas.config"] = plain
        settings[f"listener.name.{door}.scram-sha-256.sasl.jaas.config"] = scram
        settings[f"listener.name.{door}.scram-sha-512.sasl.jaas.config"] = scram
    return settings


def _write_and_read(bootstrap: str, options: Mapping[str, str], topic: str) -> None:
    """One complete transaction through this listener."""
    partition = TopicPartition(topic, 0)
    with connect(bootstrap, options) as cluster:
        cluster.create_topics([NewTopic(topic, 1)])
        identity = cluster.init_producer_id(f"tx-{topic}")
        with cluster.writer(identity) as writer:
            for _ in range(20):
                writer.write_records(partition, [Record(value=b"x" * 50_000)])
            assert writer.flush()[partition].records == 20
        cluster.end_txn(identity, commit=True)
        # With an end, so that it waits until the markers are written.
        assert len(list(cluster.records(partition, 0, 20))) == 20


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_transaction_over_sasl_ssl_with_scram(
    secured: Secured, topic: str, mechanism: str
) -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.folder / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": "scram-user",
        "sasl.password": "scram-secret",
    }
    _write_and_read(secured.at("SASL_SSL"), options, topic)


def test_a_transaction_over_sasl_ssl_with_the_options_of_a_java_user(
    secured: Secured, topic: str
) -> None:
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.folder / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="alice" password="{escaped}";',
    }
    _write_and_read(secured.at("SASL_SSL"), options, topic)


def test_a_transaction_over_sasl_without_tls(secured: Secured, topic: str) -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "scram-user",
        "sasl.password": "scram-secret",
    }
    _write_and_read(secured.at("SASL_PLAINTEXT"), options, topic)


def test_a_transaction_with_a_client_certificate(secured: Secured, topic: str) -> None:
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.folder / "ca.pem"),
        "ssl.certificate.location": str(secured.folder / "client.crt"),
        "ssl.key.location": str(secured.folder / "client.key"),
    }
    _write_and_read(secured.at("SSL"), options, topic)


def test_a_client_certificate_may_be_given_as_text(secured: Secured) -> None:
    options = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": (secured.folder / "ca.pem").read_text(),
        "ssl.keystore.certificate.chain": (secured.folder / "client.crt").read_text(),
        "ssl.keystore.key": (secured.folder / "client.key").read_text(),
    }
    with connect(secured.at("SSL"), options) as cluster:
        assert cluster.describe_cluster().brokers


def test_a_missing_client_certificate_is_reported_at_once(secured: Secured) -> None:
    options = {"security.protocol": "SSL", "ssl.ca.location": str(secured.folder / "ca.pem")}
    with (
        connect(secured.at("SSL"), options) as cluster,
        pytest.raises(AuthenticationFailed, match="client certificate"),
    ):
        cluster.describe_cluster()


def test_a_wrong_password_is_reported_at_once_without_printing_it(secured: Secured) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "scram-user",
            "sasl.password": "hunter2hunter2",
        }
        with (
            connect(secured.at("SASL_PLAINTEXT"), options) as cluster,
            pytest.raises(AuthenticationFailed, match=r"sasl\.password") as caught,
        ):
            cluster.describe_cluster()
        assert "hunter2" not in str(caught.value)


def test_a_certificate_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    other = secured.folder / "other"
    other.mkdir(exist_ok=True)
    _make_certificates(other)
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(other / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    with (
        connect(secured.at("SASL_SSL"), options) as cluster,
        pytest.raises(AuthenticationFailed, match=r"ssl\.ca\.location"),
    ):
        cluster.describe_cluster()


def test_plaintext_to_a_tls_port_fails_with_a_hint(secured: Secured) -> None:
    with (
        connect(secured.at("SSL"), {"default.api.timeout.ms": 1000}) as cluster,
        pytest.raises(RetriesExhausted, match=r"security\.protocol"),
    ):
        cluster.describe_cluster()


def test_a_connection_outlives_its_login(secured: Secured) -> None:
    """The broker ends a login after two seconds; calls of half a second each do not notice."""
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "scram-user",
        "sasl.password": "scram-secret",
    }
    with connect(secured.at("SASL_PLAINTEXT"), options) as cluster:
        topic = TopicPartition("outlives", 0)
        cluster.create_topics([NewTopic("outlives", 1)], exist_ok=True)
        for _ in range(6):
            assert cluster.fetch({topic: 0}, max_wait_ms=500)[topic].next_offset == 0
