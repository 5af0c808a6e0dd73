"""`fencepost cluster status` and `cluster move` against Apache Kafka in two processes.

Both use nothing but Kafka's own requests there. What a control socket would tell (processes,
restarts) is not shown, and commands that need one are refused with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bench.clusters import KafkaCluster
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.reading import LATEST
from fencepost.client.routes import CoordinatorKey, CoordinatorKind

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka-cluster"), 2)
    try:
        with connect(cluster.bootstrap_servers) as client:
            client.create_topics(
                [
                    NewTopic("refunds", partitions=2, replication_factor=1),
                    NewTopic("orders", partitions=1, replication_factor=2),
                ]
            )
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def run(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main.run(["cluster", *arguments, "--bootstrap-servers", kafka.bootstrap_servers])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_command


def leader_of(kafka: KafkaCluster, topic: str, index: int) -> int:
    with connect(kafka.bootstrap_servers) as client:
        return client.metadata([topic]).topics[topic].partitions[index].leader


def test_status_shows_what_the_wire_tells(kafka: KafkaCluster, run: Run) -> None:
    code, shown, _ = run("status", "--json")
    assert code == 0
    found = json.loads(shown)
    assert [each["id"] for each in found["brokers"]] == [1, 2]
    assert [each["state"] for each in found["brokers"]] == ["serving"] * 2
    assert ",".join(each["address"] for each in found["brokers"]) == kafka.bootstrap_servers
    assert sum(each["leads"] for each in found["brokers"]) >= 3
    assert found["leaderless"] == 0
    assert (found["data"], found["controller"]["pid"], found["unfinished"]) == (None, None, None)
    code, shown, _ = run("status")
    assert code == 0
    assert found["cluster"] in shown


def test_move_copies_a_partition_and_makes_the_broker_its_leader(
    kafka: KafkaCluster, run: Run
) -> None:
    name = TopicPartition("refunds", 0)
    for to in (1, 2, 2, 1):
        # On standard error it may say that it waits for an answer.
        code, shown, _ = run("move", "refunds:0", "--to", str(to))
        assert (code, shown) == (0, f"broker {to} leads refunds-0\n")
        assert leader_of(kafka, *name) == to
        with connect(kafka.bootstrap_servers) as client:
            assert client.list_offsets({name: LATEST})[name].offset == 0


def test_move_elects_another_replica_without_copying(kafka: KafkaCluster, run: Run) -> None:
    before = leader_of(kafka, "orders", 0)
    to = 3 - before
    code, shown, _ = run("move", "orders:0", "--to", str(to))
    assert (code, shown) == (0, f"broker {to} leads orders-0\n")
    assert leader_of(kafka, "orders", 0) == to


def test_a_coordinator_is_moved_over_the_same_requests(kafka: KafkaCluster) -> None:
    key = CoordinatorKey(CoordinatorKind.GROUP, "readers")
    with connect(kafka.bootstrap_servers) as client:
        for to in (2, 1):
            client.move_coordinator(key, to)
            assert client.find_coordinator(key) == to


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("move", "refunds:0", "--to", "7"), "no live broker 7; its live brokers are 1, 2"),
        (("move", "refunds:9", "--to", "1"), "no partition 9"),
        (("move", "nowhere:0", "--to", "1"), "nowhere"),
        (("roll",), "cannot be commanded"),
        (("kill", "1"), "cannot be commanded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    code, shown, problem = run(*arguments)
    assert (code, shown) == (1, "")
    assert said in problem
    assert "Traceback" not in problem
