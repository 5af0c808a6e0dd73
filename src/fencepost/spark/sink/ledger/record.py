"""One ledger record as a sealed batch: the only one of its identity in its partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.sink.ledger.topic import key_of

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity


def append_record(
    cluster: Cluster, identity: ProducerIdentity, place: TopicPartition, value: bytes | None
) -> None:
    """Writes one ledger record; None is a tombstone. An identity writes once to a partition."""
    with cluster.writer(identity) as writer:
        writer.write(place, sealed_record(identity, value))
        writer.flush()


def sealed_record(identity: ProducerIdentity, value: bytes | None) -> bytearray:
    """The batch of a record, which must be the identity's first in its partition."""
    assert identity.transactional_id is not None
    return build_batch(
        [Record(key=key_of(identity.transactional_id), value=value)],
        timestamp_ms=time.time_ns() // 1_000_000,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
