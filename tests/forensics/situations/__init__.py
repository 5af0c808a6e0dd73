"""Prepared situations: what goes wrong with a transaction, on any broker.

Each function takes a bootstrap address, brings a transactional id into trouble, and returns what a
support engineer would be told: the id, and the producer that complained. Nothing here reads the
result: tests do, through the commands. The same function runs on fencepost and on Apache Kafka.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import RawClient
from tests.forensics.running import run
from tests.transactions.protocol import TV1, TV2

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity

PATIENCE_SECONDS: Final = 60.0
SHORT_TIMEOUT_MS: Final = 1_500
TV: Final = {1: TV1, 2: TV2}


@dataclass(frozen=True, slots=True)
class Situation:
    """An id in trouble, and the producer that complained."""

    transactional_id: str
    partition: TopicPartition
    identity: ProducerIdentity


def write(cluster: Cluster, identity: ProducerIdentity, partition: TopicPartition) -> None:
    """Writes two records in the transaction."""
    with cluster.writer(identity) as writer:
        writer.write_records(partition, [Record(value=b"one"), Record(value=b"two")])
        writer.flush()


def begin(cluster: Cluster, protocol: int, timeout_ms: int = 60_000) -> Situation:
    """A producer of a new id in the middle of a transaction on a new topic."""
    name = uuid.uuid4().hex[:8]
    partition = TopicPartition(f"orders-{name}", 0)
    cluster.create_topics([NewTopic(partition.topic, 1)])
    identity = cluster.init_producer_id(f"refunds-{name}", timeout_ms=timeout_ms)
    identity = replace(identity, transaction_version=protocol)
    write(cluster, identity, partition)
    return Situation(f"refunds-{name}", partition, identity)


def await_state(cluster: Cluster, transactional_id: str, *states: str | None) -> None:
    """Waits until the coordinator describes the id in one of these states; None: unknown."""

    def reached() -> bool:
        view = cluster.describe_transactions([transactional_id])[transactional_id]
        return (view.state if view else None) in states

    await_until(reached, f"{transactional_id} in {states}")


def await_until(reached: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not reached: {what}"
        time.sleep(0.05)


def end_txn_request(found: Situation) -> EndTxnRequest:
    """The commit of a situation's transaction."""
    return EndTxnRequest(
        transactional_id=found.transactional_id,
        producer_id=found.identity.producer_id,
        producer_epoch=found.identity.producer_epoch,
        committed=True,
    )


# -- the situations -------------------------------------------------------------------------------


def open_transaction(servers: str, protocol: int = 2) -> Situation:
    """A producer in the middle of a transaction: nothing is wrong."""
    with connect(servers) as cluster:
        return begin(cluster, protocol)


def committed(servers: str, protocol: int = 2) -> Situation:
    """A producer that has committed."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        after = cluster.end_txn(found.identity, commit=True)
        await_state(cluster, found.transactional_id, "CompleteCommit")
        return replace(found, identity=after)


def timed_out(servers: str, protocol: int = 2) -> Situation:
    """A producer that paused for longer than its timeout."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol, timeout_ms=SHORT_TIMEOUT_MS)
        await_state(cluster, found.transactional_id, "CompleteAbort")
        return found


def newer_instance(servers: str, protocol: int = 2) -> Situation:
    """A second instance with the same id starts while the first has a transaction open."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        cluster.init_producer_id(found.transactional_id, timeout_ms=60_000)
        return found


def newer_instance_that_works(servers: str, protocol: int = 2) -> Situation:
    """The second instance goes on to write and commit."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        second = cluster.init_producer_id(found.transactional_id, timeout_ms=60_000)
        second = replace(second, transaction_version=protocol)
        write(cluster, second, found.partition)
        cluster.end_txn(second, commit=True)
        return found


def newer_instance_between_transactions(servers: str, protocol: int = 2) -> Situation:
    """A second instance starts when the first has no transaction open."""
    found = committed(servers, protocol)
    with connect(servers) as cluster:
        cluster.init_producer_id(found.transactional_id, timeout_ms=60_000)
    return found


def fenced_by_administrator(servers: str, protocol: int = 2) -> Situation:
    """What Java's Admin.fenceProducers does: InitProducerId with its request timeout."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        cluster.init_producer_id(found.transactional_id, timeout_ms=30_000)
        return found


def ended_by_operator(servers: str, action: str, protocol: int = 2) -> Situation:
    """An operator ends the transaction with `fencepost txn`, or fences its producer."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        run(servers, "txn", action, found.transactional_id, "--yes")
        state = {"commit": "CompleteCommit", "abort": "CompleteAbort", "fence": "Empty"}[action]
        await_state(cluster, found.transactional_id, state)
        return found


def aborted_by_client(servers: str, protocol: int = 2) -> Situation:
    """The producer aborts by itself and goes on."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        after = cluster.end_txn(found.identity, commit=False)
        await_state(cluster, found.transactional_id, "CompleteAbort")
        if protocol >= 2:
            write(cluster, after, found.partition)
            cluster.end_txn(after, commit=True)
        return found


def aborted_by_markers(servers: str, protocol: int = 2) -> Situation:
    """An administrator writes an ABORT marker behind the coordinator's back (WriteTxnMarkers)."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        producer = cluster.describe_producers([found.partition])[found.partition][0]
        marker = WritableTxnMarker(
            producer_id=found.identity.producer_id,
            producer_epoch=found.identity.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=found.partition.topic, partition_indexes=[0])],
            coordinator_epoch=max(0, producer.coordinator_epoch),
        )
        leader = cluster.metadata([found.partition.topic]).topics[found.partition.topic]
        reply = cluster.send_request(
            ApiKey.WRITE_TXN_MARKERS,
            WriteTxnMarkersRequest(markers=[marker]),
            leader.partitions[0].leader,
        )
        assert reply.markers[0].topics[0].partitions[0].error_code == 0, reply
        return found


def committed_after_markers(servers: str, protocol: int = 1) -> Situation:
    """The producer does not notice the administrator's marker and commits the rest."""
    found = aborted_by_markers(servers, protocol)
    with connect(servers) as cluster:
        cluster.end_txn(found.identity, commit=True)
        await_state(cluster, found.transactional_id, "CompleteCommit")
    return found


def expired(servers: str, protocol: int = 2) -> Situation:
    """An id that was idle for too long; the broker needs a small transactional.id.expiration.ms."""
    found = committed(servers, protocol)
    with connect(servers) as cluster:
        await_state(cluster, found.transactional_id, None)
    return found


def lost_answer(servers: str, protocol: int = 2) -> Situation:
    """EndTxn (commit) takes effect, and the connection closes before its reply is read."""
    with connect(servers) as cluster:
        found = begin(cluster, protocol)
        client = RawClient(servers)
        client.send(ApiKey.END_TXN, TV[protocol].end_txn, end_txn_request(found))
        await_state(cluster, found.transactional_id, "CompleteCommit")
        client.close()
        return found
