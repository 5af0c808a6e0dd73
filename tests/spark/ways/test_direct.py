"""Tasks that exchange batches: threads act as the tasks of a stage, and write to a real broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition  # noqa: E402
from fencepost.client.blocking import Cluster  # noqa: E402
from fencepost.client.partitioner import partition_for_key  # noqa: E402
from fencepost.client.transactions import ProducerIdentity  # noqa: E402
from fencepost.spark.failures import (  # noqa: E402
    CountsDisagree,
    PeerLost,
    RowRefused,
)
from fencepost.spark.ways.accounts import Account, Report, reconcile_reports  # noqa: E402
from fencepost.spark.ways.collected import RowCollector  # noqa: E402
from fencepost.spark.ways.delivery import Attempt, first_length  # noqa: E402
from fencepost.spark.ways.direct import DirectPlan, write_directly  # noqa: E402
from fencepost.spark.ways.exchange import (  # noqa: E402
    LOOPBACK,
    Meeting,
    bind_address,
    own_host,
)
from fencepost.spark.ways.meeting import Peer, Rendezvous, RendezvousCall  # noqa: E402
from fencepost.spark.ways.packing import packer as packing  # noqa: E402
from fencepost.spark.ways.packing.by_record import PackingPlan  # noqa: E402

SECRET = b"sixteen letters."
SECONDS = 20.0
PARTITIONS = 3


@pytest.fixture(params=["plain", "compiled"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found = packing if request.param != "plain" else None
    monkeypatch.setattr(packing, "compiled_columns", lambda *_: found)


@pytest.fixture
def rendezvous() -> Iterator[Rendezvous]:
    with Rendezvous("127.0.0.1", "127.0.0.1", SECRET) as found:
        yield found


def packing_plan(cluster: Cluster, topic: str) -> PackingPlan:
    return PackingPlan(
        batch_id=0,
        slots=2,
        topic=topic,
        partition_counts={topic: PARTITIONS},
        codec=0,
        batch_bytes=2_000,
        max_record_bytes=100_000,
        options=cluster.options,
    )


class BarrierStage:
    """A barrier stage whose tasks are threads."""

    def __init__(self, cluster: Cluster, topic: str, rendezvous: Rendezvous, *hosts: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.identity: ProducerIdentity = cluster.init_producer_id(topic)
        meeting = Meeting(rendezvous.address, SECRET, hosts)
        self._plan = DirectPlan(packing_plan(cluster, topic), self.identity, meeting)

    def run(self, inputs: list[Iterator[Any]], tasks: int | None = None) -> list[Future[Report]]:
        with ThreadPoolExecutor(len(inputs)) as pool:
            return [
                pool.submit(self._task, number, tasks or len(inputs), rows)
                for number, rows in enumerate(inputs)
            ]

    def _task(self, number: int, tasks: int, rows: Iterator[Any]) -> Report:
        return write_directly(self._plan, Attempt(number, 0, 100 + number), tasks, rows)

    def committed(self) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
        return {
            number: [
                (r.key, r.value) for r in self.cluster.records(TopicPartition(self.topic, number))
            ]
            for number in range(PARTITIONS)
        }


def rows_of(task: int, count: int) -> Any:
    keys = [b"%d-%d" % (task, n) for n in range(count)]
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.binary()), "value": pa.array([b"v" * 50] * count, pa.binary())}
    )


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.usefixtures("either_way")
def test_every_row_reaches_the_writer_of_its_partition_once_and_in_order(
    cluster: Cluster, new_topic: Callable[..., str], rendezvous: Rendezvous, tasks: int
) -> None:
    stage = BarrierStage(cluster, new_topic(PARTITIONS), rendezvous)
    inputs = [iter([rows_of(task, 300), rows_of(task + 10, 200)]) for task in range(tasks)]
    reports = [task.result(SECONDS) for task in stage.run(inputs)]
    account = reconcile_reports(reports)
    assert account.records == tasks * 500
    assert {report["task_attempt_id"] for report in reports if report["written"]} <= {100, 101}
    stage.cluster.end_txn(stage.identity, commit=True)
    found = stage.committed()
    for task in (*range(tasks), *range(10, 10 + tasks)):
        for partition, records in found.items():
            mine = [key for key, _ in records if key and key.startswith(b"%d-" % task)]
            sent = [b"%d-%d" % (task, n) for n in range(300 if task < 10 else 200)]
            assert mine == [k for k in sent if partition_for_key(k, PARTITIONS) == partition]


def test_a_task_without_rows_still_writes_what_others_send(
    cluster: Cluster, new_topic: Callable[..., str], rendezvous: Rendezvous
) -> None:
    stage = BarrierStage(cluster, new_topic(PARTITIONS), rendezvous)
    results = stage.run([iter([]), iter([rows_of(1, 40)])])
    account = reconcile_reports(task.result(SECONDS) for task in results)
    assert (account.rows, account.records) == (40, 40)
    cluster.end_txn(stage.identity, commit=False)


def test_if_one_task_fails_the_others_do_not_wait_for_it(
    cluster: Cluster, new_topic: Callable[..., str], rendezvous: Rendezvous
) -> None:
    def failing() -> Iterator[Any]:
        yield rows_of(0, 10)
        raise ZeroDivisionError

    stage = BarrierStage(cluster, new_topic(PARTITIONS), rendezvous)
    first, second = stage.run([failing(), iter([rows_of(1, 100)])])
    with pytest.raises(ZeroDivisionError):
        first.result(SECONDS)
    with pytest.raises(PeerLost):
        second.result(SECONDS)
    cluster.end_txn(stage.identity, commit=False)


def test_a_second_attempt_of_a_task_is_refused(rendezvous: Rendezvous) -> None:
    first = RendezvousCall(rendezvous.address, SECRET)
    waiting = threading.Thread(target=first.meet, args=(0, 2, Peer(LOOPBACK, 1, 7)))
    waiting.start()
    while 0 not in rendezvous.callers:
        pass
    with pytest.raises(CountsDisagree, match="second time"):
        RendezvousCall(rendezvous.address, SECRET).meet(0, 2, Peer(LOOPBACK, 1, 8))
    assert [
        n.task_attempt_id
        for n in RendezvousCall(rendezvous.address, SECRET).meet(1, 2, Peer(LOOPBACK, 0, 9))
    ] == [7, 9]
    waiting.join(SECONDS)


def test_a_connection_without_the_secret_is_ignored(rendezvous: Rendezvous) -> None:
    with socket.create_connection(rendezvous.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: a-host-with-a-name-long-enough.example\r\n\r\n")
        with stranger.makefile("rb") as stream, contextlib.suppress(ConnectionResetError):
            # The driver's part of the handshake, and then the end.
            assert len(stream.read()) == 64
    assert not rendezvous.callers
    assert len(RendezvousCall(rendezvous.address, SECRET).meet(0, 1, Peer(LOOPBACK, 0, 5))) == 1


def test_waiting_tasks_fail_if_the_job_ends_before_they_meet(rendezvous: Rendezvous) -> None:
    with Rendezvous("127.0.0.1", "127.0.0.1", SECRET) as short, ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(
            RendezvousCall(short.address, SECRET).meet, 0, 2, Peer(LOOPBACK, 0, 5)
        )
        while not short.callers:
            pass
        short.close()
        with pytest.raises(PeerLost):
            meeting.result(SECONDS)


def test_a_caller_that_says_nothing_keeps_nobody_waiting(rendezvous: Rendezvous) -> None:
    with socket.create_connection(rendezvous.address):
        assert len(RendezvousCall(rendezvous.address, SECRET).meet(0, 1, Peer(LOOPBACK, 0, 5))) == 1


def test_a_task_with_the_secret_of_another_attempt_is_refused(rendezvous: Rendezvous) -> None:
    with pytest.raises(PeerLost, match="does not know this job"):
        RendezvousCall(rendezvous.address, b"of another attempt")
    assert not rendezvous.callers


def test_between_hosts_a_task_listens_at_its_own_host_and_not_where_it_calls_from(
    cluster: Cluster, new_topic: Callable[..., str], rendezvous: Rendezvous
) -> None:
    """The driver sees the tasks at 127.0.0.1; only the second of these hosts is this machine."""
    stage = BarrierStage(cluster, new_topic(PARTITIONS), rendezvous, "192.0.2.77", "127.0.0.9")
    results = stage.run([iter([rows_of(0, 40)]), iter([rows_of(1, 40)])])
    account = reconcile_reports(task.result(SECONDS) for task in results)
    assert account.records == 80
    assert {peer.host for peer in rendezvous.callers.values()} == {"127.0.0.9"}
    cluster.end_txn(stage.identity, commit=False)


def test_on_one_host_tasks_use_the_loopback_interface(
    cluster: Cluster, new_topic: Callable[..., str], rendezvous: Rendezvous
) -> None:
    stage = BarrierStage(cluster, new_topic(PARTITIONS), rendezvous)
    for task in stage.run([iter([rows_of(0, 10)]), iter([rows_of(1, 10)])]):
        task.result(SECONDS)
    assert {peer.host for peer in rendezvous.callers.values()} == {LOOPBACK}
    cluster.end_txn(stage.identity, commit=False)


def test_a_task_knows_its_own_host_by_binding_to_it() -> None:
    assert own_host(["192.0.2.77", "no-such-host.invalid", "127.0.0.1"]) == "127.0.0.1"
    assert own_host(["192.0.2.77"]) is None


def test_a_task_listens_on_its_own_address_only_and_by_name_on_all() -> None:
    assert bind_address("10.1.2.3") == "10.1.2.3"
    assert bind_address("fd00::1") == "fd00::1"
    assert bind_address("worker-1.example") == ""


def test_attempts_of_one_job_have_first_batches_of_different_lengths() -> None:
    assert len({first_length(number) for number in range(1_000, 1_400)}) == 400
    assert min(first_length(number) for number in range(2_000)) == 1


def test_the_driver_writes_a_few_rows_itself(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(PARTITIONS)
    identity = cluster.init_producer_id(topic)
    rows = rows_of(0, 30).to_pylist()
    collector = RowCollector(topic)
    account = write_collected(cluster, topic, identity, rows, collector)
    cluster.end_txn(identity, commit=True)
    assert (account.rows, account.records) == (30, 30)
    assert collector.limit == 300
    found = [
        record.key or b""
        for number in range(PARTITIONS)
        for record in cluster.records(TopicPartition(topic, number))
    ]
    assert sorted(found) == sorted(row["key"] for row in rows)


def test_a_row_that_cannot_be_packed_is_refused_before_anything_is_sent(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(PARTITIONS)
    identity = cluster.init_producer_id(topic)
    with pytest.raises(RowRefused):
        write_collected(cluster, topic, identity, [{"value": b"v", "partition": PARTITIONS}])


def write_collected(
    cluster: Cluster,
    topic: str,
    identity: ProducerIdentity,
    rows: list[dict[str, Any]],
    collector: RowCollector | None = None,
) -> Account:
    """Writes rows that the driver has collected, as the sink does."""
    job: Any = SimpleNamespace(
        part=None, micro_batch=None, identity=identity, packing=packing_plan(cluster, topic)
    )
    return (collector or RowCollector(topic))._send(job, rows)
