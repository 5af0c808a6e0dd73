"""A ledger entry: the last committed micro-batch of a transactional id, and its JSON encoding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import EntryUnreadable
from fencepost.spark.offsets import from_layout, to_layout

VERSION: Final = 2
"""Version of the record's JSON. Adding a field needs no new version: readers ignore unknown
fields."""

GROUP_PREFIX: Final = "fencepost-"

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the last committed transaction recorded about its batch."""

    query_id: str
    batch_id: int
    """The last committed batch; -1 if the query has none yet."""
    fingerprint: str = ""
    sources: Offsets | None = None
    """The end offsets of the batch's sources, including those of missing topics; None if they are
    unknown or the sources are not topics."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics in `sources`, as far as they are known."""
    sources_committed: bool = False
    """Whether the same transaction committed `sources` to the group of the transactional id."""
    is_stateful: bool | None = None
    """Whether the query keeps state; None if unknown."""
    parts: tuple[str, ...] | None = None
    """The topics of the batch's DataFrames (`doors/parts.py`); empty for a skipped batch."""
    run_id: str = ""
    """The run of the query that wrote it: Spark does not repeat a batch within a run."""
    is_short: bool = False
    """Whether a second call for this batch was refused, so the batch lacks that call's rows."""
    lost: int | None = None
    """A later batch that failed while the user's function caught the failure, so Spark went on."""
    serial: int = 0
    """One higher than in the previous entry. Orders two records of an id in any partitions."""


class LedgerView(NamedTuple):
    """Everything the cluster stores about the ledger of one transactional id."""

    place: TopicPartition | None = None
    """The partition that holds the record; None if there is none."""
    entry: LedgerEntry | None = None
    """The entry in the record."""
    undecided: tuple[LedgerEntry | None, ...] = ()
    """The entries of records without a marker, whose transaction may be open; None for a
    tombstone."""

    @property
    def is_settled(self) -> bool:
        """Whether every record has its marker."""
        return not self.undecided


def key_of(transactional_id: str) -> bytes:
    """The key of an id's record."""
    return transactional_id.encode("utf-8")


def group_of(transactional_id: str) -> str:
    """The group to which the sink of this transactional id commits its source offsets."""
    return GROUP_PREFIX + transactional_id


def fingerprint_of(end_offsets: Iterable[str]) -> str:
    """A short hash of the end offsets of all sources: equal for a batch and its repetition."""
    digest = hashlib.sha256("\n".join(sorted(end_offsets)).encode("utf-8"))
    return digest.hexdigest()[:16]


def starting_offsets(entry: LedgerEntry) -> str:
    """The value of `startingOffsets` with which a query continues where the entry's batch ended."""
    return json.dumps(to_layout(entry.sources or {}), separators=(",", ":"))


def next_entry(before: LedgerEntry | None, entry: LedgerEntry) -> LedgerEntry:
    """The entry as the successor of `before`."""
    return replace(entry, serial=1 if before is None else before.serial + 1)


def with_damage(
    entry: LedgerEntry | None, query_id: str, short: int | None, lost: int | None
) -> LedgerEntry | None:
    """The entry with a refused second call or a lost batch added; None if nothing changes."""
    if entry is None:
        # The first batch was lost. An entry before it holds that fact.
        before_first = LedgerEntry(query_id, -1, lost=lost)
        return None if lost is None else next_entry(None, before_first)
    if entry.query_id != query_id:
        return None
    if short is not None and entry.batch_id == short and not entry.is_short:
        return next_entry(entry, replace(entry, is_short=True))
    if lost is not None and entry.batch_id < lost and entry.lost is None:
        return next_entry(entry, replace(entry, lost=lost))
    return None


# Encoding.


def encode_entry(entry: LedgerEntry) -> bytes:
    """The value of the entry's record."""
    fields: dict[str, Any] = {
        "v": VERSION,
        "serial": entry.serial,
        "queryId": entry.query_id,
        "batchId": entry.batch_id,
        "fingerprint": entry.fingerprint,
        "stateful": entry.is_stateful,
    }
    if entry.sources is not None:
        fields["sources"] = {
            topic: {"id": entry.topic_ids.get(topic), "offsets": offsets}
            for topic, offsets in to_layout(entry.sources).items()
        }
        fields["sourcesCommitted"] = entry.sources_committed
    if entry.parts is not None:
        fields["parts"] = list(entry.parts)
    if entry.run_id:
        fields["runId"] = entry.run_id
    if entry.is_short:
        fields["short"] = True
    if entry.lost is not None:
        fields["lost"] = entry.lost
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def decode_entry(value: bytes) -> LedgerEntry:
    """The entry in a record's value; EntryUnreadable for anything else."""
    try:
        fields = json.loads(value)
        version = fields["v"]
        if version != VERSION:
            raise EntryUnreadable(
                f"its format has version {version!r}, and this fencepost reads version {VERSION}: "
                "a newer fencepost has written it. Use that version"
            )
        sources = fields.get("sources")
        return LedgerEntry(
            query_id=str(fields["queryId"]),
            batch_id=int(fields["batchId"]),
            fingerprint=str(fields.get("fingerprint", "")),
            sources=None if sources is None else _read_offsets(sources),
            topic_ids={} if sources is None else _read_ids(sources),
            sources_committed=bool(fields.get("sourcesCommitted")),
            is_stateful=fields.get("stateful"),
            parts=_read_parts(fields.get("parts")),
            run_id=str(fields.get("runId", "")),
            is_short=bool(fields.get("short")),
            lost=fields.get("lost"),
            serial=int(fields.get("serial", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise EntryUnreadable(f"it is not a ledger entry ({value[:80]!r})") from problem


def _read_parts(parts: Any) -> tuple[str, ...] | None:
    return None if parts is None else tuple(str(name) for name in parts)


def _read_offsets(sources: Mapping[str, Any]) -> Offsets:
    return from_layout({topic: source["offsets"] for topic, source in sources.items()})


def _read_ids(sources: Mapping[str, Any]) -> dict[str, str]:
    return {topic: str(source["id"]) for topic, source in sources.items() if source.get("id")}
