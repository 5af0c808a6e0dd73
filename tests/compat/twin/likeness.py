"""Replies of two brokers in a common form: values that must differ are normalised."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from fencepost.records.batch import BatchError, SealedBatch, read_header
from fencepost.records.control import read_marker
from fencepost.records.opened import open_batch
from fencepost.wire.schema import FIRST_TAG_OF_OURS, Form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.base.seams import Buffer

HOUR_MS: Final = 3_600_000
EPOCH_MS: Final = time.time_ns() // 1_000_000 - HOUR_MS
"""The time of the records that scripts write: fixed for the session, and within every retention
time."""
EPOCH_WIDTH_MS: Final = 1_000_000
NOW_WIDTH_MS: Final = 1_200_000

DROPPED: Final = frozenset(
    {
        "throttle_time_ms",
        "error_message",
        "batch_index_error_message",
        "host",
        "port",
        "cluster_id",
        "documentation",
        # A server may decline fetch sessions: 0. The ids of those that do not are random.
        "session_id",
    }
)
PRODUCER_IDS: Final = frozenset({"producer_id"})
NODES: Final = frozenset({"node_id", "leader_id", "controller_id", "broker_id", "replica_id"})
NODE_LISTS: Final = frozenset({"replica_nodes", "isr_nodes", "offline_replicas"})
TIMES: Final = frozenset(
    {
        "transaction_start_time_ms",
        "last_timestamp",
        "log_append_time_ms",
        "timestamp",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
    }
)
UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SENTINELS: Final = (-2, -1, 0)


class Likeness:
    """Normalises the replies of one broker to one script."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._first_producer_id: int | None = None
        self._numbered: dict[str | bytes, int] = {}

    def of(self, value: Any, field: str = "") -> Any:
        """A reply, or a part of it, in comparable form."""
        if isinstance(value, Form):
            return {
                f.name: self.of(getattr(value, f.name), f.name)
                for f in value.form_fields
                if f.name not in DROPPED and (f.tag is None or f.tag < FIRST_TAG_OF_OURS)
            }
        if field == "records":
            return [self._batch(batch) for batch in whole_batches(value or b"")]
        if field in NODE_LISTS:
            return [self._node(item) for item in value]
        if isinstance(value, list):
            # The order of topics, partitions and groups in a reply has no meaning.
            return sorted((self.of(item, field) for item in value), key=repr)
        return self._scalar(value, field)

    def _scalar(self, value: Any, field: str) -> Any:
        if field in PRODUCER_IDS:
            return self.producer(value)
        if field in NODES:
            return self._node(value)
        if field in TIMES:
            return moment(value)
        if isinstance(value, str):
            return UUID_TEXT.sub(lambda found: f"#{self._number(found[0])}", value)
        if field == "topic_id":
            return f"#{self._number(value)}" if any(value[:15]) else f"chosen {value[15]}"
        return bytes(value) if isinstance(value, memoryview) else value

    def producer(self, producer_id: int) -> int | str:
        """A producer id as its distance from the first one that this script saw."""
        if producer_id in SENTINELS[:2]:
            return producer_id
        if self._first_producer_id is None:
            self._first_producer_id = producer_id
        return f"p+{producer_id - self._first_producer_id}"

    def _number(self, identity: str | bytes) -> int:
        return self._numbered.setdefault(identity, len(self._numbered))

    def _node(self, node_id: int) -> str:
        return "the node" if node_id == self._node_id else f"node {node_id}"

    def _batch(self, batch: SealedBatch) -> dict[str, Any]:
        return {
            "offsets": (batch.base_offset, batch.last_offset),
            "producer": (self.producer(batch.producer_id), batch.producer_epoch),
            "sequence": batch.base_sequence,
            "attributes": batch.attributes,
            "leader epoch": batch.leader_epoch,
            "time": moment(batch.max_timestamp),
            "holds": _content(batch),
        }


def moment(time_ms: int) -> Any:
    """A time of ours by its distance from the epoch of this session, one of the broker's as now."""
    if time_ms in SENTINELS:
        return time_ms
    if 0 <= time_ms - EPOCH_MS < EPOCH_WIDTH_MS:
        return f"T+{time_ms - EPOCH_MS}"
    if abs(time_ms - time.time_ns() // 1_000_000) < NOW_WIDTH_MS:
        return "now"
    return time_ms


def whole_batches(data: Buffer) -> Iterator[SealedBatch]:
    """The batches of a fetched field; an incomplete one at the end, as Kafka sends, is skipped."""
    position = 0
    view = memoryview(data)
    while position < len(view):
        try:
            batch = read_header(view, position)
        except BatchError:
            return
        if position + batch.size_bytes > len(view):
            return
        yield batch
        position += batch.size_bytes


def _content(batch: SealedBatch) -> Any:
    if not batch.is_control:
        return [(record.key, record.value) for record in open_batch(batch)]
    marker = read_marker(batch)
    if marker is None:
        return "control"
    word = "COMMIT" if marker.commit else "ABORT"
    return f"{word} of coordinator epoch {marker.coordinator_epoch}"


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """A line for each field in which two replies differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        for key in theirs:
            yield from differences(theirs[key], ours[key], f"{path}.{key}" if path else key)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif theirs != ours:
        yield f"{path or 'reply'}: Apache Kafka {theirs!r}, fencepost {ours!r}"
