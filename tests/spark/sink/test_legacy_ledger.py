"""A legacy ledger, an offset of the group, is recognised and not used as a source offset."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.sink.ledger.entry import LedgerEntry, LegacyLedger
from fencepost.spark.sink.ledger.legacy import (
    decode_legacy,
    encode_legacy,
    is_ledger,
    moved_to,
    read_legacy,
    source_offsets,
)

PLACE, OTHER = TopicPartition("out", 0), TopicPartition("elsewhere", 0)
SOURCE = TopicPartition("in", 0)


def test_a_legacy_entry_is_decoded() -> None:
    written = '{"v":1,"queryId":"q","batchId":12,"fingerprint":"abc","longestMs":345}'
    entry = decode_legacy(CommittedOffset(12, written))
    assert entry == LedgerEntry("q", 12, "abc", (345,))
    assert encode_legacy(entry) == CommittedOffset(12, written)


@pytest.mark.parametrize(
    "metadata",
    ["", "no json", "[]", "{}", '{"v":2}', '{"v":1,"batchId":3,"queryId":"q","fingerprint":""}'],
)
def test_an_ordinary_committed_offset_is_not_an_entry(metadata: str) -> None:
    assert decode_legacy(CommittedOffset(4, metadata)) is None
    assert not is_ledger(CommittedOffset(4, metadata))


def test_a_moved_mark_is_neither_a_legacy_entry_nor_a_source_offset() -> None:
    mark = moved_to("fencepost-ledger")
    assert decode_legacy(mark) is None
    assert is_ledger(mark)


def test_legacy_entries_are_separated_from_source_offsets_and_our_own_is_preferred() -> None:
    committed = {
        PLACE: encode_legacy(LedgerEntry("q", 3)),
        OTHER: encode_legacy(LedgerEntry("p", 9)),
        SOURCE: CommittedOffset(17),
    }
    assert read_legacy(committed, "q") == LegacyLedger((OTHER, PLACE), LedgerEntry("q", 3))
    assert read_legacy(committed, "x") == LegacyLedger((OTHER, PLACE), LedgerEntry("p", 9))
    assert source_offsets(committed) == {SOURCE: 17}
    marked = dict.fromkeys(committed, moved_to("t")) | {SOURCE: CommittedOffset(17)}
    assert read_legacy(marked, "q") == LegacyLedger((OTHER, PLACE), None)
    assert source_offsets(marked) == {SOURCE: 17}
    assert read_legacy({SOURCE: CommittedOffset(17)}, "q") is None
