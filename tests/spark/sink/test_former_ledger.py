"""The ledger at its old place, an offset of the group, is recognised and never taken for a source's offset."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.sink.ledger.former import (
    decode_former,
    encode_former,
    is_ledger,
    moved_to,
    read_former,
    source_offsets,
)
from fencepost.spark.sink.ledger.ledger import FormerLedger, LedgerEntry

PLACE, OTHER = TopicPartition("out", 0), TopicPartition("elsewhere", 0)
SOURCE = TopicPartition("in", 0)


def test_an_entry_of_an_older_version_is_read() -> None:
    written = '{"v":1,"queryId":"q","batchId":12,"fingerprint":"abc","longestMs":345}'
    entry = decode_former(CommittedOffset(12, written))
    assert entry == LedgerEntry("q", 12, "abc", (345,))
    assert encode_former(entry) == CommittedOffset(12, written)


@pytest.mark.parametrize(
    "metadata",
    ["", "no json", "[]", "{}", '{"v":2}', '{"v":1,"batchId":3,"queryId":"q","fingerprint":""}'],
)
def test_an_offset_of_somebody_else_is_no_entry(metadata: str) -> None:
    assert decode_former(CommittedOffset(4, metadata)) is None
    assert not is_ledger(CommittedOffset(4, metadata))


def test_a_mark_is_no_entry_to_an_older_version_and_no_offset_of_a_source_to_this_one() -> None:
    mark = moved_to("fencepost-ledger")
    assert decode_former(mark) is None
    assert is_ledger(mark)


def test_entries_and_marks_are_told_from_source_offsets_and_the_own_query_is_preferred() -> None:
    committed = {
        PLACE: encode_former(LedgerEntry("q", 3)),
        OTHER: encode_former(LedgerEntry("p", 9)),
        SOURCE: CommittedOffset(17),
    }
    assert read_former(committed, "q") == FormerLedger((OTHER, PLACE), LedgerEntry("q", 3))
    assert read_former(committed, "x") == FormerLedger((OTHER, PLACE), LedgerEntry("p", 9))
    assert source_offsets(committed) == {SOURCE: 17}
    marked = dict.fromkeys(committed, moved_to("t")) | {SOURCE: CommittedOffset(17)}
    assert read_former(marked, "q") == FormerLedger((OTHER, PLACE), None)
    assert source_offsets(marked) == {SOURCE: 17}
    assert read_former({SOURCE: CommittedOffset(17)}, "q") is None
