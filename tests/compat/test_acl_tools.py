"""`kafka-acls` against Apache Kafka and fencepost, both with an authorizer: the same output."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compat.conftest import Side
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

SETTINGS = {
    "node.id": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, tools: JavaTools
) -> Iterator[tuple[Side, Side]]:
    options = [word for each in SETTINGS.items() for word in ("--config", "=".join(each))]
    with (
        ApacheKafka(tmp_path_factory.mktemp("acl-kafka") / "data", settings=SETTINGS) as kafka,
        FencepostProcess(tmp_path_factory.mktemp("acl-ours") / "data", options=options) as ours,
    ):
        yield (
            Side("apache kafka", kafka.bootstrap_servers, kafka.data, tools),
            Side("fencepost", ours.bootstrap_servers, ours.data, tools),
        )


ALICE = ("--allow-principal", "User:alice")
FROM_9 = ("--deny-host", "10.0.0.9")
STEPS = (
    ("--add", *ALICE, "--producer", "--topic", "orders", "--transactional-id", "writer"),
    ("--add", *ALICE, "--consumer", "--topic", "orders", "--group", "readers"),
    (
        "--add",
        *ALICE,
        "--operation",
        "All",
        "--topic",
        "eu-",
        "--resource-pattern-type",
        "prefixed",
    ),
    ("--add", "--deny-principal", "User:*", *FROM_9, "--operation", "Read", "--topic", "*"),
    ("--add", *ALICE, "--operation", "Alter", "--cluster"),
    ("--add", *ALICE, "--operation", "TwoPhaseCommit", "--transactional-id", "writer"),
    ("--add", *ALICE, "--operation", "Read", "--cluster"),
    ("--list",),
    ("--list", "--topic", "eu-west", "--resource-pattern-type", "match"),
    ("--list", "--principal", "User:alice", "--topic", "orders"),
    ("--remove", "--force", *ALICE, "--operation", "Read", "--topic", "orders"),
    ("--remove", "--force", "--topic", "eu-", "--resource-pattern-type", "prefixed"),
    ("--list",),
)


def test_the_same_steps_print_the_same(guarded: tuple[Side, Side]) -> None:
    for arguments in STEPS:
        kafkas, ours = (side.attempt("kafka-acls", *arguments) for side in guarded)
        assert kafkas.code == ours.code, arguments
        assert listed("\n".join(kafkas.lines)) == listed("\n".join(ours.lines)), arguments


def listed(text: str) -> list[str]:
    """The lines without order and without the time of log lines."""
    return sorted(re.sub(r"^\[.*?\] ", "", line).strip() for line in text.splitlines())


def test_kafkas_decoder_reads_our_acls(guarded: tuple[Side, Side]) -> None:
    """The records of the metadata log, and their removal."""
    ours = guarded[1]
    log = ours.data / "__cluster_metadata-0" / "00000000000000000000.log"
    ours.tool("kafka-acls", "--add", *ALICE, "--operation", "Read", "--topic", "decoded")
    ours.tool("kafka-acls", "--remove", "--force", "--topic", "decoded")
    told = ours.tools.check("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(log))
    assert '"type":"ACCESS_CONTROL_ENTRY_RECORD"' in told
    assert '"resourceName":"decoded"' in told
    assert '"type":"REMOVE_ACCESS_CONTROL_ENTRY_RECORD"' in told
