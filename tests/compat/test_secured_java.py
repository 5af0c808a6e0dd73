"""Kafka's Java tools and producer over SASL_SSL, with ACLs: what works, and what a denial raises.

What a denial raises is in the table of docs/concepts/recovering.md, beside the Python clients
(tests/foreign_clients/test_denials.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.broker.security.certificates import Authority
from tests.compat.conftest import Side
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

PASSWORD: Final = "its-secret"
USERS: Final = ("admin", "alice", "nobody")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    settings = folder / "server.properties"
    settings.write_text(
        "listener.security.protocol.map=PLAINTEXT:SASL_SSL\n"
        f"ssl.keystore.location={authority.listener()}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:admin\n"
    )
    (folder / "password").write_text(PASSWORD)
    options = ["--config-file", str(settings), "--init-admin", "admin"]
    options += ["--init-admin-password", str(folder / "password")]
    with FencepostProcess(folder / "data", options=options) as process:
        side = Side("fencepost", process.bootstrap_servers, folder, tools)
        for user in USERS:
            write_properties(side, authority, user, user, PASSWORD)
        write_properties(side, authority, "stranger", "alice", "chalk")
        for user in USERS[1:]:
            config = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
            whom = ("--entity-type", "users", "--entity-name", user)
            side.tool("kafka-configs", *by(side, "admin"), "--alter", *whom, "--add-config", config)
        yield side


def write_properties(side: Side, authority: Authority, name: str, user: str, password: str) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    (side.data / f"{name}.properties").write_text(
        f"bootstrap.servers={side.bootstrap_servers}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.file}\n"
    )


def by(side: Side, user: str) -> tuple[str, str]:
    return "--command-config", str(side.data / f"{user}.properties")


def allow(side: Side, *rights: str) -> None:
    adding = ("--add", "--allow-principal", "User:alice")
    side.tool("kafka-acls", *by(side, "admin"), *adding, *rights)


def create(side: Side, topic: str) -> None:
    side.tool("kafka-topics", *by(side, "admin"), "--create", "--topic", topic)


def test_the_console_tools_write_and_read_with_rights_and_not_without(
    secured: Side, topic: str
) -> None:
    create(secured, topic)
    given = ("--topic", topic, *by(secured, "alice"))
    refused = secured.attempt("kafka-console-producer", *given, stdin="zero\n")
    assert "TopicAuthorizationException" in refused.out + refused.err
    allow(secured, "--producer", "--topic", topic)
    allow(secured, "--consumer", "--topic", topic, "--group", topic)
    secured.tool("kafka-console-producer", *given, stdin="one\ntwo\n")
    wanted = ("--group", topic, "--from-beginning", "--max-messages", "2")
    read = secured.tool("kafka-console-consumer", *given, *wanted)
    assert read.splitlines() == ["one", "two"]


ID, TOPIC, GROUP = "TRANSACTIONAL_ID", "TOPIC", "GROUP"
RIGHTS: Final = {
    ID: ("--operation", "Write", "--transactional-id"),
    TOPIC: ("--operation", "Write", "--topic"),
    GROUP: ("--operation", "Read", "--group"),
}
RAISED: Final[dict[tuple[str, str], list[str]]] = {
    (ID, "NONE"): [
        "initTransactions: TransactionalIdAuthorizationException",
        "abortTransaction: TransactionalIdAuthorizationException",
    ],
    (TOPIC, "NONE"): [
        "send: TopicAuthorizationException",
        "aborted",
    ],
    (GROUP, "NONE"): ["sendOffsetsToTransaction: GroupAuthorizationException", "aborted"],
    ("", ID): [
        "send: TransactionalIdAuthorizationException",
        "abortTransaction: TransactionalIdAuthorizationException",
    ],
    ("", TOPIC): [
        "send: TopicAuthorizationException",
        "aborted",
    ],
}
"""By the right that is missing, and the one that is taken away after the first record."""


@pytest.mark.parametrize(("missing", "later"), RAISED)
def test_a_denial_is_raised_as_documented(
    secured: Side, topic: str, missing: str, later: str
) -> None:
    create(secured, topic)
    allow(secured, "--operation", "Describe", "--topic", topic)
    for kind, right in RIGHTS.items():
        if kind != missing:
            allow(secured, *right, topic)
    assert run(secured, "alice", topic, later) == RAISED[missing, later]


def test_a_wrong_password_is_raised_as_documented(secured: Side, topic: str) -> None:
    assert run(secured, "stranger", topic) == [
        "initTransactions: SaslAuthenticationException",
        "abortTransaction: SaslAuthenticationException",
    ]


def test_an_idempotent_producer_without_rights_is_told_so(secured: Side, topic: str) -> None:
    create(secured, topic)
    adding = ("--add", "--allow-principal", "User:nobody", "--operation", "Describe")
    secured.tool("kafka-acls", *by(secured, "admin"), *adding, "--topic", topic)
    assert run(secured, "nobody", f"idempotent {topic}") == ["send: ClusterAuthorizationException"]


def run(side: Side, user: str, name: str, later: str = "NONE") -> list[str]:
    files = (str(side.data / f"{each}.properties") for each in (user, "admin"))
    return side.tools.check("Denials", *files, name, later).splitlines()
