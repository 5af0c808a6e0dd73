"""The ledger: which micro-batch is in the topics, written by the very transaction that put it there.

Theory of operation. A Kafka transaction can commit offsets of a consumer group together with records. The sink owns
the group `fencepost-<transactional id>` and commits in every transaction one offset of it, on partition 0 of a topic
that it writes to: the offset is the batch id, and the metadata says which query it was and what the batch was made
from (a fingerprint of its source offsets). So after any crash the question "is batch 7 in Kafka?" has one answer, and
Kafka itself gives it, whatever Spark's checkpoint believes.

Spark repeats the newest batch whose end it has not logged, with the same id and the same source offsets, and never an
older one. `decide` is the table of what to do then:

    ledger                                   batch b of query q
    none                                     write if b is 0, else refuse (expired or deleted)
    q, b, same fingerprint                   drain: run the query's plan for its state, write nothing
    q, b, other fingerprint                  refuse: the checkpoint was changed under the query
    q, b - 1                                 write
    q, anything else                         refuse: the checkpoint is older or newer than the topics
    another query, its sources end where     take over: a new checkpoint that continues where the old one ended
      this batch begins
    another query otherwise                  refuse

With `adopt` the sink writes where the reason to refuse is a missing ledger or another query. It never overrides a
contradiction within one query.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset

VERSION: Final = 1
GROUP_PREFIX: Final = "fencepost-"

SourceOffsets = Mapping[TopicPartition, int]


class LedgerEntry(NamedTuple):
    """What the last committed transaction said about itself."""

    query_id: str
    batch_id: int
    fingerprint: str = ""
    longest_ms: int = 0
    """The longest time that a transaction of this id was open: what its timeout must exceed."""


class Verdict(Enum):
    """What to do with a batch."""

    WRITE = "write"
    DRAIN = "drain"
    TAKE_OVER = "take over"
    REFUSE = "refuse"

    @property
    def writes(self) -> bool:
        return self in (Verdict.WRITE, Verdict.TAKE_OVER)


class Decision(NamedTuple):
    """The verdict and, for people, why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as the ledger sees it."""

    query_id: str
    batch_id: int
    fingerprint: str = ""
    start: SourceOffsets | None = None
    """Where its sources begin, if all of them are topics; None if they are not, or it is not known."""


def group_of(transactional_id: str) -> str:
    """The group in which the sink of this transactional id keeps its ledger."""
    return GROUP_PREFIX + transactional_id


def fingerprint_of(end_offsets: Iterable[str]) -> str:
    """A short name for the end offsets of all sources: equal for a batch and its repetition."""
    digest = hashlib.sha256("\n".join(sorted(end_offsets)).encode("utf-8"))
    return digest.hexdigest()[:16]


def encode_entry(entry: LedgerEntry) -> CommittedOffset:
    """The entry as an offset with metadata."""
    metadata = {
        "v": VERSION,
        "queryId": entry.query_id,
        "batchId": entry.batch_id,
        "fingerprint": entry.fingerprint,
        "longestMs": entry.longest_ms,
    }
    return CommittedOffset(entry.batch_id, json.dumps(metadata, separators=(",", ":")))


def decode_entry(committed: CommittedOffset) -> LedgerEntry | None:
    """The entry behind an offset; None for an offset that is no ledger (of a source, or somebody else's)."""
    try:
        metadata = json.loads(committed.metadata)
        if metadata["v"] != VERSION or metadata["batchId"] != committed.offset:
            return None
        return LedgerEntry(
            str(metadata["queryId"]),
            committed.offset,
            str(metadata["fingerprint"]),
            int(metadata.get("longestMs", 0)),
        )
    except (ValueError, KeyError, TypeError):
        return None


class Page(NamedTuple):
    """Everything that the group has committed, told apart."""

    place: TopicPartition | None
    entry: LedgerEntry | None
    sources: dict[TopicPartition, int]


def read_page(committed: Mapping[TopicPartition, CommittedOffset], query_id: str) -> Page:
    """Finds the entry among the offsets of a group: this query's newest one, or any other."""
    entries = {tp: entry for tp, value in committed.items() if (entry := decode_entry(value))}
    sources = {tp: value.offset for tp, value in committed.items() if tp not in entries}
    if not entries:
        return Page(None, None, sources)
    place = max(entries, key=lambda tp: (entries[tp].query_id == query_id, entries[tp].batch_id))
    return Page(place, entries[place], sources)


def decide(page: Page, batch: Batch, *, adopt: bool = False) -> Decision:
    """The table above."""
    entry = page.entry
    if entry is None:
        return _decide_without_ledger(batch, adopt)
    if entry.query_id != batch.query_id:
        return _decide_other_query(page, entry, batch, adopt)
    if entry.batch_id == batch.batch_id - 1:
        return Decision(Verdict.WRITE, f"batch {entry.batch_id} is the last one in the topics")
    if entry.batch_id == batch.batch_id:
        return _decide_repetition(entry, batch)
    return Decision(
        Verdict.REFUSE,
        f"the topics hold batch {entry.batch_id} of this query as the last one, and the checkpoint "
        f"wants to write batch {batch.batch_id}: the checkpoint was restored from another time or edited. "
        "Restore the checkpoint that belongs to the topics, or start anew with an empty checkpoint and "
        "another transactional_id",
    )


def _decide_without_ledger(batch: Batch, adopt: bool) -> Decision:
    if batch.batch_id == 0:
        return Decision(Verdict.WRITE, "the first batch, and no ledger")
    if adopt:
        return Decision(Verdict.WRITE, "no ledger, adopted")
    return Decision(
        Verdict.REFUSE,
        f"batch {batch.batch_id} is not the first one, but the cluster has no ledger of this transactional_id: "
        "it expired (offsets.retention.minutes), was deleted, or this is another cluster; or no batch before it had a "
        "row, and neither topic= nor ledger_topic= names a place for a ledger. Whether the batch is in the topics cannot "
        "be known. Look at the end of the topics; if the batch is not there, pass adopt=True once",
    )


def _decide_repetition(entry: LedgerEntry, batch: Batch) -> Decision:
    known = entry.fingerprint and batch.fingerprint
    if known and entry.fingerprint != batch.fingerprint:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} is in the topics already, made from other source offsets than the checkpoint now "
            "has for it: the checkpoint has diverged (edited, or two queries use it). Restore the checkpoint that "
            "belongs to the topics, or start anew with an empty checkpoint and another transactional_id",
        )
    return Decision(Verdict.DRAIN, f"batch {batch.batch_id} is in the topics already")


def _decide_other_query(page: Page, entry: LedgerEntry, batch: Batch, adopt: bool) -> Decision:
    if _continues(page.sources, batch.start):
        return Decision(
            Verdict.TAKE_OVER, f"continues where batch {entry.batch_id} of {entry.query_id} ended"
        )
    if adopt:
        return Decision(Verdict.TAKE_OVER, f"adopted from query {entry.query_id}")
    return Decision(
        Verdict.REFUSE,
        f"the transactional_id belongs to query {entry.query_id} (last batch {entry.batch_id}), and this is query "
        f"{batch.query_id}: either two queries use one id, or the checkpoint is new and would write again what is in "
        "the topics. Give this query its own transactional_id; or, after a lost checkpoint, start from the committed "
        'offsets (startingOffsets="committed"), or pass adopt=True once if you know where it begins',
    )


def _continues(committed: SourceOffsets, start: SourceOffsets | None) -> bool:
    """Whether a batch begins exactly where the committed source offsets end."""
    return bool(start) and bool(committed) and dict(committed) == dict(start or {})
