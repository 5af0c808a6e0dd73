"""Goal: a user without rights gets one sentence that says which right is missing, and no more.

Method: one Apache Kafka with its authorizer. The plain listener is for the super user, the SASL
listener for Alice, who may see one topic and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Commands
from tools.apache_kafka import ApacheKafka
from tools.java_tools import JavaTools
from tools.processes import free_port

LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="broker" user_broker="broker" user_alice="secret";'
)


class Alice(Commands):
    """Commands as Alice."""

    def __init__(self, servers: str, capture: pytest.CaptureFixture[str], settings: Path) -> None:
        super().__init__(servers, capture)
        self._settings = settings

    def run(self, *arguments: str, code: int = 0) -> str:
        return super().run(*arguments, "--config", str(self._settings), code=code)


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, tools: JavaTools
) -> Iterator[tuple[str, str]]:
    """The listeners of the super user and of Alice."""
    plain, sasl, controller = free_port(), free_port(), free_port()
    at = "127.0.0.1"
    public = f"PLAINTEXT://{at}:{plain},SASL_PLAINTEXT://{at}:{sasl}"
    settings = {
        "controller.quorum.voters": f"1@{at}:{controller}",
        "listeners": f"{public},CONTROLLER://{at}:{controller}",
        "advertised.listeners": public,
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": LOGIN,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    data = tmp_path_factory.mktemp("authorised") / "data"
    with ApacheKafka(data, settings=settings, port=plain) as broker:
        admin = ("--bootstrap-server", broker.bootstrap_servers)
        for topic in ("seen", "unseen"):
            tools.check("kafka-topics", *admin, "--create", "--topic", topic)
        tools.check(
            *("kafka-acls", *admin, "--add", "--allow-principal", "User:alice"),
            *("--operation", "Describe", "--topic", "seen"),
        )
        yield broker.bootstrap_servers, f"{at}:{sasl}"


@pytest.fixture
def alice(servers: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Alice:
    settings = tmp_path / "alice.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=alice\nsasl.password=secret\n"
    )
    return Alice(servers[1], capsys, settings)


def test_what_may_be_seen_is_shown_and_the_rest_is_left_out(alice: Alice) -> None:
    assert [row["topic"] for row in alice.json("topic", "list", "--internal")] == ["seen"]
    shown = alice.json("topic", "describe", "seen")
    assert shown["partitions"][0]["high_watermark"] == 0
    assert shown["settings"] is None
    assert alice.json("group", "list") == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("topic describe unseen", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic consume unseen", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic produce unseen /dev/null", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic delete unseen --yes", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic delete seen --yes", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic create new", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic alter seen --partitions 5", "TOPIC_AUTHORIZATION_FAILED"),
        ("topic alter seen --set retention.ms=5", "TOPIC_AUTHORIZATION_FAILED"),
        ("config get --topic seen", "TOPIC_AUTHORIZATION_FAILED"),
        ("config get --broker 1", "CLUSTER_AUTHORIZATION_FAILED"),
        ("group describe g", "GROUP_AUTHORIZATION_FAILED"),
        ("group delete g --yes", "GROUP_AUTHORIZATION_FAILED"),
        ("group reset g --topic seen --to-latest --yes", "GROUP_AUTHORIZATION_FAILED"),
        ("lag g", "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_a_missing_right_is_named_in_one_sentence(alice: Alice, command: str, code: str) -> None:
    said = alice.refusal(*command.split())
    assert code in said
    assert "grant this user" in said


@pytest.mark.parametrize("options", [(), ("--transaction", "t")], ids=["plain", "transaction"])
def test_a_record_that_may_not_be_written_is_not_called_written(
    alice: Alice, tmp_path: Path, options: tuple[str, ...]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    said = alice.refusal("topic", "produce", "seen", str(lines), *options)
    assert "AUTHORIZATION_FAILED" in said
    if not options:
        assert "grant this user WRITE on topic 'seen'. Nothing was written." in said
    assert "TOPIC_AUTHORIZATION_FAILED" in alice.refusal("topic", "consume", "seen", "--follow")
