"""Kafka's Java client over TLS at a fencepost broker, with a client certificate from a PEM file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.broker.security.certificates import Authority
from tests.compat.conftest import Side
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

# The whole name, as Java prints it: with another one the client is refused.
RULES = r"RULE:^CN=alice,OU=Data,O=Ops\\\\, Inc$/alice/"


@pytest.fixture(scope="module", params=["TLSv1.2", "TLSv1.3"])
def secured(
    tmp_path_factory: pytest.TempPathFactory, tools: JavaTools, request: pytest.FixtureRequest
) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    settings = folder / "server.properties"
    settings.write_text(
        "listener.security.protocol.map=PLAINTEXT:SSL\n"
        f"ssl.keystore.location={authority.listener()}\n"
        f"ssl.truststore.location={authority.file}\n"
        "ssl.client.auth=required\n"
        f"ssl.enabled.protocols={request.param}\n"
        f"ssl.principal.mapping.rules={RULES}\n"
    )
    (folder / "client.properties").write_text(
        "security.protocol=SSL\n"
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={pkcs8(Path(authority.client()))}\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.file}\n"
    )
    with FencepostProcess(folder / "data", options=["--config-file", str(settings)]) as process:
        yield Side("fencepost", process.bootstrap_servers, folder, tools)


def pkcs8(path: Path) -> Path:
    """The same file with its key in the only form that Java reads."""
    whole = path.read_bytes()
    key = load_pem_private_key(whole, None)
    found = path.with_suffix(".pkcs8")
    found.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + whole[whole.index(b"-----BEGIN CERTIFICATE") :]
    )
    return found


def test_the_java_client_produces_and_consumes_with_its_certificate(
    secured: Side, topic: str
) -> None:
    given = ("--topic", topic, "--command-config", str(secured.data / "client.properties"))
    secured.tool("kafka-console-producer", *given, stdin="one\ntwo\n")
    wanted = ("--from-beginning", "--max-messages", "2")
    read = secured.tool("kafka-console-consumer", *given, *wanted)
    assert read.splitlines() == ["one", "two"]
