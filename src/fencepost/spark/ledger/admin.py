"""Administration of the ledger: list and describe ids, adopt a query, forget an id.

Every change is a transaction of the transactional id itself, after a fence, like one of the sink.
The fence stops any other producer with the id, so nothing can be committed between the read and the
write. Afterwards the id has at most one record.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import Refused
from fencepost.spark.failures import EntryUnreadable
from fencepost.spark.ledger.entry import LedgerEntry, decode_entry, encode_entry, key_of, next_entry
from fencepost.spark.ledger.reader import FoundRecord, ScanResult, places_of, scan
from fencepost.spark.ledger.topic import (
    LEDGER_TOPIC,
    find_topic,
    partition_of,
    refusal_of,
)
from fencepost.spark.ledger.writer import append_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity

TRANSACTION_TIMEOUT_MS: Final = 60_000
_IDLE: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The record of one id."""

    transactional_id: str
    found: FoundRecord
    entry: LedgerEntry | None
    """None if the record cannot be read."""
    problem: str = ""
    is_settled: bool = True
    """False if an open transaction of the id has written another record."""


@dataclass(frozen=True, slots=True)
class IdDescription:
    """Everything the cluster stores about one id."""

    records: tuple[LedgerRecord, ...]
    """Newest first. More than one only if another program has written them."""
    state: str | None
    """The coordinator's state of the id; None if it does not exist."""

    @property
    def newest(self) -> LedgerRecord | None:
        """The newest record."""
        return self.records[0] if self.records else None

    @property
    def entry(self) -> LedgerEntry | None:
        """The entry in the newest record."""
        return self.newest.entry if self.newest is not None else None

    @property
    def is_open(self) -> bool:
        """Whether a transaction of the id is open."""
        return self.state is not None and self.state not in _IDLE


def list_records(cluster: Cluster, topic: str = LEDGER_TOPIC) -> list[LedgerRecord]:
    """The newest record of every id in the topic."""
    newest: dict[bytes, LedgerRecord] = {}
    for record in _records(_scan(cluster, _require_topic(cluster, topic), None, fenced=False)):
        key = record.found.key
        if key not in newest or _age(newest[key]) < _age(record):
            newest[key] = record
    return sorted(newest.values(), key=lambda record: record.transactional_id)


def describe_id(
    cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC, *, fenced: bool = False
) -> IdDescription:
    """Describes one id without fencing it. `fenced`: see `scan`."""
    view = find_topic(cluster, topic)
    records: list[LedgerRecord] = []
    if view is not None:
        records = _records(_scan(cluster, view, key_of(transactional_id), fenced=fenced))
    described = cluster.describe_transactions([transactional_id])[transactional_id]
    state = None if described is None else described.state
    return IdDescription(tuple(sorted(records, key=_age, reverse=True)), state)


def adopt(
    cluster: Cluster,
    transactional_id: str,
    query_id: str,
    last_batch: int,
    topic: str = LEDGER_TOPIC,
    *,
    force: bool = False,
) -> LedgerEntry:
    """Records this batch of this query as the last committed one; -1: none is."""
    wanted = LedgerEntry(query_id, last_batch)

    def after(before: LedgerEntry | None) -> LedgerEntry:
        return next_entry(before, wanted)

    return _rewrite(cluster, transactional_id, topic, after, force=force)


def forget(
    cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC, *, force: bool = False
) -> None:
    """Deletes everything about the id, as if no query had used it."""
    before = _require_quiet(cluster, transactional_id, topic, force=force)
    if not before.records:
        raise _no_record(transactional_id, topic)
    identity = _fence(cluster, transactional_id)
    described = describe_id(cluster, transactional_id, topic, fenced=True)
    if described.records:
        _commit(cluster, identity, {record.found.place: None for record in described.records})
        # Otherwise the coordinator shows a committed transaction, and the sink misses its ledger.
        _fence(cluster, transactional_id)


def _rewrite(
    cluster: Cluster,
    transactional_id: str,
    topic: str,
    change: Callable[[LedgerEntry | None], LedgerEntry],
    *,
    force: bool,
) -> LedgerEntry:
    """Replaces all records of the id by one."""
    view = _require_topic(cluster, topic)
    _require_quiet(cluster, transactional_id, topic, force=force)
    identity = _fence(cluster, transactional_id)
    described = describe_id(cluster, transactional_id, topic, fenced=True)
    entry = change(described.entry)
    place = TopicPartition(topic, partition_of(transactional_id, len(view.partitions)))
    if described.newest is not None:
        place = described.newest.found.place
    values: dict[TopicPartition, bytes | None] = {
        record.found.place: None for record in described.records
    }
    values[place] = encode_entry(entry)
    _commit(cluster, identity, values)
    return entry


def _commit(
    cluster: Cluster, identity: ProducerIdentity, values: Mapping[TopicPartition, bytes | None]
) -> None:
    try:
        for place, value in values.items():
            append_record(cluster, identity, place, value)
    except FencepostError:
        with suppress(FencepostError):  # The first error matters; the next fence aborts it too.
            cluster.end_txn(identity, commit=False)
        raise
    cluster.end_txn(identity, commit=True)


def _fence(cluster: Cluster, transactional_id: str) -> ProducerIdentity:
    return cluster.init_producer_id(transactional_id, TRANSACTION_TIMEOUT_MS)


def _require_quiet(
    cluster: Cluster, transactional_id: str, topic: str, *, force: bool
) -> IdDescription:
    """Describes the id before the fence; refuses if its transaction is open."""
    described = describe_id(cluster, transactional_id, topic)
    if described.is_open and not force:
        raise FencepostError(
            f"a transaction of {transactional_id!r} is open (state {described.state}): a query is "
            "writing, or has died. Stop it, and wait until the transaction has timed out; or pass "
            "--force, which aborts it and fences the query. Nothing was changed"
        )
    return described


def _require_topic(cluster: Cluster, topic: str) -> TopicView:
    view = find_topic(cluster, topic)
    if view is None:
        raise FencepostError(
            f"the cluster has no topic {topic!r}: name the ledger topic with --topic, or create it "
            "with `fencepost ledger create`"
        )
    return view


def _scan(cluster: Cluster, view: TopicView, key: bytes | None, *, fenced: bool) -> ScanResult:
    try:
        return scan(cluster, places_of(view), key, fenced=fenced)
    except Refused as problem:
        raise refusal_of(view.name, problem) from problem


def _records(found: ScanResult) -> list[LedgerRecord]:
    open_keys = {record.key for record in found.undecided}
    return [
        _record(each, is_settled=each.key not in open_keys)
        for each in found.committed
        if each.value is not None
    ]


def _record(found: FoundRecord, *, is_settled: bool) -> LedgerRecord:
    assert found.value is not None
    name = found.key.decode("utf-8", "replace")
    try:
        return LedgerRecord(name, found, decode_entry(found.value), is_settled=is_settled)
    except EntryUnreadable as problem:
        return LedgerRecord(name, found, None, str(problem), is_settled)


def _age(record: LedgerRecord) -> tuple[bool, int]:
    """The sort key of the records of one id. An unreadable one may be the newest, so it wins."""
    return (record.entry is None, record.entry.serial if record.entry else 0)


def _no_record(transactional_id: str, topic: str) -> FencepostError:
    return FencepostError(
        f"topic {topic!r} has no record of {transactional_id!r}: `fencepost ledger list` lists its "
        "records"
    )
