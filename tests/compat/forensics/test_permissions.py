"""Goal: on Apache Kafka with ACLs, what a user may not see is never taken for absent.

Method: a broker with Kafka's own authorizer. Its plain listener is a super user's; `alice` logs in
over SASL and gets some rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.base.failures import FencepostError
from fencepost.cli.app import app
from tests.forensics.situations.open_transactions import (
    forgotten_hanging_transaction,
    pinned_partition,
    until,
)
from tools.apache_kafka import ApacheKafka
from tools.java_tools import JavaTools
from tools.processes import free_port


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with an authorizer, its two doors, a login, and Kafka's tool for ACLs."""

    admin: str
    alice: str
    login: Path
    tools: JavaTools

    def allow(self, *arguments: str) -> None:
        self.tools.check(
            *("kafka-acls", "--bootstrap-server", self.admin, "--add"),
            *("--allow-principal", "User:alice", *arguments),
        )

    def forbid(self, *arguments: str) -> None:
        self.tools.check(
            *("kafka-acls", "--bootstrap-server", self.admin, "--remove", "--force"),
            *("--allow-principal", "User:alice", *arguments),
        )

    def run(self, user: str, *arguments: str) -> Any:
        login = ["--config", str(self.login)] if user == "alice" else []
        servers = self.alice if user == "alice" else self.admin
        words = [*arguments, "--json", "--bootstrap-servers", servers, *login]
        result = CliRunner().invoke(app, words, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        assert not result.return_value, result.output
        return json.loads(result.stdout)

    def shows(self, user: str, *arguments: str, **fields: str) -> None:
        """Waits until the one row has these words in these fields: ACLs take effect later."""

        def matches() -> bool:
            found = self.run(user, *arguments)
            return len(found) == 1 and all(
                words in str(found[0][name]) for name, words in fields.items()
            )

        until(matches)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Guarded]:
    plain, sasl, controller = free_port(), free_port(), free_port()
    doors = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": f"{doors},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": doors,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_alice="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    folder = tmp_path_factory.mktemp("guarded")
    alice = folder / "alice.properties"
    alice.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=alice\nsasl.password=secret\n"
    )
    with ApacheKafka(folder / "data", settings=settings, port=plain) as broker:
        yield Guarded(broker.bootstrap_servers, f"127.0.0.1:{sasl}", alice, tools)


def test_rights_decide_between_hanging_and_cannot_tell(guarded: Guarded, topic: str) -> None:
    on_ids = ("--operation", "DESCRIBE", "--transactional-id", "*")
    on_cluster = ("--operation", "DESCRIBE", "--cluster")
    find = ("txn", "find-hanging", topic)
    unsure = {"verdict": "cannot tell"}
    with (
        pinned_partition(guarded.admin, f"{topic}-other", f"{topic}-other"),
        forgotten_hanging_transaction(guarded.admin, topic),
    ):
        guarded.shows("admin", *find, verdict="hanging")

        guarded.allow("--operation", "DESCRIBE", "--topic", topic)
        guarded.shows("alice", "pins", topic, kind="cannot tell", hidden_offsets="1")
        assert guarded.run("alice", *find) == []

        guarded.allow("--operation", "READ", "--topic", topic)
        guarded.shows("alice", *find, **unsure, why="as a whole")

        guarded.allow("--operation", "DESCRIBE", "--topic", "__transaction_state")
        guarded.shows("alice", *find, **unsure, why="may not describe")

        guarded.allow(*on_ids)
        guarded.shows("alice", *find, **unsure, why="may not list the ACLs")

        guarded.allow(*on_cluster)
        guarded.shows("alice", *find, verdict="hanging")

        guarded.tools.check(
            *("kafka-acls", "--bootstrap-server", guarded.admin, "--add"),
            *("--deny-principal", "User:bob", "--operation", "DESCRIBE"),
            *("--transactional-id", "secret"),
        )
        guarded.shows("alice", *find, **unsure, why="denies")
        for rights in (on_ids, on_cluster):
            guarded.forbid(*rights)


def test_the_holder_of_a_live_transaction_is_hidden_and_not_called_hanging(
    guarded: Guarded, topic: str
) -> None:
    with pinned_partition(guarded.admin, topic, topic):
        guarded.allow("--operation", "READ", "--topic", topic)
        guarded.shows("alice", "pins", topic, kind="cannot tell", transactional_id="None")
        assert guarded.run("alice", "txn", "find-hanging", topic, "--max-timeout", "1h") == []
        with pytest.raises(FencepostError, match="It cannot be told whether a live transaction"):
            guarded.run("alice", "txn", "abort", f"{topic}:0", "--start-offset", "0", "--yes")
        guarded.allow("--operation", "DESCRIBE", "--transactional-id", topic)
        guarded.shows("alice", "pins", topic, kind="open", transactional_id=topic)
