"""The ledger in the hands of a person: look at it, let a query in, forget an id.

Every change is a transaction of the transactional id itself, after a fence, like one of the sink:
whoever writes with the id is locked out first, so nothing can be committed between what was read
and what is written. Afterwards an id has one record at most, wherever it had some before, and its
old place in the group is cleared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import Refused
from fencepost.spark.failures import EntryUnreadable
from fencepost.spark.sink.ledger.former import moved_to, read_former
from fencepost.spark.sink.ledger.ledger import (
    FormerLedger,
    LedgerEntry,
    decode_entry,
    encode_entry,
    follow,
    group_of,
)
from fencepost.spark.sink.ledger.reader import Found, Scan, places_of, scan
from fencepost.spark.sink.ledger.record import append_record
from fencepost.spark.sink.ledger.topic import LEDGER_TOPIC, key_of, partition_of, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.client.groups import CommittedOffset
    from fencepost.client.transactions import ProducerIdentity

TRANSACTION_TIMEOUT_MS: Final = 60_000
_IDLE: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One id, as its record says."""

    transactional_id: str
    found: Found
    entry: LedgerEntry | None
    """None when the record cannot be read."""
    problem: str = ""
    is_settled: bool = True
    """False when a transaction of the id, which has written another record, is open."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that the cluster has of one id."""

    records: tuple[LedgerRecord, ...]
    """The newest first. More than one where partitions were added by an older version, or by
    hand."""
    former: FormerLedger | None
    state: str | None
    """What the transaction coordinator says of the id; None where it does not know it."""

    @property
    def newest(self) -> LedgerRecord | None:
        return self.records[0] if self.records else None

    @property
    def entry(self) -> LedgerEntry | None:
        if self.newest is not None:
            return self.newest.entry
        return self.former.entry if self.former else None

    @property
    def is_open(self) -> bool:
        return self.state is not None and self.state not in _IDLE


def list_records(cluster: Cluster, topic: str = LEDGER_TOPIC) -> list[LedgerRecord]:
    """The newest record of every id in the topic."""
    newest: dict[bytes, LedgerRecord] = {}
    for record in _records(_scan(cluster, _require_topic(cluster, topic), None, fenced=False)):
        key = record.found.key
        if key not in newest or _age(newest[key]) < _age(record):
            newest[key] = record
    return sorted(newest.values(), key=lambda record: record.transactional_id)


def look_up(cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC) -> Holdings:
    """All about one id, without touching it."""
    return _look_up(cluster, transactional_id, topic, fenced=False)


def _look_up(cluster: Cluster, transactional_id: str, topic: str, *, fenced: bool) -> Holdings:
    view = _find_topic(cluster, topic)
    records: list[LedgerRecord] = []
    if view is not None:
        records = _records(_scan(cluster, view, key_of(transactional_id), fenced=fenced))
    described = cluster.describe_transactions([transactional_id])[transactional_id]
    committed = cluster.offset_fetch(group_of(transactional_id), require_stable=fenced)
    return Holdings(
        tuple(sorted(records, key=_age, reverse=True)),
        read_former(committed, ""),
        None if described is None else described.state,
    )


def adopt(
    cluster: Cluster,
    transactional_id: str,
    query_id: str,
    last_batch: int,
    topic: str = LEDGER_TOPIC,
    *,
    force: bool = False,
) -> LedgerEntry:
    """Says that this batch of this query is the last one in the topics; -1: none of it is."""
    wanted = LedgerEntry(query_id, last_batch)
    return _rewrite(
        cluster, transactional_id, topic, lambda before: follow(before, wanted, None), force=force
    )


def forget_durations(
    cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC, *, force: bool = False
) -> LedgerEntry:
    """Forgets how long transactions were open, so that the sink starts with a lower timeout."""
    if look_up(cluster, transactional_id, topic).entry is None:
        raise _nothing_known(transactional_id, topic)

    def without(before: LedgerEntry | None) -> LedgerEntry:
        assert before is not None, "a fence ends transactions, and removes no record"
        return replace(follow(before, before, None), recent_ms=())

    return _rewrite(cluster, transactional_id, topic, without, force=force)


def forget(
    cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC, *, force: bool = False
) -> None:
    """Deletes all that is known of the id, as if no query had ever used it."""
    before = _require_quiet(cluster, transactional_id, topic, force=force)
    if not before.records and before.former is None:
        raise _nothing_known(transactional_id, topic)
    identity = _fence(cluster, transactional_id)
    holdings = _look_up(cluster, transactional_id, topic, fenced=True)
    if holdings.records:
        _commit(cluster, identity, {record.found.place: None for record in holdings.records}, {})
        # The coordinator remembers a committed transaction, and the sink would miss its ledger.
        _fence(cluster, transactional_id)
    if holdings.former is not None:
        cluster.offset_delete(group_of(transactional_id), holdings.former.places)


def _rewrite(
    cluster: Cluster,
    transactional_id: str,
    topic: str,
    change: Callable[[LedgerEntry | None], LedgerEntry],
    *,
    force: bool,
) -> LedgerEntry:
    """Replaces whatever there is by one record."""
    view = _require_topic(cluster, topic)
    _require_quiet(cluster, transactional_id, topic, force=force)
    identity = _fence(cluster, transactional_id)
    holdings = _look_up(cluster, transactional_id, topic, fenced=True)
    entry = change(holdings.entry)
    place = TopicPartition(topic, partition_of(transactional_id, len(view.partitions)))
    if holdings.newest is not None:
        place = holdings.newest.found.place
    values: dict[TopicPartition, bytes | None] = {
        record.found.place: None for record in holdings.records
    }
    values[place] = encode_entry(entry)
    marks = {}
    if holdings.former is not None and holdings.former.entry is not None:
        marks = dict.fromkeys(holdings.former.places, moved_to(topic))
    _commit(cluster, identity, values, marks)
    return entry


def _commit(
    cluster: Cluster,
    identity: ProducerIdentity,
    values: Mapping[TopicPartition, bytes | None],
    marks: Mapping[TopicPartition, CommittedOffset],
) -> None:
    assert identity.transactional_id is not None
    try:
        if marks:
            cluster.txn_offset_commit(identity, group_of(identity.transactional_id), marks)
        for place, value in values.items():
            append_record(cluster, identity, place, value)
    except FencepostError:
        with suppress(
            FencepostError
        ):  # What went wrong is said already, and the next fence aborts it as well.
            cluster.end_txn(identity, commit=False)
        raise
    cluster.end_txn(identity, commit=True)


def _fence(cluster: Cluster, transactional_id: str) -> ProducerIdentity:
    return cluster.init_producer_id(transactional_id, TRANSACTION_TIMEOUT_MS)


def _require_quiet(cluster: Cluster, transactional_id: str, topic: str, *, force: bool) -> Holdings:
    """What there is before the fence."""
    holdings = look_up(cluster, transactional_id, topic)
    if holdings.is_open and not force:
        raise FencepostError(
            f"a transaction of {transactional_id!r} is open (state {holdings.state}): a query "
            "is writing, or has died. Stop "
            "it, and wait until the transaction has timed out; or pass --force, which aborts it "
            "and fences the query. "
            "Nothing was changed"
        )
    return holdings


def _require_topic(cluster: Cluster, topic: str) -> TopicView:
    view = _find_topic(cluster, topic)
    if view is None:
        raise FencepostError(
            f"the cluster has no topic {topic!r}: name the ledger's topic with --topic, or "
            "create it with "
            "`fencepost ledger create`"
        )
    return view


def _find_topic(cluster: Cluster, topic: str) -> TopicView | None:
    try:
        return cluster.find_topic(topic)
    except Refused as problem:
        raise refusal_of(topic, problem) from problem


def _scan(cluster: Cluster, view: TopicView, key: bytes | None, *, fenced: bool) -> Scan:
    try:
        return scan(cluster, places_of(view), key, fenced=fenced)
    except Refused as problem:
        raise refusal_of(view.name, problem) from problem


def _records(found: Scan) -> list[LedgerRecord]:
    open_keys = {record.key for record in found.undecided}
    return [
        _record(each, is_settled=each.key not in open_keys)
        for each in found.committed
        if each.value is not None
    ]


def _record(found: Found, *, is_settled: bool) -> LedgerRecord:
    assert found.value is not None
    name = found.key.decode("utf-8", "replace")
    try:
        return LedgerRecord(name, found, decode_entry(found.value), is_settled=is_settled)
    except EntryUnreadable as problem:
        return LedgerRecord(name, found, None, str(problem), is_settled)


def _age(record: LedgerRecord) -> tuple[bool, int]:
    """What orders the records of one id.

    One that cannot be read may be the newest: nobody should look past it.
    """
    return (record.entry is None, record.entry.serial if record.entry else 0)


def _nothing_known(transactional_id: str, topic: str) -> FencepostError:
    return FencepostError(
        f"topic {topic!r} has no record of {transactional_id!r}: `fencepost ledger list` shows "
        "those that it has"
    )
