"""Where older versions kept the ledger: as an offset of the group of the transactional id.

Theory of operation. Up to version 0.1 every transaction committed an offset of
`fencepost-<transactional id>` on partition 0 of some topic: the offset was the batch id, the
metadata (JSON, "v": 1) the rest. Such an offset expired with the group, died with the topic, and
could be taken for a source's offset. It is read where the ledger's topic has no record; the
transaction that writes the first record replaces it by a mark ("moved"), so an older version that
comes back finds no ledger and refuses, and this one knows that there must be a record.

The group's other offsets are those of the sources. `is_ledger` tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.sink.ledger.ledger import FormerLedger, LedgerEntry

_VERSION: Final = 1
_MOVED_VERSION: Final = 2
"""One that older versions do not read, so they refuse."""


def read_former(
    committed: Mapping[TopicPartition, CommittedOffset], query_id: str
) -> FormerLedger | None:
    """What the group says of the ledger: this query's newest entry, or any other; None when nothing."""
    entries = {tp: entry for tp, value in committed.items() if (entry := decode_former(value))}
    places = tuple(sorted(tp for tp, value in committed.items() if is_ledger(value)))
    if not places:
        return None
    newest = max(
        entries.values(),
        key=lambda entry: (entry.query_id == query_id, entry.batch_id),
        default=None,
    )
    return FormerLedger(places, newest)


def source_offsets(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """The offsets of sources among those of a group."""
    return {tp: value.offset for tp, value in committed.items() if not is_ledger(value)}


def is_ledger(committed: CommittedOffset) -> bool:
    """Whether this offset was a batch id and no position in a partition."""
    return decode_former(committed) is not None or _metadata(committed).get("moved") is True


def decode_former(committed: CommittedOffset) -> LedgerEntry | None:
    """The entry behind an offset; None for a mark, or an offset that is no ledger."""
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


def encode_former(entry: LedgerEntry) -> CommittedOffset:
    """As older versions wrote it."""
    metadata = {
        "v": _VERSION,
        "queryId": entry.query_id,
        "batchId": entry.batch_id,
        "fingerprint": entry.fingerprint,
        "longestMs": entry.longest_ms,
    }
    return CommittedOffset(entry.batch_id, json.dumps(metadata, separators=(",", ":")))


def moved_to(topic: str) -> CommittedOffset:
    """The mark that takes the place of an entry."""
    metadata = {"v": _MOVED_VERSION, "moved": True, "topic": topic}
    return CommittedOffset(0, json.dumps(metadata, separators=(",", ":")))


def _metadata(committed: CommittedOffset) -> Mapping[str, Any]:
    try:
        found = json.loads(committed.metadata)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
