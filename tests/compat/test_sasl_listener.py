"""Kafka's Java client and tools log in at fencepost, and kafka-configs.sh manages its users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.conftest import Side
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("sasl")
    settings = folder / "server.properties"
    settings.write_text(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT\n"
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}\n"
        "connections.max.reauth.ms=1500\n"
    )
    (folder / "password").write_text("admin-secret\n")
    options = ["--config-file", str(settings), "--init-admin", "admin"]
    options += ["--init-admin-password", str(folder / "password")]
    with FencepostProcess(folder / "data", options=options) as process:
        yield Side("fencepost", process.bootstrap_servers, folder, tools)


def login(side: Side, user: str, password: str, mechanism: str) -> str:
    """A properties file of a Java client."""
    path = side.data / f"{user}-{mechanism}.properties"
    module = MODULES[mechanism.split("-", maxsplit=1)[0]]
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
    )
    return str(path)


def admin(side: Side) -> tuple[str, str]:
    return "--command-config", login(side, "admin", "admin-secret", "SCRAM-SHA-512")


def user(name: str) -> tuple[str, ...]:
    return "--entity-type", "users", "--entity-name", name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_configs_sets_a_password_with_which_the_java_client_logs_in(
    secured: Side, topic: str, mechanism: str
) -> None:
    name = f"user-{mechanism}"
    scram = mechanism if mechanism != "PLAIN" else "SCRAM-SHA-256"
    config = f"{scram}=[iterations=8192,password=its-secret]"
    secured.tool("kafka-configs", *admin(secured), "--alter", *user(name), "--add-config", config)
    shown = secured.tool("kafka-configs", *admin(secured), "--describe", *user(name))
    assert f"{scram}=iterations=8192" in shown
    given = login(secured, name, "its-secret", mechanism)
    secured.tool(
        "kafka-console-producer", "--topic", topic, "--command-config", given, stdin="one\ntwo\n"
    )
    wanted = ("--topic", topic, "--from-beginning", "--max-messages", "2")
    read = secured.tool("kafka-console-consumer", *wanted, "--command-config", given)
    assert read.splitlines() == ["one", "two"]


def test_a_java_producer_outlives_several_sessions(secured: Side, topic: str) -> None:
    """It renews its login on the open connection; a closed one would be an error in its output."""
    given = login(secured, "admin", "admin-secret", "SCRAM-SHA-256")
    arguments = ("--topic", topic, "--num-records", "500", "--record-size", "10")
    done = secured.tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", secured.bootstrap_servers, "--command-config", given),
        *(*arguments, "--throughput", "100"),
    )
    assert done.code == 0
    assert "500 records sent" in done.out
    assert "Exception" not in done.out + done.err


def test_kafka_configs_removes_a_user_who_cannot_log_in_then(secured: Side) -> None:
    given = ("--add-config", "SCRAM-SHA-256=[password=short-lived]")
    secured.tool("kafka-configs", *admin(secured), "--alter", *user("gone"), *given)
    options = ("--command-config", login(secured, "gone", "short-lived", "SCRAM-SHA-256"))
    secured.tool("kafka-topics", *options, "--list")
    remove = ("--delete-config", "SCRAM-SHA-256")
    secured.tool("kafka-configs", *admin(secured), "--alter", *user("gone"), *remove)
    refused = secured.attempt("kafka-topics", *options, "--list")
    assert refused.code != 0
    assert "SaslAuthenticationException" in refused.out + refused.err
    again = secured.attempt("kafka-configs", *admin(secured), "--alter", *user("gone"), *remove)
    assert "does not exist" in again.out + again.err
