from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.ledger import (
    Batch,
    LedgerEntry,
    Page,
    Verdict,
    decide,
    decode_entry,
    encode_entry,
    fingerprint_of,
    read_page,
)

PLACE = TopicPartition("out", 0)
SOURCE = TopicPartition("in", 0)


def page(
    query: str, batch: int, fingerprint: str = "f", sources: dict[TopicPartition, int] | None = None
) -> Page:
    return Page(PLACE, LedgerEntry(query, batch, fingerprint), sources or {})


NOTHING = Page(None, None, {})


@pytest.mark.parametrize(
    ("found", "batch", "verdict"),
    [
        (NOTHING, Batch("q", 0), Verdict.WRITE),
        (NOTHING, Batch("q", 1), Verdict.REFUSE),
        (page("q", 4), Batch("q", 5, "g"), Verdict.WRITE),
        (page("q", 5), Batch("q", 5, "f"), Verdict.DRAIN),
        (page("q", 5), Batch("q", 5, ""), Verdict.DRAIN),
        (page("q", 5), Batch("q", 5, "g"), Verdict.REFUSE),
        (page("q", 5), Batch("q", 4, "f"), Verdict.REFUSE),
        (page("q", 5), Batch("q", 7, "f"), Verdict.REFUSE),
        (page("p", 5), Batch("q", 0, "f"), Verdict.REFUSE),
        (page("p", 5), Batch("q", 6, "f"), Verdict.REFUSE),
        (page("p", 5, sources={SOURCE: 9}), Batch("q", 0, "f", {SOURCE: 9}), Verdict.TAKE_OVER),
        (page("p", 5, sources={SOURCE: 9}), Batch("q", 0, "f", {SOURCE: 8}), Verdict.REFUSE),
        (page("p", 5, sources={SOURCE: 9}), Batch("q", 0, "f", {}), Verdict.REFUSE),
    ],
)
def test_the_ledger_decides_what_happens_to_a_batch(
    found: Page, batch: Batch, verdict: Verdict
) -> None:
    decision = decide(found, batch)
    assert decision.verdict is verdict
    assert decision.reason


def test_adopting_overrides_a_missing_ledger_and_another_query_but_no_contradiction() -> None:
    assert decide(NOTHING, Batch("q", 7), adopt=True).verdict is Verdict.WRITE
    assert decide(page("p", 5), Batch("q", 0), adopt=True).verdict is Verdict.TAKE_OVER
    assert decide(page("q", 5), Batch("q", 5, "g"), adopt=True).verdict is Verdict.REFUSE
    assert decide(page("q", 5), Batch("q", 2, "f"), adopt=True).verdict is Verdict.REFUSE


def test_an_entry_survives_being_written_as_an_offset() -> None:
    entry = LedgerEntry("q", 12, "abc", 345)
    committed = encode_entry(entry)
    assert committed.offset == 12
    assert decode_entry(committed) == entry


@pytest.mark.parametrize(
    "metadata",
    ["", "no json", "[]", "{}", '{"v":2}', '{"v":1,"batchId":3,"queryId":"q","fingerprint":""}'],
)
def test_an_offset_of_somebody_else_is_no_entry(metadata: str) -> None:
    assert decode_entry(CommittedOffset(4, metadata)) is None


def test_a_page_tells_the_entry_from_source_offsets_and_prefers_its_own_query() -> None:
    other = TopicPartition("elsewhere", 0)
    committed = {
        PLACE: encode_entry(LedgerEntry("q", 3)),
        other: encode_entry(LedgerEntry("p", 9)),
        SOURCE: CommittedOffset(17),
    }
    found = read_page(committed, "q")
    assert (found.place, found.entry) == (PLACE, LedgerEntry("q", 3))
    assert found.sources == {SOURCE: 17}


def test_a_fingerprint_does_not_depend_on_the_order_of_sources() -> None:
    assert fingerprint_of(["a", "b"]) == fingerprint_of(["b", "a"]) != fingerprint_of(["a", "c"])
