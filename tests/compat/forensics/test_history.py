"""`txn why`, `txn timeline` and `records` on Apache Kafka, with the situations of tests/forensics.

One Kafka, which looks for timeouts and expired ids more often than the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.base.failures import FencepostError
from fencepost.cli.app import app
from fencepost.client.blocking import connect
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.transaction_log import TransactionLogTail
from tests.forensics import situations
from tests.forensics.expectations import EXPECTED_ON_KAFKA, arguments_of, check, prepare
from tools.apache_kafka import ApacheKafka
from tools.java_tools import JavaTools

HURRY = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "transactional.id.expiration.ms": "20000",
    # Everybody may do everything until a test denies it.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("kafka") / "data"
    with ApacheKafka(data, settings=HURRY) as broker:
        yield broker.bootstrap_servers


def run(servers: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", servers])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def timeline(servers: str, transactional_id: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(run(servers, "txn", "timeline", transactional_id, "--json"))
    return row


@pytest.mark.parametrize(("name", "protocol"), EXPECTED_ON_KAFKA, ids=str)
def test_why_finds_the_cause_of(name: str, protocol: int, servers: str) -> None:
    found = prepare(name, servers, protocol)
    said = run(servers, "txn", "why", found.transactional_id, *arguments_of(found), "--json")
    check(said, found, EXPECTED_ON_KAFKA[name, protocol])


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("fence", (Cause.ADMINISTRATOR, Certainty.LIKELY)),
        ("abort", (Cause.CLIENT_ABORT, Certainty.LIKELY)),
        ("commit", (Cause.COMMITTED, Certainty.PROVEN)),
    ],
)
def test_what_an_operator_did_is_told_as_far_as_kafkas_records_tell(
    servers: str, action: str, expected: tuple[Cause, Certainty]
) -> None:
    found = situations.ended_by_operator(servers, action)
    said = run(servers, "txn", "why", found.transactional_id, *arguments_of(found), "--json")
    check(said, found, expected)
    assert f"the client id fencepost-txn-{action}" in said or any(
        f"fencepost-txn-{action}" in note for note in json.loads(said)["notes"]
    )


def test_whether_the_producer_is_connected_is_unknown(servers: str) -> None:
    found = situations.open_transaction(servers)
    name, topic = found.transactional_id, found.partition.topic
    row = json.loads(run(servers, "txn", "describe", name, "--json"))
    (listed,) = json.loads(run(servers, "txn", "list", "--pattern", name, "--json"))
    (pin,) = json.loads(run(servers, "pins", topic, "--json"))
    for each in (row, listed, pin):
        assert (each["client_connection"], each["client_gone_at_ms"]) == (None, None)
    said = run(servers, "txn", "describe", name)
    assert "client connection unknown" in " ".join(said.split())


@pytest.mark.parametrize("command", ["why", "timeline", "describe"])
def test_an_id_that_was_never_used_is_an_error(servers: str, command: str) -> None:
    with connect(servers) as cluster:
        cluster.init_producer_id("orders-1")
    with pytest.raises(FencepostError, match=r"no transactional id 'order-1'.*never used") as said:
        run(servers, "txn", command, "order-1")
    assert "unused ids are removed after 20.0 s" in str(said.value)


def test_why_finds_that_an_id_has_expired(servers: str) -> None:
    found = situations.expired(servers)
    said = run(servers, "txn", "why", found.transactional_id, *arguments_of(found), "--json")
    check(said, found, (Cause.EXPIRED, Certainty.PROVEN))


def test_java_fence_producers_is_recognised(servers: str, tools: JavaTools) -> None:
    tools.check("Exercise", servers, "transactions: fenced by an administrator")
    row = json.loads(run(servers, "txn", "why", "txn-admin-fence", "--json"))
    assert (row["cause"], row["certainty"]) == ("administrator", "likely"), row


def test_the_second_of_two_java_producers_is_recognised(servers: str, tools: JavaTools) -> None:
    tools.check("Exercise", servers, "transactions: the second of two producers wins")
    row = json.loads(run(servers, "txn", "why", "txn-fenced", "--json"))
    assert row["cause"] == "newer instance", row


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_timeline_has_every_state_and_the_marker_of_each_end(
    protocol: int, servers: str
) -> None:
    found = situations.aborted_by_client(servers, protocol)
    row = timeline(servers, found.transactional_id)
    assert [step["state"] for step in row["steps"]][:4] == [
        "Empty",
        "Ongoing",
        "PrepareAbort",
        "CompleteAbort",
    ]
    (marker,) = row["steps"][2]["markers"]
    assert (marker["outcome"], marker["offset"], marker["first_offset"]) == ("abort", 2, 0)
    assert row["is_complete"]
    assert row["stray_markers"] == []


def test_the_fields_agree_with_kafka_transactions(servers: str, tools: JavaTools) -> None:
    found = situations.open_transaction(servers)
    described = tools.check(
        "kafka-transactions",
        *("--bootstrap-server", servers, "describe", "--transactional-id", found.transactional_id),
    )
    names, values = (line.split() for line in described.strip().splitlines())
    kafkas = dict(zip(names, values, strict=True))
    last = timeline(servers, found.transactional_id)["steps"][-1]
    assert kafkas["ProducerId"] == str(last["producer_id"])
    assert kafkas["ProducerEpoch"] == str(last["producer_epoch"])
    assert kafkas["TransactionState"] == last["state"]
    assert kafkas["TransactionTimeoutMs"] == str(last["timeout_ms"])
    assert kafkas["CurrentTransactionStartTimeMs"] == str(last["started_at_ms"])
    assert kafkas["TopicPartitions"] == ",".join(last["partitions"])


def test_records_have_their_fates(servers: str) -> None:
    found = situations.aborted_by_client(servers, 2)
    with connect(servers) as cluster:
        identity = cluster.init_producer_id(found.transactional_id)
        situations.write(cluster, identity, found.partition)
    lines = run(servers, "records", f"{found.partition.topic}:0", "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["offset"], row["fate"], row["transaction"]) for row in rows] == [
        (0, "aborted", 0),
        (1, "aborted", 0),
        (2, "control", 0),
        (3, "committed", 3),
        (4, "committed", 3),
        (5, "control", 3),
        (6, "open", 6),
        (7, "open", 6),
    ]


def test_internal_topics_are_decoded(servers: str) -> None:
    found = situations.committed(servers)
    place = timeline(servers, found.transactional_id)["log_partition"].rpartition("-")[2]
    lines = run(servers, "records", f"__transaction_state:{place}", "--json").splitlines()
    states = [
        row["decoded"]["state"]
        for row in map(json.loads, lines)
        if row["decoded"].get("transactional_id") == found.transactional_id
    ]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_the_log_can_be_tailed(servers: str) -> None:
    with connect(servers) as cluster:
        tail = TransactionLogTail(cluster)
        found = situations.committed(servers)
        states: list[str] = []
        while states[-1:] != ["CompleteCommit"]:
            states += [
                each.change.state
                for each in tail.poll()
                if each.transactional_id == found.transactional_id
            ]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


@pytest.fixture
def no_read(servers: str, tools: JavaTools) -> Iterator[None]:
    """Nobody may read `__transaction_state`."""
    rule = ["--deny-principal", "User:ANONYMOUS", "--operation", "Read"]
    topic = ["--topic", "__transaction_state"]
    at = ["--bootstrap-server", servers]
    tools.check("kafka-acls", *at, "--add", *rule, *topic)
    yield
    tools.check("kafka-acls", *at, "--remove", *rule, *topic, "--force")


@pytest.mark.parametrize(
    ("name", "cause"),
    [("timed_out", "timeout"), ("newer_instance", "newer instance"), ("lost_answer", "committed")],
)
def test_why_works_without_the_right_to_read_the_log(
    name: str, cause: str, servers: str, no_read: None
) -> None:
    found = prepare(name, servers, 2)
    place = f"{found.partition.topic}:0"
    row = json.loads(
        run(
            servers,
            *("txn", "why", found.transactional_id, *arguments_of(found)),
            *("--partition", place, "--json"),
        )
    )
    assert (row["cause"], row["certainty"]) == (cause, "likely"), row
    assert any("may not read __transaction_state" in note for note in row["notes"]), row
    with pytest.raises(FencepostError, match="grant READ and DESCRIBE"):
        run(servers, "txn", "timeline", found.transactional_id)
