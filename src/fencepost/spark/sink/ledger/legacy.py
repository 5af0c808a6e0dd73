"""Where older versions kept the ledger: as an offset of the group of the transactional id.

Theory of operation. Up to version 0.1 every transaction committed an offset of
`fencepost-<transactional id>` on partition 0 of some topic: the offset was the batch id, the
metadata (JSON, "v": 1) the rest. Such an offset expired with the group, disappeared with the topic,
and could be mistaken for a source offset. It is read if the ledger topic has no record. The
transaction that writes the first record replaces it by a mark ("moved"): an older version then
finds no ledger and refuses, and this version expects a record.

The group's other offsets are source offsets. `is_ledger` tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.sink.ledger.entry import LedgerEntry, LegacyLedger

_VERSION: Final = 1
_MOVED_VERSION: Final = 2
"""Older versions do not read this version, so they refuse."""


def read_legacy(
    committed: Mapping[TopicPartition, CommittedOffset], query_id: str
) -> LegacyLedger | None:
    """The newest entry in the group, preferably of this query; None if there is none."""
    entries = {tp: entry for tp, value in committed.items() if (entry := decode_legacy(value))}
    places = tuple(sorted(tp for tp, value in committed.items() if is_ledger(value)))
    if not places:
        return None
    newest = max(
        entries.values(),
        key=lambda entry: (entry.query_id == query_id, entry.batch_id),
        default=None,
    )
    return LegacyLedger(places, newest)


def source_offsets(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """The source offsets among those of a group."""
    return {tp: value.offset for tp, value in committed.items() if not is_ledger(value)}


def is_ledger(committed: CommittedOffset) -> bool:
    """Whether this offset is a batch id, not a position in a partition."""
    return decode_legacy(committed) is not None or _metadata(committed).get("moved") is True


def decode_legacy(committed: CommittedOffset) -> LedgerEntry | None:
    """The entry in an offset; None for a mark or a source offset."""
    metadata = _metadata(committed)
    try:
        if metadata["v"] != _VERSION or metadata["batchId"] != committed.offset:
            return None
        longest_ms = int(metadata.get("longestMs", 0))
        return LedgerEntry(
            str(metadata["queryId"]),
            committed.offset,
            str(metadata["fingerprint"]),
            recent_ms=(longest_ms,) if longest_ms else (),
        )
    except (ValueError, KeyError, TypeError):
        return None


def encode_legacy(entry: LedgerEntry) -> CommittedOffset:
    """The offset as older versions wrote it."""
    metadata = {
        "v": _VERSION,
        "queryId": entry.query_id,
        "batchId": entry.batch_id,
        "fingerprint": entry.fingerprint,
        "longestMs": entry.longest_ms,
    }
    return CommittedOffset(entry.batch_id, json.dumps(metadata, separators=(",", ":")))


def moved_to(topic: str) -> CommittedOffset:
    """The mark that replaces an entry."""
    metadata = {"v": _MOVED_VERSION, "moved": True, "topic": topic}
    return CommittedOffset(0, json.dumps(metadata, separators=(",", ":")))


def _metadata(committed: CommittedOffset) -> Mapping[str, Any]:
    try:
        found = json.loads(committed.metadata)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
