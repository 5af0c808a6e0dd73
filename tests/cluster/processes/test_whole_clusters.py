"""Whole clusters: a full disk, the death of the parent, other numbers of brokers."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ClientError
from fencepost.client.groups import CommittedOffset
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.opened import Record
from tests.cluster.chaos.audit import audit_log
from tests.cluster.chaos.cluster_process import ClusterProcess, is_running
from tools.fencepost_process import FencepostProcess

SETTINGS: Final = (
    "--config=transaction.state.log.num.partitions=3",
    "--config=offsets.topic.num.partitions=3",
)
PATIENCE_SECONDS: Final = 20.0
COPIES: Final = [TopicPartition("copies", index) for index in range(6)]
SOURCE: Final = TopicPartition("source", 0)

linux = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


def create_topics(client: Cluster, replicas: int = 3) -> None:
    client.create_topics([NewTopic("source", 1, replicas), NewTopic("copies", 6, replicas)])


def begin(client: Cluster, name: str, value: bytes) -> ProducerIdentity:
    """A transaction over all partitions and the offsets of a group."""
    identity = client.init_producer_id(name)
    write(client, identity, value)
    return identity


def write(client: Cluster, identity: ProducerIdentity, value: bytes) -> None:
    with client.writer(identity) as writer:
        for partition in COPIES:
            writer.write_records(partition, [Record(value=value)])
        writer.flush()
    client.txn_offset_commit(identity, "g", {SOURCE: CommittedOffset(int(value))})


def commit(client: Cluster, name: str, value: bytes) -> None:
    client.end_txn(begin(client, name, value), commit=True)


def committed(client: Cluster) -> list[list[bytes | None]]:
    return [
        [record.value for record in client.records(partition, isolation="read_committed")]
        for partition in COPIES
    ]


def committed_offset(client: Cluster) -> int:
    return client.offset_fetch("g", [SOURCE])[SOURCE].offset


def await_end(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"processes {left} still run"
        time.sleep(0.01)


# -- a full disk -----------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(pids: list[int]) -> Iterator[None]:
    """No file of these processes can grow: writes fail at their end, as on a full disk."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limit in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


@linux
def test_a_cluster_whose_disk_was_full_continues_where_it_was(tmp_path: Path) -> None:
    with (
        ClusterProcess(tmp_path / "data", options=SETTINGS) as cluster,
        connect(cluster.bootstrap_servers) as client,
        connect(cluster.bootstrap_servers, {"default.api.timeout.ms": 500}) as hasty,
    ):
        create_topics(client)
        commit(client, "a", b"1")
        opened = begin(client, "b", b"2")
        pids = cluster.pids_or_none()
        with full_disk([*pids, cluster.process.pid]):
            with pytest.raises(ClientError):
                hasty.end_txn(opened, commit=True)
            with pytest.raises(ClientError):
                hasty.create_topics([NewTopic("more", 3, 3)])
            assert committed(client) == [[b"1"]] * len(COPIES)
        client.end_txn(opened, commit=True)
        commit(client, "a", b"3")
        client.create_topics([NewTopic("more", 3, 3)], exist_ok=True)
        assert committed(client) == [[b"1", b"2", b"3"]] * len(COPIES)
        assert committed_offset(client) == 3
        assert cluster.pids_or_none() == pids, "no broker ended because of a full disk"
        assert cluster.stop() == 0


@linux
def test_a_broker_that_dies_while_the_disk_is_full_is_replaced_when_there_is_space(
    tmp_path: Path,
) -> None:
    with (
        ClusterProcess(tmp_path / "data", options=SETTINGS) as cluster,
        connect(cluster.bootstrap_servers) as client,
    ):
        create_topics(client)
        commit(client, "a", b"1")
        opened = begin(client, "b", b"2")
        pids = {each["id"]: each["pid"] for each in cluster.status()}
        with full_disk([*pids.values(), cluster.process.pid]):
            cluster.do("kill", 2)
        client.end_txn(opened, commit=True)
        commit(client, "a", b"3")
        leaders = client.metadata(["copies"]).topics["copies"].partitions
        assert {each.leader for each in leaders} == {1, 3}
        with full_disk([cluster.process.pid]):
            assert cluster.broker(2)["state"] == "dead"
            restarting = threading.Thread(target=cluster.do, args=("restart", 2))
            restarting.start()
            refused = "a registration could not be written"
            cluster.wait_until(lambda: refused in cluster.log, refused)
        restarting.join()
        commit(client, "a", b"4")
        assert committed(client) == [[b"1", b"2", b"3", b"4"]] * len(COPIES)
        assert committed_offset(client) == 4
        assert audit_log(cluster.log.splitlines()) == []


# -- the death of the parent -----------------------------------------------------------------------


@linux
def test_a_parent_killed_in_a_takeover_leaves_nothing_running_and_the_next_start_has_everything(
    tmp_path: Path,
) -> None:
    """A takeover waits for every live broker, so it lasts while one of them is paused."""
    with ClusterProcess(tmp_path / "data", options=SETTINGS) as cluster:
        with connect(cluster.bootstrap_servers) as client:
            create_topics(client)
            commit(client, "a", b"1")
            opened = begin(client, "b", b"2")
        pids = cluster.pids_or_none()
        os.kill(cluster.broker(3)["pid"], signal.SIGSTOP)
        os.kill(cluster.broker(2)["pid"], signal.SIGKILL)
        cluster.wait_until(lambda: cluster.broker(2)["state"] != "serving", "broker 2 is reaped")
        cluster.kill_parent()
        await_end(pids)
        cluster.start()
        with connect(cluster.bootstrap_servers) as client:
            client.end_txn(opened, commit=True)
            commit(client, "a", b"3")
            assert committed(client) == [[b"1", b"2", b"3"]] * len(COPIES)
            assert committed_offset(client) == 3
        assert cluster.stop() == 0
        assert audit_log(cluster.log.splitlines()) == []


# -- other numbers of brokers ----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_directory_goes_from_one_broker_to_three_and_back_with_its_open_transactions(
    tmp_path: Path, ending: str
) -> None:
    data = tmp_path / "data"
    single = FencepostProcess(data, options=SETTINGS)
    try:
        with connect(single.bootstrap_servers) as client:
            create_topics(client, replicas=1)
            commit(client, "a", b"1")
            opened = begin(client, "b", b"2")
    finally:
        single.stop() if ending == "stop" else single.kill()
    with ClusterProcess(data, options=SETTINGS) as cluster:
        with connect(cluster.bootstrap_servers) as client:
            assert committed(client) == [[b"1"]] * len(COPIES), "b is open"
            client.end_txn(opened, commit=True)
            commit(client, "c", b"3")
            opened = begin(client, "d", b"4")
            aborted = begin(client, "e", b"5")
            leaders = client.metadata(["copies"]).topics["copies"].partitions
            assert {each.leader for each in leaders} == {1, 2, 3}
        if ending == "stop":
            assert cluster.stop() == 0
        else:
            await_end(cluster.kill_parent())
        assert audit_log(cluster.log.splitlines()) == []
    with (
        FencepostProcess(data, options=SETTINGS) as single,
        connect(single.bootstrap_servers) as client,
    ):
        client.end_txn(aborted, commit=False)
        client.end_txn(opened, commit=True)
        commit(client, "a", b"6")
        assert committed(client) == [[b"1", b"2", b"3", b"4", b"6"]] * len(COPIES)
        assert committed_offset(client) == 6
