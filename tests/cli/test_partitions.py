"""TOPIC:P and TOPIC-P: which partition is meant, and when a command asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.cli.partitions import parse_partition, topic_or_partition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from tests.cli.running import Commands


@pytest.mark.parametrize(
    ("text", "topic", "index"),
    [
        ("orders:0", "orders", 0),
        ("orders-0", "orders", 0),
        ("orders-3-0", "orders-3", 0),
        ("orders-3:0", "orders-3", 0),
        ("2026-11-18", "2026-11", 18),
        ("a-:0", "a-", 0),
        ("a--0", "a-", 0),
        ("a.b_c-17", "a.b_c", 17),
        ("__transaction_state-49", "__transaction_state", 49),
        ("t:2147483647", "t", 2**31 - 1),
        ("t-007", "t", 7),
    ],
)
def test_a_partition_is_read_from_both_forms(text: str, topic: str, index: int) -> None:
    assert parse_partition(text) == TopicPartition(topic, index)


@pytest.mark.parametrize("name", ["orders", "orders-3", "a.b", "x-", "9", "2026-11-18", "__x"])
@pytest.mark.parametrize("index", [0, 7, 2**31 - 1])
def test_whatever_is_printed_can_be_read_again(name: str, index: int) -> None:
    partition = TopicPartition(name, index)
    assert parse_partition(str(partition)) == partition
    assert parse_partition(f"{name}:{index}") == partition


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "-", "orders", "orders:", "orders-", ":0", "-0", "orders:-1", "orders:x",
        "orders-x", "orders:0:0", "a:b-0", "../x-0", "orders: 0", "orders:٣", "orders:²",
        "orders:2147483648", "orders:" + "9" * 5_000, "orders-" + "9" * 5_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_two_forms(text: str) -> None:
    with pytest.raises(FencepostError, match="write TOPIC-P or TOPIC:P, such as refunds-0"):
        parse_partition(text)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Topics whose names end as a partition's does, and a record that names each partition."""
    with fencepost.Broker() as broker:
        with connect(broker.bootstrap_servers) as cluster:
            write(cluster, {"orders": 4, "orders-3": 2, "plain": 2, "lonely-1": 1})
        yield broker.bootstrap_servers


def write(cluster: Cluster, topics: Mapping[str, int]) -> None:
    for name, partitions in topics.items():
        cluster.create_topics([NewTopic(name, partitions)])
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            for index in range(partitions):
                record = Record(timestamp_ms=0, key=f"{name}:{index}".encode())
                writer.write_records(TopicPartition(name, index), [record])
            writer.flush()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("orders:3", "orders:3"),
        ("orders-2", "orders:2"),
        ("plain-1", "plain:1"),
        ("orders-3:1", "orders-3:1"),
        ("orders-3-1", "orders-3:1"),
        ("lonely-1-0", "lonely-1:0"),
    ],
)
def test_records_are_those_of_the_partition_that_was_named(
    commands: Commands, text: str, key: str
) -> None:
    assert [row["key"] for row in commands.lines("records", text)] == [key]


def test_records_of_a_topic_are_those_of_all_its_partitions(commands: Commands) -> None:
    rows = commands.lines("records", "orders")
    assert [(row["partition"], row["key"]) for row in rows] == [
        (index, f"orders:{index}") for index in range(4)
    ]
    assert [row["key"] for row in commands.lines("records", "orders", "--max", "2")] == [
        "orders:0",
        "orders:1",
    ]
    header, first, *_ = commands.run("records", "orders-3").splitlines()
    assert (header.split()[0], first.split()[0]) == ("partition", "0")


@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "move", "orders-3", "--to", "1"],
        ["txn", "abort", "orders-3", "--producer-id", "0", "--yes"],
        ["txn", "why", "someone", "-p", "orders-3"],
    ],
    ids=" ".join,
)
def test_a_name_that_is_a_topic_too_is_refused_where_a_partition_is_needed(
    commands: Commands, command: list[str]
) -> None:
    assert commands.refusal(*command) == (
        "'orders-3' is a topic: name one of its partitions, such as orders-3:0. Partition 3 of "
        "'orders' is orders:3."
    )


def test_a_topic_without_its_partition_is_explained(commands: Commands) -> None:
    said = commands.refusal("cluster", "move", "lonely-1", "--to", "1")
    assert said.startswith("'lonely-1' is a topic: name one of its partitions, such as lonely-1:0.")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("orders", ("orders", None)),
        ("orders-2", ("orders", 2)),
        ("orders:3", ("orders", 3)),
        ("orders-3", ("orders-3", None)),
        ("orders-3-0", ("orders-3", 0)),
        ("orders-9", ("orders", 9)),
        ("lonely-1", ("lonely-1", None)),
        ("nobody-1", ("nobody-1", None)),
        ("nobody:1", ("nobody", 1)),
    ],
)
def test_where_both_may_stand_a_topic_of_this_name_comes_first(
    cluster: Cluster, text: str, place: tuple[str, int | None]
) -> None:
    assert topic_or_partition(cluster, text) == place


def test_producers_and_resets_take_a_partition_in_both_forms(commands: Commands) -> None:
    for text, partitions in {"orders-2": [2], "orders:2": [2], "orders-3": [0, 1]}.items():
        rows = commands.json("txn", "producers", text)
        assert [row["partition"] for row in rows] == partitions
        rows = commands.json("group", "reset", "g", "--topic", text, "--to-latest", "--dry-run")
        assert [row["partition"] for row in rows] == partitions
    assert "There is no topic 'nobody-1'" in commands.refusal(
        "group", "reset", "g", "--topic", "nobody-1", "--to-latest", "--dry-run"
    )
    assert "has no partition 9" in commands.refusal(
        "group", "reset", "g", "--topic", "orders-9", "--to-latest", "--dry-run"
    )


def test_a_leader_is_moved_and_named_in_one_form(commands: Commands) -> None:
    assert commands.run("cluster", "move", "plain-1", "--to", "1") == "broker 1 leads plain-1\n"


def test_repair_takes_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fencepost.Broker(data=tmp_path) as broker, connect(broker.bootstrap_servers) as cluster:
        write(cluster, {"orders": 1, "orders-3": 1})
    for name in ("orders-0", "orders:0", "orders-3-0", "orders-3:0"):
        assert main.run(["repair", str(tmp_path), name]) == 0
        assert capsys.readouterr().out == f"Nothing is damaged in {name}.\n"
    assert main.run(["repair", str(tmp_path), "orders-3"]) == 1
    assert main.run(["repair", str(tmp_path), "../x-0"]) == 1
