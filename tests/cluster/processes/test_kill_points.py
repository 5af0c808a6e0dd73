"""kill -9 of real brokers at every point of a commit and an abort that crosses brokers.

Method: broker 1 coordinates the transaction; the brokers 1, 2 and 3 lead one of its partitions
each, and broker 2 coordinates the group whose offsets are in it. A broker is made to kill itself
at a crash point, and then the producer ends the transaction. It retries until a coordinator
answers. The outcome must be the one that it asked for, on every partition and in the offsets, once.

Neighbouring points take commit and abort, and TV1 and TV2, in turn: one process dies at each point,
and `cluster/transactions/test_markers.py` shows every point with both on a virtual clock.
`FENCEPOST_EVERY_CALL=1` runs every point with both here too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.broker.transactions.ending import (
    ABORT_POINTS,
    ABORT_REMOTE_POINTS,
    COMMIT_POINTS,
    COMMIT_REMOTE_POINTS,
)
from fencepost.broker.transactions.markers import ABORT_LEADER_POINTS, COMMIT_LEADER_POINTS
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.groups import CommittedOffset
from fencepost.client.transactions import ProducerIdentity
from fencepost.cluster.parent.control import send_command
from fencepost.records.control import read_marker
from fencepost.records.opened import Record

EVERY: Final = bool(os.environ.get("FENCEPOST_EVERY_CALL"))
COORDINATOR, LEADER, OTHER = 1, 2, 3
PARTITIONS: Final = [TopicPartition("copies", index) for index in range(3)]
SOURCE: Final = TopicPartition("source", 0)
GROUP: Final = "g"
PATIENCE_SECONDS: Final = 30.0


class Case(NamedTuple):
    """Who dies where, while a transaction of a protocol ends."""

    deaths: tuple[tuple[int, str], ...]
    commit: bool
    version: int

    def __str__(self) -> str:
        return "+".join(f"{point}@{broker}" for broker, point in self.deaths) + f"-TV{self.version}"


def cases() -> Iterator[Case]:
    for commit, points, remote, at_leader in (
        (True, COMMIT_POINTS, COMMIT_REMOTE_POINTS, COMMIT_LEADER_POINTS),
        (False, ABORT_POINTS, ABORT_REMOTE_POINTS, ABORT_LEADER_POINTS),
    ):
        single = [(COORDINATOR, point) for point in (*points, *remote)]
        single += [(LEADER, point) for point in at_leader]
        pairs = [
            ((COORDINATOR, remote.markers_sent), (LEADER, at_leader.marker_received)),
            ((COORDINATOR, remote.markers_answered), (LEADER, at_leader.reply_ready)),
            ((OTHER, at_leader.marker_written), (LEADER, at_leader.marker_written)),
        ]
        for number, deaths in enumerate([*((death,) for death in single), *pairs]):
            if EVERY or number % 2 == commit:
                for version in (1, 2) if EVERY else (1 + number // 2 % 2,):
                    yield Case(deaths, commit, version)


class Stage:
    """A cluster whose roles are fixed, and a transaction that runs on it."""

    def __init__(self, cluster: fencepost.Cluster) -> None:
        self.cluster = cluster
        self.client = connect(cluster.bootstrap_servers)
        self.client.create_topics([NewTopic("source", 1, 3), NewTopic("copies", 3, 3)])
        self.client.init_producer_id("first")
        self.client.offset_commit(GROUP, {SOURCE: CommittedOffset(0)})
        cluster.move_coordinator("transactional", "any", COORDINATOR)
        cluster.move_coordinator("group", GROUP, LEADER)
        for partition, broker_id in zip(PARTITIONS, (COORDINATOR, LEADER, OTHER), strict=True):
            cluster.move(partition.topic, partition.partition, broker_id)
        self.committed: list[bytes] = []
        self.written: list[bytes] = []
        self.offset = 0

    def close(self) -> None:
        self.client.close()

    def pids(self) -> dict[int, int | None]:
        return {each.id: each.pid for each in self.cluster.brokers}

    def begin(self, name: str, version: int) -> ProducerIdentity:
        """A transaction over all partitions and the group."""
        identity = replace(self.client.init_producer_id(name), transaction_version=version)
        value = name.encode()
        with self.client.writer(identity) as writer:
            for partition in PARTITIONS:
                writer.write_records(partition, [Record(value=value)])
            writer.flush()
        self.client.txn_offset_commit(
            identity, GROUP, {SOURCE: CommittedOffset(len(self.written) + 1)}
        )
        self.written.append(value)
        return identity

    def recover(self, before: dict[int, int | None], dead: list[int]) -> None:
        """Starts who died, and gives all brokers their roles again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for broker_id in dead:
            while self.pids()[broker_id] == before[broker_id]:
                assert time.monotonic() < deadline, f"broker {broker_id} did not reach its point"
                time.sleep(0.01)
        for broker_id in dead:
            self.cluster.restart(broker_id)
        self.cluster.rebalance()

    def check(self, name: str) -> None:
        """Everything that readers see is what was committed, once."""
        for partition in PARTITIONS:
            committed = self.client.records(partition, isolation="read_committed")
            assert [record.value for record in committed] == self.committed, partition
            everything = self.client.records(partition, isolation="read_uncommitted")
            assert [record.value for record in everything] == self.written, partition
            assert set(outcomes(self.client, partition)[-1]) == {name.encode() in self.committed}
        committed_offset = self.client.offset_fetch(GROUP, [SOURCE])[SOURCE].offset
        assert committed_offset == self.offset
        states = {each.transactional_id: each.state for each in self.client.list_transactions()}
        assert states[name] == (
            "CompleteCommit" if name.encode() in self.committed else "CompleteAbort"
        )
        for producers in self.client.describe_producers(PARTITIONS).values():
            assert all(each.current_txn_start_offset < 0 for each in producers)


def outcomes(client: Cluster, partition: TopicPartition) -> list[list[bool]]:
    """The markers after each record of a partition. A takeover may repeat one."""
    found: list[list[bool]] = []
    batches = client.fetch({partition: 0}, isolation="read_uncommitted")[partition].batches
    for batch in batches:
        if batch.is_control:
            marker = read_marker(batch)
            assert marker is not None, "transactions write no other control batches"
            found[-1].append(marker.commit)
        else:
            found.append([])
    return found


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    settings = {
        "transaction.state.log.num.partitions": 1,
        "offsets.topic.num.partitions": 1,
        "broker.session.timeout.ms": 5000,
    }
    with fencepost.Cluster(brokers=3, config=settings) as cluster:
        made = Stage(cluster)
        yield made
        made.close()


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_after_kills_at_any_point_of_an_end_the_outcome_is_the_decided_one_everywhere(
    stage: Stage, case: Case
) -> None:
    name = str(case)
    before = stage.pids()
    identity = stage.begin(name, case.version)
    for broker_id, point in case.deaths:
        assert stage.cluster.data is not None
        send_command(stage.cluster.data, {"do": "die", "broker": broker_id, "at": point})
    # With two of three brokers dead no one can answer, so the dead ones are restarted first.
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(stage.client.end_txn, identity, commit=case.commit)
        stage.recover(before, [broker_id for broker_id, _ in case.deaths])
        ending.result()
    if case.commit:
        stage.committed.append(name.encode())
        stage.offset = len(stage.written)
    stage.check(name)


def test_an_unknown_crash_point_is_refused(stage: Stage) -> None:
    assert stage.cluster.data is not None
    with pytest.raises(FencepostError, match="is not a crash point"):
        send_command(stage.cluster.data, {"do": "die", "broker": 1, "at": "commit.never"})
