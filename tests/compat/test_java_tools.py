"""Kafka's own command line tools work, and print the same on both brokers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.compat.conftest import Side

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(side: Side, topic: str, text: str, *more: str) -> None:
    side.tool("kafka-console-producer", "--topic", topic, *more, stdin=text)


def consume(side: Side, topic: str, count: int, *more: str) -> list[str]:
    wanted = ["--topic", topic, "--from-beginning", "--max-messages", str(count)]
    return side.tool("kafka-console-consumer", *wanted, "--timeout-ms", "20000", *more).splitlines()


# --- kafka-topics -----------------------------------------------------------------------------


def test_topics_are_created_described_extended_and_deleted(side: Side, topic: str) -> None:
    side.create_topic(topic, 3, "--config", "retention.ms=3600000")
    described = side.tool("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    assert "retention.ms=3600000" in described
    assert described.count("\tLeader: ") == 3
    side.tool("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in side.tool("kafka-topics", "--describe", "--topic", topic)
    assert topic in side.tool("kafka-topics", "--list").splitlines()
    side.tool("kafka-topics", "--delete", "--topic", topic)
    assert topic not in side.tool("kafka-topics", "--list").splitlines()


def test_a_topic_that_exists_is_not_created_again(side: Side, topic: str) -> None:
    side.create_topic(topic)
    again = side.attempt("kafka-topics", "--create", "--topic", topic)
    assert again.code == 1
    assert "already exists" in again.out + again.err
    side.tool("kafka-topics", "--create", "--topic", topic, "--if-not-exists")


def test_no_partition_is_without_a_leader_or_under_replicated(side: Side) -> None:
    for question in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert side.tool("kafka-topics", "--describe", question).strip() == ""


def test_an_unknown_topic_cannot_be_described(side: Side, topic: str) -> None:
    unknown = side.attempt("kafka-topics", "--describe", "--topic", topic)
    assert unknown.code == 1
    assert "does not exist" in unknown.out + unknown.err


# --- kafka-configs ----------------------------------------------------------------------------


def test_configs_of_a_topic_are_altered_and_described(side: Side, topic: str) -> None:
    side.create_topic(topic)
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    change = ["--alter", "--add-config", "segment.bytes=2000000,cleanup.policy=[compact,delete]"]
    side.tool("kafka-configs", *change, *of_topic)
    described = side.tool("kafka-configs", "--describe", *of_topic)
    assert "segment.bytes=2000000" in described
    assert "cleanup.policy=compact,delete" in described
    side.tool("kafka-configs", "--alter", "--delete-config", "segment.bytes", *of_topic)
    assert "segment.bytes" not in side.tool("kafka-configs", "--describe", *of_topic)


def test_all_configs_of_the_broker_are_described(side: Side) -> None:
    node = re.search(r"\(id: (\d+)", side.tool("kafka-broker-api-versions"))
    assert node is not None
    of_broker = ["--entity-type", "brokers", "--entity-name", node[1], "--all"]
    described = side.tool("kafka-configs", "--describe", *of_broker)
    assert "message.max.bytes=1048588" in described


def test_logger_levels_are_altered_and_described(side: Side) -> None:
    of_broker = ["--entity-type", "broker-loggers", "--entity-name", "1"]
    for level in ("WARN", "ERROR"):
        side.tool("kafka-configs", "--alter", "--add-config", f"root={level}", *of_broker)
        described = side.tool("kafka-configs", "--describe", *of_broker)
        assert f"  root={level} sensitive" in described
    unknown = ["--alter", "--add-config", "nonsense=INFO", *of_broker]
    assert "Invalid broker logger(s): nonsense" in side.attempt("kafka-configs", *unknown).err


@pytest.mark.parametrize("entity_type", ["users", "clients", "ips", "client-metrics", "groups"])
def test_entities_without_configs_are_described_as_empty(side: Side, entity_type: str) -> None:
    assert "Error" not in side.tool("kafka-configs", "--describe", "--entity-type", entity_type)


# --- kafka-acls and kafka-metadata-quorum -----------------------------------------------------


def test_there_are_no_acls(side: Side, topic: str) -> None:
    of_reader = ["--allow-principal", "User:a", "--operation", "read", "--topic", topic]
    for action in (["--list"], ["--add", *of_reader], ["--remove", "--force", *of_reader]):
        refused = side.attempt("kafka-acls", *action)
        assert refused.code == 1
        assert "SecurityDisabledException: No Authorizer is configured" in refused.out


def test_the_quorum_is_one_voter(side: Side) -> None:
    status = side.tool("kafka-metadata-quorum", "describe", "--status")
    assert re.search(r"^LeaderId: +1$", status, re.MULTILINE)
    assert re.search(r"^MaxFollowerLag: +0$", status, re.MULTILINE)
    (voter,) = rows(side.tool("kafka-metadata-quorum", "describe", "--replication"))
    assert (voter["NodeId"], voter["Lag"], voter["Status"]) == ("1", "0", "Leader")


# --- kafka-console-producer and -consumer -----------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_lines_are_produced_and_consumed_with_the_console_tools(
    side: Side, topic: str, codec: str
) -> None:
    side.create_topic(topic)
    lines = [f"line {number} äöü" for number in range(50)]
    produce(side, topic, "\n".join(lines) + "\n", "--compression-codec", codec)
    assert consume(side, topic, 50) == lines


def test_keys_headers_and_nulls_survive_the_console_tools(side: Side, topic: str) -> None:
    side.create_topic(topic)
    parse = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
    reading = [word for each in parse for word in ("--reader-property", each)]
    text = "a:1,b:2\tkey\tvalue\nNULL\tNULL\tno key\nNULL\tkey\tNULL\n"
    produce(side, topic, text, *reading)
    shown = ["print.key=true", "print.headers=true", "print.offset=true", "null.literal=NULL"]
    printing = [word for each in shown for word in ("--formatter-property", each)]
    assert consume(side, topic, 3, *printing) == [
        "Offset:0\ta:1,b:2\tkey\tvalue",
        "Offset:1\tNO_HEADERS\tNULL\tno key",
        "Offset:2\tNO_HEADERS\tkey\tNULL",
    ]


def test_a_topic_is_created_when_the_console_producer_writes_to_it(side: Side, topic: str) -> None:
    produce(side, topic, "first\n")
    assert consume(side, topic, 1) == ["first"]


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a table printed by Kafka's tools, by column name."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    head = lines[0]
    return [dict(zip(head, line, strict=False)) for line in lines[1:] if line != head]


# --- kafka-producer-perf-test and kafka-consumer-perf-test -------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["1", "all"])
def test_the_producer_performance_test_delivers_every_record(
    side: Side, topic: str, codec: str, acks: str
) -> None:
    side.create_topic(topic, 2)
    settings = [
        f"acks={acks}",
        f"compression.type={codec}",
        f"enable.idempotence={acks == 'all'}".lower(),
    ]
    load = ["--num-records", "5000", "--record-size", "500", "--throughput", "-1"]
    said = side.tool(
        "kafka-producer-perf-test", "--topic", topic, *load, "--command-property", *settings
    )
    assert "5000 records sent" in said
    assert end_offsets(side, topic) == 5000


def test_the_producer_performance_test_runs_in_transactions(side: Side, topic: str) -> None:
    side.create_topic(topic, 2)
    load = ["--num-records", "5000", "--record-size", "500", "--throughput", "-1"]
    transactional = ["--transactional-id", topic, "--transaction-duration-ms", "50"]
    said = side.tool("kafka-producer-perf-test", "--topic", topic, *load, *transactional)
    assert "5000 records sent" in said
    committed = ["--command-property", "isolation.level=read_committed"]
    assert len(consume(side, topic, 5000, *committed)) == 5000


def test_the_consumer_performance_test_reads_every_record(side: Side, topic: str) -> None:
    side.create_topic(topic, 2)
    load = ["--num-records", "5000", "--record-size", "500", "--throughput", "-1"]
    side.tool("kafka-producer-perf-test", "--topic", topic, *load)
    wanted = ["--topic", topic, "--num-records", "5000", "--timeout", "20000"]
    result = side.tool("kafka-consumer-perf-test", *wanted)
    counts = result.splitlines()[1].split(", ")
    assert counts[4] == "5000"


# --- offsets, records, folders ----------------------------------------------------------------


def end_offsets(side: Side, topic: str) -> int:
    listed = side.tool("kafka-get-offsets", "--topic", topic).splitlines()
    return sum(int(line.rpartition(":")[2]) for line in listed)


def test_offsets_are_listed_by_time_and_position(side: Side, topic: str) -> None:
    side.create_topic(topic)
    produce(side, topic, "a\nb\nc\n")
    ask = ["--topic", topic, "--time"]
    assert side.tool("kafka-get-offsets", *ask, "earliest").strip() == f"{topic}:0:0"
    assert side.tool("kafka-get-offsets", *ask, "latest").strip() == f"{topic}:0:3"
    assert side.tool("kafka-get-offsets", *ask, "0").strip() == f"{topic}:0:0"
    assert side.tool("kafka-get-offsets", *ask, "max-timestamp").strip() != f"{topic}:0:3"


def test_records_are_deleted_up_to_an_offset(side: Side, topic: str, tmp_path: Path) -> None:
    side.create_topic(topic)
    produce(side, topic, "a\nb\nc\n")
    wish = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
    (tmp_path / "wish.json").write_text(json.dumps(wish))
    said = side.tool("kafka-delete-records", "--offset-json-file", str(tmp_path / "wish.json"))
    assert "low_watermark: 2" in said
    assert consume(side, topic, 1) == ["c"]


def test_a_partition_is_reassigned_to_its_broker(side: Side, topic: str, tmp_path: Path) -> None:
    side.create_topic(topic)
    wish = {"partitions": [{"topic": topic, "partition": 0, "replicas": [1]}], "version": 1}
    (tmp_path / "wish.json").write_text(json.dumps(wish))
    plan = ["--reassignment-json-file", str(tmp_path / "wish.json")]
    said = side.tool("kafka-reassign-partitions", *plan, "--execute")
    assert f"Successfully started partition reassignment for {topic}-0" in said
    said = side.tool("kafka-reassign-partitions", *plan, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in said


def test_log_dirs_are_described_by_the_tool(side: Side, topic: str) -> None:
    side.create_topic(topic)
    produce(side, topic, "a\n")
    said = side.tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    (described,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (folder,) = described["brokers"][0]["logDirs"]
    (partition,) = folder["partitions"]
    assert folder["error"] is None
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 0


# --- kafka-broker-api-versions ----------------------------------------------------------------


def versions(side: Side) -> dict[str, str]:
    said = side.tool("kafka-broker-api-versions")
    return dict(re.findall(r"^\s(\w+\(\d+\)): (\d+(?: to \d+)?) ", said, re.MULTILINE))


def test_every_api_is_offered_in_the_versions_of_apache_kafka_and_of_its_newest_client(
    apache_kafka: Side, fencepost_broker: Side
) -> None:
    theirs = versions(apache_kafka)
    ours = versions(fencepost_broker)
    assert len(theirs) > 40
    assert len(ours) > 25
    newest = {api for api in ours if ours[api] != theirs[api]}
    assert newest == {"ApiVersions(18)", "TxnOffsetCommit(28)", "DeleteGroups(42)"}
    for api in newest:  # One version more, which the server of Apache Kafka has from 4.4 on.
        first, last = map(int, theirs[api].split(" to "))
        assert ours[api] == f"{first} to {last + 1}"


# --- every other tool, with rarely used arguments ---------------------------------------------


OUTCOMES = [
    # A tool with its arguments (TOPIC is a topic with two partitions), and part of its output.
    ("kafka-configs --describe --entity-type topics --entity-name nobody", "doesn't exist"),
    ("kafka-configs --describe --entity-type brokers --entity-name 7", "doesn't exist"),
    ("kafka-configs --describe --entity-type broker-loggers --entity-name 7", "doesn't exist"),
    ("kafka-configs --describe --entity-type groups --entity-name nobody", "doesn't exist"),
    ("kafka-configs --describe --entity-type users --entity-default", ""),
    ("kafka-configs --describe --entity-type clients --entity-name c", ""),
    ("kafka-configs --describe --user u --client c", ""),
    ("kafka-configs --describe --ip-defaults", ""),
    ("kafka-configs --describe --topic TOPIC", "for topic TOPIC are"),
    ("kafka-metadata-quorum describe --replication --human-readable", "Leader"),
    ("kafka-features describe", "transaction.version"),
    ("kafka-cluster cluster-id", "Cluster ID: "),
    ("kafka-cluster list-endpoints", "unfenced"),
    ("kafka-get-offsets --topic TOPIC --time latest-tiered", ""),
    ("kafka-get-offsets --topic-partitions TOPIC:1", "TOPIC:1:0"),
    ("kafka-leader-election --election-type preferred --all-topic-partitions", ""),
    (
        "kafka-leader-election --election-type unclean --topic TOPIC --partition 0",
        "Valid replica already elected for partitions TOPIC-0",
    ),
    ("kafka-reassign-partitions --list", "No partition reassignments found."),
    ("kafka-topics --describe --topic TOPIC --at-min-isr-partitions", "Partition: 1"),
    ("kafka-groups --list --group-type classic", "PROTOCOL"),
    ("kafka-groups --list --share", "PROTOCOL"),
    ("kafka-share-groups --list", ""),
    ("kafka-streams-groups --list", ""),
    (
        "kafka-consumer-groups --reset-offsets --group GROUP --topic TOPIC --to-latest --execute",
        "NEW-OFFSET",
    ),
    ("kafka-consumer-groups --reset-offsets --group g --topic nobody --to-latest", "not host"),
    ("kafka-consumer-groups --delete-offsets --group nobody --topic TOPIC", "does not exist"),
    ("kafka-consumer-groups --delete --group nobody", "could not be deleted"),
    ("kafka-transactions list --transactional-id-pattern nobody.*", "TransactionalId"),
    ("kafka-transactions find-hanging --broker-id 1", "StartOffset"),
]
REFUSALS = [
    ("kafka-configs --alter --topic TOPIC --add-config nonsense=1", "InvalidConfiguration"),
    ("kafka-configs --alter --topic nobody --add-config retention.ms=1", "UnknownTopicOrPartition"),
    ("kafka-configs --alter --broker 1 --add-config num.partitions=3", "InvalidRequest"),
    (
        "kafka-configs --alter --entity-type broker-loggers --entity-name 1 --delete-config root",
        "InvalidRequest",
    ),
    ("kafka-get-offsets --topic nobody", "Could not match any topic-partitions"),
    (
        "kafka-leader-election --election-type preferred --topic nobody --partition 0",
        "UnknownTopicOrPartition",
    ),
    ("kafka-topics --alter --topic TOPIC --partitions 1", "InvalidPartitions"),
    ("kafka-topics --create --topic v --replication-factor 3", "InvalidReplicationFactor"),
    ("kafka-transactions describe --transactional-id nobody", "could not be found"),
    (
        "kafka-transactions abort --topic TOPIC --partition 0 --start-offset 0",
        "Could not find any open transactions",
    ),
    ("kafka-transactions list --transactional-id-pattern x[", "INVALID_REGULAR_EXPRESSION"),
]


def test_tools_print_the_same_for_rarely_used_arguments(side: Side, topic: str) -> None:
    side.create_topic(topic, 2)
    problems = []
    for cases, code in ((OUTCOMES, 0), (REFUSALS, 1)):
        for line, wanted in cases:
            name, *arguments = line.replace("TOPIC", topic).replace("GROUP", topic).split()
            result = side.attempt(name, *arguments)
            said = result.out + result.err
            if result.code != code or wanted.replace("TOPIC", topic) not in said:
                problems.append(f"{line}: {result.code}\n{said[:500]}")
    assert not problems, "\n".join(problems)


NOT_SERVED = [
    "kafka-configs --alter --user u --add-config producer_byte_rate=1000",
    "kafka-configs --alter --ip 127.0.0.1 --add-config connection_creation_rate=50",
    "kafka-features upgrade --feature transaction.version=2",
    "kafka-share-groups --describe --group g",
]


def test_unsupported_requests_are_refused_with_a_clear_message(fencepost_broker: Side) -> None:
    for line in NOT_SERVED:
        name, *arguments = line.split()
        result = fencepost_broker.attempt(name, *arguments)
        assert "The node does not support" in result.out + result.err, line
