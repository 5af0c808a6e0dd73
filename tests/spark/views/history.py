"""A log with every fate in it, and what a view of it must show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.groups import CommittedOffset
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.opened import Record
from fencepost.spark import connection

PLACE = TopicPartition("refunds", 0)


@dataclass
class History:
    """What was written: the fate of each value, and the identities of the transactions."""

    servers: str
    place: TopicPartition
    fates: dict[str, str] = field(default_factory=dict)
    identities: dict[str, ProducerIdentity] = field(default_factory=dict)
    offsets: dict[str, str] = field(default_factory=dict)
    """The fate of each group's committed offset."""


@contextmanager
def written_history(data: Path, rounds: int = 4, value_bytes: int = 100_000) -> Iterator[History]:
    """A broker with small segments and a history in which transactions cross them."""
    settings = {
        "log.segment.bytes": 1024 * 1024,
        "transaction.state.log.num.partitions": 2,
        "offsets.topic.num.partitions": 2,
    }
    with (
        fencepost.Broker(data=data, config=settings) as broker,
        connect(broker.bootstrap_servers) as cluster,
    ):
        cluster.create_topics([NewTopic(PLACE.topic, 1)])
        yield write_history(cluster, broker.bootstrap_servers, PLACE, rounds, value_bytes)
        # The clients of readers would end with their worker.
        own = [key for key in connection._clusters if key[1].bootstrap == cluster.options.bootstrap]
        for key in own:
            connection._clusters.pop(key).close()


def write_history(
    cluster: Cluster, servers: str, place: TopicPartition, rounds: int, value_bytes: int
) -> History:
    """Writes the history to a partition of any broker; its ids and groups begin with the topic."""
    history = History(servers, place)
    for number in range(rounds):
        _write_round(cluster, history, number, "x" * value_bytes)
    return history


class _Producer:
    """One transaction, whose writer keeps its sequences until the end."""

    def __init__(self, cluster: Cluster, history: History, name: str, fate: str) -> None:
        self._cluster = cluster
        self._history = history
        self._name = name
        self._fate = fate
        self._identity = history.identities[name] = cluster.init_producer_id(
            f"{history.place.topic}-{name}"
        )
        self._writer = cluster.writer(self._identity)

    def write(self, padding: str) -> None:
        fates = self._history.fates
        values = [f"{self._name}/{len(fates)}/{i}/{padding}" for i in range(3)]
        fates |= dict.fromkeys(values, self._fate)
        self._writer.write_records(
            self._history.place, [Record(key=b"k", value=v.encode()) for v in values]
        )
        self._writer.flush()

    def commit_offset(self, group: str) -> None:
        place = self._history.place
        group = f"{place.topic}-{group}"
        self._cluster.txn_offset_commit(self._identity, group, {place: CommittedOffset(7)})
        self._history.offsets[group] = self._fate

    def end(self) -> None:
        self._writer.close()
        if self._fate != "open":
            self._cluster.end_txn(self._identity, commit=self._fate == "committed")


def _write_round(cluster: Cluster, history: History, number: int, padding: str) -> None:
    """Two transactions, one inside the other."""
    outer = _Producer(cluster, history, f"outer-{number}", "open" if number == 3 else "committed")
    inner = _Producer(cluster, history, f"inner-{number}", "aborted" if number % 2 else "committed")
    for producer in (outer, inner, outer):
        producer.write(padding)
    inner.commit_offset(f"group-{number}")
    inner.end()
    outer.write(padding)
    outer.end()
