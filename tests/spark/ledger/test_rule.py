"""Goal: every row of the ledger's table, for streams and for batch writes.

Method: examples by hand for each rule, and a walk over the product of all facts that the rule
compares, against a table that is written out here once more.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import EntryUnreadable
from fencepost.spark.ledger.entry import (
    LedgerEntry,
    Offsets,
    decode_entry,
    encode_entry,
    fingerprint_of,
    next_entry,
    with_damage,
)
from fencepost.spark.ledger.rule import (
    NO_OVERRIDES,
    RULE,
    STREAM_SENTENCES,
    VERSION_SENTENCES,
    Batch,
    Case,
    Overrides,
    Verdict,
    classify,
    decide,
)

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
IDS = {"in": "one-topic"}

ADOPT = Overrides(adopt=True)


def entry(query: str, batch: int, sources: Offsets | None = None) -> LedgerEntry:
    ids = IDS if sources else {}
    return LedgerEntry(query, batch, "f", sources=sources, topic_ids=ids)


def new_query(start: Offsets | None, *, stateful: bool | None = None) -> Batch:
    """The first batch of query q."""
    return Batch("q", 0, "g", start, IDS if start else {}, is_stateful=stateful)


@pytest.mark.parametrize(
    ("found", "batch", "verdict"),
    [
        (None, Batch("q", 0), Verdict.WRITE),
        (None, Batch("q", 1), Verdict.REFUSE),
        (entry("q", 4), Batch("q", 5, "g"), Verdict.WRITE),
        (entry("q", 5), Batch("q", 5, "f"), Verdict.DRAIN),
        (entry("q", 5), Batch("q", 5, ""), Verdict.DRAIN),
        (entry("q", 5), Batch("q", 5, "g"), Verdict.REFUSE),
        (entry("q", 5), Batch("q", 4, "f"), Verdict.REFUSE),
        (entry("q", 5), Batch("q", 7, "f"), Verdict.REFUSE),
        (entry("q", -1), Batch("q", 0, "f"), Verdict.WRITE),
        (entry("p", 5), Batch("q", 0, "f"), Verdict.REFUSE),
        (entry("p", 5), Batch("q", 6, "f"), Verdict.REFUSE),
    ],
)
def test_the_ledger_decides_what_happens_to_a_batch(
    found: LedgerEntry | None, batch: Batch, verdict: Verdict
) -> None:
    decision = decide(found, batch)
    assert decision.verdict is verdict
    assert decision.reason


def test_adopt_overrides_a_missing_ledger_and_another_query_but_not_a_contradiction() -> None:
    assert decide(None, Batch("q", 7), ADOPT).verdict is Verdict.WRITE
    assert decide(entry("p", 5), Batch("q", 0), ADOPT).verdict is Verdict.TAKE_OVER
    assert decide(entry("q", 5), Batch("q", 5, "g"), ADOPT).verdict is Verdict.REFUSE
    assert decide(entry("q", 5), Batch("q", 2, "f"), ADOPT).verdict is Verdict.REFUSE


# Skipped, lost and incomplete batches.

MAY_SKIP = Overrides(may_skip=True)


def called(batch: int, *parts: str, run: str = "second") -> Batch:
    return Batch("q", batch, "f", parts=parts, run_id=run)


def written(
    batch: int, *parts: str, short: bool = False, lost: int | None = None, run: str = "first"
) -> LedgerEntry:
    return LedgerEntry("q", batch, "f", parts=parts, run_id=run, is_short=short, lost=lost)


@pytest.mark.parametrize(
    ("found", "batch", "alone", "may_skip", "adopt"),
    [
        # A gap after a restart.
        (entry("q", 3), Batch("q", 5), "refuse", "write", "write"),
        (entry("q", 3), Batch("q", 500), "refuse", "write", "write"),
        (entry("q", -1), Batch("q", 2), "refuse", "write", "write"),
        (None, Batch("q", 2), "refuse", "write", "write"),
        (entry("p", 3), Batch("q", 5), "refuse", "refuse", "take over"),
        # A batch before the last one.
        (entry("q", 5), Batch("q", 3), "refuse", "refuse", "refuse"),
        # A batch that failed, although Spark went on.
        (written(3, "a", lost=4), called(4, "a"), "write", "write", "write"),
        (written(3, "a", lost=4), called(5, "a"), "refuse", "refuse", "write"),
        (written(3, "a", lost=4), called(3, "a"), "drain", "drain", "drain"),
        (written(-1, lost=0), called(1, "a"), "refuse", "refuse", "write"),
        # Other parts than before.
        (written(3, "a"), called(3, "a"), "drain", "drain", "drain"),
        (written(3, "a", "b"), called(3, "b", "a"), "drain", "drain", "drain"),
        (written(3, "a", "b"), called(3, "a"), "drain", "drain", "drain"),
        (written(3, "a"), called(3, "a", "b"), "refuse", "refuse", "complete"),
        (written(3, "a"), called(3, "b"), "refuse", "refuse", "drain"),
        (written(3), called(3, "a"), "refuse", "refuse", "complete"),
        (written(3, "a"), called(3), "drain", "drain", "drain"),
        (written(3), called(3), "drain", "drain", "drain"),
        (written(3, "a"), Batch("q", 3, "f"), "drain", "drain", "drain"),
        (entry("q", 3), called(3, "a"), "drain", "drain", "drain"),
        # A second call that was refused.
        (written(3, "a", short=True), called(3, "a"), "refuse", "refuse", "drain"),
        (written(3, "a", short=True), called(3, "a", "b"), "refuse", "refuse", "complete"),
        (written(3, "a", short=True), called(3), "refuse", "refuse", "drain"),
        (written(3, "a", short=True), called(4, "a"), "refuse", "refuse", "write"),
        # A second sink in the same run.
        (written(3, "a", run="second"), called(3, "a"), "refuse", "refuse", "refuse"),
        (written(3, "a", run="second"), called(3, "b"), "refuse", "refuse", "refuse"),
        (written(3, "a", run="second"), called(3, "a", run=""), "drain", "drain", "drain"),
    ],
)
def test_skipped_lost_and_incomplete_batches_are_decided_by_the_overrides(
    found: LedgerEntry | None, batch: Batch, alone: str, may_skip: str, adopt: str
) -> None:
    decisions = [decide(found, batch, overrides) for overrides in (Overrides(), MAY_SKIP, ADOPT)]
    assert [decision.verdict.value for decision in decisions] == [alone, may_skip, adopt]


def test_a_batch_is_completed_with_its_missing_parts_only() -> None:
    found = decide(written(3, "a", "c"), called(3, "a", "b", "c", "*"), ADOPT)
    assert (found.verdict, found.missing) == (Verdict.COMPLETE, ("b", "*"))
    refused = decide(written(3, "a"), called(3, "a", "b", "c"))
    assert "written with 'a', and this call also has 'b', 'c'" in refused.reason
    assert "adopt=True once: the sink writes what is missing" in refused.reason
    renamed = decide(written(3, "a"), called(3, "b"))
    assert "accepts the batch as it is" in renamed.reason
    assert "with no rows" in decide(written(3), called(3, "a")).reason


def test_the_refusal_of_a_gap_names_every_remedy() -> None:
    reason = decide(entry("q", 3, {P0: 9}), Batch("q", 5)).reason
    for way in (
        "sink.skip(batch_id)",
        "may_skip=True",
        '{"in":{"0":9}}',
        "take_over",
    ):
        assert way in reason


def test_damage_is_recorded_once_and_in_the_right_entry() -> None:
    here = entry("q", 3)
    assert (noted := with_damage(here, "q", 3, None)) is not None
    assert (noted.is_short, noted.batch_id, noted.serial) == (True, 3, here.serial + 1)
    assert (noted := with_damage(here, "q", None, 5)) is not None
    assert (noted.lost, noted.is_short) == (5, False)
    assert (first := with_damage(None, "q", None, 0)) is not None
    assert (first.query_id, first.batch_id, first.lost) == ("q", -1, 0)
    assert decode_entry(encode_entry(noted)) == noted
    for nothing in (
        with_damage(here, "p", 3, None),
        with_damage(here, "q", 2, None),
        with_damage(here, "q", None, 3),  # Committed after all.
        with_damage(None, "q", 3, None),
        with_damage(here, "q", None, None),
        with_damage(replace(here, is_short=True), "q", 3, None),
    ):
        assert nothing is None


# Taking over.


@pytest.mark.parametrize(
    ("ended", "batch", "verdict"),
    [
        ({P0: 9}, new_query({P0: 9}), Verdict.TAKE_OVER),
        ({P0: 9}, new_query({P0: 8}), Verdict.REFUSE),
        ({P0: 9}, new_query({P0: 10}), Verdict.REFUSE),
        ({P0: 9}, new_query({}), Verdict.REFUSE),
        ({P0: 9}, new_query(None), Verdict.REFUSE),
        (None, new_query({P0: 9}), Verdict.REFUSE),
        # A new partition must be read from its first offset.
        ({P0: 9}, new_query({P0: 9, P1: 0}), Verdict.TAKE_OVER),
        ({P0: 9}, new_query({P0: 9, P1: 4}), Verdict.REFUSE),
        ({P0: 9}, replace(new_query({P0: 9, P1: 4}), beginnings={P1: 4}), Verdict.TAKE_OVER),
        # A partition of the entry is missing.
        ({P0: 9, P1: 7}, new_query({P0: 9}), Verdict.REFUSE),
        # Another topic of the same name, or an unknown id.
        ({P0: 9}, replace(new_query({P0: 9}), topic_ids={"in": "another"}), Verdict.REFUSE),
        ({P0: 9}, replace(new_query({P0: 9}), topic_ids={}), Verdict.REFUSE),
    ],
)
def test_a_query_takes_over_without_overrides_only_if_the_entry_proves_that_it_continues(
    ended: Offsets | None, batch: Batch, verdict: Verdict
) -> None:
    assert decide(entry("p", 5, ended), batch).verdict is verdict


@pytest.mark.parametrize(
    ("ended", "batch", "named", "verdict"),
    [
        ({P0: 9}, new_query({P0: 9}), "p", Verdict.TAKE_OVER),
        # Nothing to compare: the argument is enough.
        (None, new_query({P0: 3}), "p", Verdict.TAKE_OVER),
        (None, new_query(None), "p", Verdict.TAKE_OVER),
        # The entry has offsets, and where the query begins is not known.
        ({P0: 9}, new_query(None), "p", Verdict.REFUSE),
        # Ids are unknown, and the offsets still must match.
        ({P0: 9}, replace(new_query({P0: 9}), topic_ids={}), "p", Verdict.TAKE_OVER),
        ({P0: 9}, replace(new_query({P0: 3}), topic_ids={}), "p", Verdict.REFUSE),
        # Known offsets and ids must match.
        ({P0: 9}, new_query({P0: 3}), "p", Verdict.REFUSE),
        ({P0: 9}, replace(new_query({P0: 9}), topic_ids={"in": "another"}), "p", Verdict.REFUSE),
        # The argument names another query.
        ({P0: 9}, new_query({P0: 9}), "x", Verdict.REFUSE),
    ],
)
def test_take_over_must_name_the_owner_and_agree_with_known_offsets(
    ended: Offsets | None, batch: Batch, named: str, verdict: Verdict
) -> None:
    assert decide(entry("p", 5, ended), batch, Overrides(take_over=named)).verdict is verdict


def test_take_over_has_no_effect_if_the_query_owns_the_ledger() -> None:
    overrides = Overrides(take_over="p")
    assert decide(entry("q", 4), Batch("q", 5), overrides).verdict is Verdict.WRITE
    assert decide(entry("q", 5), Batch("q", 5), overrides).verdict is Verdict.DRAIN
    assert decide(entry("q", 5), Batch("q", 7), overrides).verdict is Verdict.REFUSE
    assert decide(None, Batch("q", 3), overrides).verdict is Verdict.REFUSE


@pytest.mark.parametrize("how", [Overrides(), Overrides(take_over="p"), ADOPT], ids=str)
def test_a_stateful_query_with_a_new_checkpoint_takes_over_only_with_allow_empty_state(
    how: Overrides,
) -> None:
    found = entry("p", 5, {P0: 9})
    stateful = new_query({P0: 9}, stateful=True)
    refused = decide(found, stateful, how)
    assert refused.verdict is Verdict.REFUSE
    assert "allow_empty_state=True" in refused.reason
    allowed = replace(how, allow_empty_state=True)
    assert decide(found, stateful, allowed).verdict is Verdict.TAKE_OVER
    assert decide(found, new_query({P0: 9}, stateful=False), how).verdict is Verdict.TAKE_OVER


def test_adopt_does_not_hide_lost_state_if_the_query_begins_elsewhere() -> None:
    found, stateful = entry("p", 5, {P0: 9}), new_query({P0: 3}, stateful=True)
    assert classify(found, stateful) is Case.OTHER_QUERY
    assert classify(found, stateful, ADOPT) is Case.EMPTY_STATE
    allowed = replace(ADOPT, allow_empty_state=True)
    assert decide(found, stateful, allowed).verdict is Verdict.TAKE_OVER


def test_if_the_plan_is_unknown_the_entry_tells_whether_there_was_state() -> None:
    found = replace(entry("p", 5, {P0: 9}), is_stateful=True)
    assert decide(found, new_query({P0: 9})).verdict is Verdict.REFUSE
    # The query was changed, and keeps no state now.
    assert decide(found, new_query({P0: 9}, stateful=False)).verdict is Verdict.TAKE_OVER


def test_a_stateful_query_with_its_own_checkpoint_keeps_its_state() -> None:
    batch = Batch("q", 7, "g", {P0: 9}, IDS, is_stateful=True)
    assert decide(entry("p", 5, {P0: 9}), batch).verdict is Verdict.TAKE_OVER


def test_a_refused_take_over_says_where_to_start_and_what_to_pass() -> None:
    reason = decide(entry("p", 5, {P0: 9}), new_query({P0: 3})).reason
    assert """startingOffsets='{"in":{"0":9}}'""" in reason
    assert 'take_over="p"' in reason
    assert "in-0 ended at 9 and would begin at 3" in reason


def test_where_a_first_batch_begins_is_searched_only_if_it_is_compared() -> None:
    searched: list[str] = []

    def find(start: Offsets | None) -> Offsets | None:
        searched.append("once")
        return start

    named = Overrides(take_over="p")
    for start, verdict in (({P0: 9}, Verdict.TAKE_OVER), (None, Verdict.REFUSE)):
        batch = Batch("q", 0, "g", topic_ids=IDS, find_start=partial(find, start))
        assert decide(entry("p", 5, {P0: 9}), batch, named).verdict is verdict
    assert len(searched) == 2
    for found in (None, entry("p", 5), entry("q", 5, {P0: 9})):
        decide(found, batch, named)
    decide(entry("p", 5, {P0: 9}), replace(batch, start={P0: 9}), named)
    assert len(searched) == 2


# The batch after the recorded one.

P2 = TopicPartition("other", 0)
SHORT = replace(entry("q", 5, {P0: 9}), is_short=True)


@pytest.mark.parametrize(
    ("found", "batch", "case"),
    [
        (entry("q", 5, {P0: 9}), Batch("q", 6, start={P0: 9}), Case.NEXT),
        (entry("q", 5, {P0: 9}), Batch("q", 6, start={P0: 8}), Case.OTHER_POSITION),
        (entry("q", 5, {P0: 9}), Batch("q", 6, start={P0: 10}), Case.OTHER_POSITION),
        # A partition that is not read would be read from its beginning again.
        (entry("q", 5, {P0: 9, P1: 3}), Batch("q", 6, start={P0: 9}), Case.OTHER_POSITION),
        # New partitions and topics are no difference.
        (entry("q", 5, {P0: 9}), Batch("q", 6, start={P0: 9, P1: 4, P2: 2}), Case.NEXT),
        # Over a gap, offsets may only have grown.
        (entry("q", 5, {P0: 9}), Batch("q", 8, start={P0: 20}), Case.GAP),
        (entry("q", 5, {P0: 9, P1: 3}), Batch("q", 8, start={P0: 20}), Case.GAP),
        (entry("q", 5, {P0: 9}), Batch("q", 8, start={P0: 8}), Case.OTHER_POSITION),
        (
            entry("q", 5, {P0: 9}),
            Batch("q", 8, start={P0: 2}, topic_ids={"in": "another topic"}),
            Case.GAP,
        ),
        (SHORT, Batch("q", 6, start={P0: 8}), Case.OTHER_POSITION),
        # Other sources than topics: fingerprints.
        (entry("q", 5), Batch("q", 6, begun="f"), Case.NEXT),
        (entry("q", 5), Batch("q", 6, begun="g"), Case.OTHER_POSITION),
        (entry("q", 5, {P0: 9}), Batch("q", 6, begun="g"), Case.OTHER_POSITION),
        (entry("q", 5), Batch("q", 8, begun="g"), Case.GAP),
        # What is unknown is not compared.
        (entry("q", 5, {P0: 9}), Batch("q", 6), Case.NEXT),
        (entry("q", 5), Batch("q", 6, start={P0: 8}), Case.NEXT),
        (LedgerEntry("q", 5), Batch("q", 6, begun="g"), Case.NEXT),
        (LedgerEntry("q", -1), Batch("q", 0, "g", {P0: 3}), Case.NEXT),
    ],
)
def test_a_later_batch_must_begin_where_the_recorded_one_ended(
    found: LedgerEntry, batch: Batch, case: Case
) -> None:
    assert classify(found, batch) is case
    if case is Case.OTHER_POSITION:
        everything = Overrides(adopt=True, take_over="q", may_skip=True, allow_empty_state=True)
        for overrides in (NO_OVERRIDES, MAY_SKIP, ADOPT, everything):
            assert decide(found, batch, overrides).verdict is Verdict.REFUSE


# Batch writes, with txnAppId and txnVersion.

LAST = LedgerEntry("daily", 7)


@pytest.mark.parametrize(
    ("found", "app_id", "version", "overrides", "verdict"),
    [
        (None, "daily", 3, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 7, NO_OVERRIDES, Verdict.DRAIN),
        (LAST, "daily", 7, ADOPT, Verdict.DRAIN),
        (LAST, "daily", 8, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 20, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 6, NO_OVERRIDES, Verdict.REFUSE),
        (LAST, "daily", 6, ADOPT, Verdict.WRITE),
        (LAST, "other", 7, NO_OVERRIDES, Verdict.REFUSE),
        (LAST, "other", 8, Overrides(take_over="another"), Verdict.REFUSE),
        (LAST, "other", 0, Overrides(take_over="daily"), Verdict.TAKE_OVER),
        (LAST, "other", 0, ADOPT, Verdict.TAKE_OVER),
        # What only a stream's batches have does not matter.
        (replace(LAST, is_short=True), "daily", 7, NO_OVERRIDES, Verdict.DRAIN),
        (replace(LAST, is_short=True, lost=8), "daily", 9, NO_OVERRIDES, Verdict.WRITE),
        (replace(LAST, is_stateful=True), "other", 0, ADOPT, Verdict.TAKE_OVER),
    ],
)
def test_the_ledger_decides_about_a_version(
    found: LedgerEntry | None, app_id: str, version: int, overrides: Overrides, verdict: Verdict
) -> None:
    batch = Batch(app_id, version, is_version=True)
    decision = decide(found, batch, overrides, VERSION_SENTENCES)
    assert decision.verdict is verdict, decision.reason


def test_a_refused_version_is_explained_in_the_words_of_a_batch_write() -> None:
    older = decide(LAST, Batch("daily", 6, is_version=True), sentences=VERSION_SENTENCES)
    assert older.reason.startswith("the last version of 'daily' in the topics is 7")
    other = decide(LAST, Batch("other", 8, is_version=True), sentences=VERSION_SENTENCES)
    assert other.reason.startswith("it belongs to 'daily' (last batch or version 7)")
    assert 'pass takeOver="daily" once' in other.reason


# The table.

EXPECTED = {
    # Nothing is recorded.
    Case.FIRST: ("write", "write"),
    Case.NO_LEDGER: ("refuse", "write"),
    # A later batch than the recorded one.
    Case.NEXT: ("write", "write"),
    Case.OTHER_POSITION: ("refuse", "refuse"),
    Case.LOST: ("refuse", "write"),
    Case.SKIPPED: ("write", "write"),
    Case.GAP: ("refuse", "write"),
    Case.LAST_IS_SHORT: ("refuse", "write"),
    # The recorded batch again.
    Case.COMMITTED: ("drain", "drain"),
    Case.OTHER_OFFSETS: ("refuse", "refuse"),
    Case.SECOND_SINK: ("refuse", "refuse"),
    Case.PARTS_MISSING: ("refuse", "complete"),
    Case.PARTS_DIFFER: ("refuse", "drain"),
    Case.SHORT_PARTS: ("refuse", "complete"),
    Case.SHORT: ("refuse", "drain"),
    # An earlier one.
    Case.OLDER_BATCH: ("refuse", "refuse"),
    Case.OLDER_VERSION: ("refuse", "write"),
    # Another query.
    Case.CONTINUES: ("take over", "take over"),
    Case.OTHER_START: ("refuse", "take over"),
    Case.WRONG_OWNER: ("refuse", "take over"),
    Case.OTHER_QUERY: ("refuse", "take over"),
    Case.EMPTY_STATE: ("refuse", "refuse"),
}

ENTRIES = [None] + [
    LedgerEntry(
        query, 3, "f", sources=sources, topic_ids=IDS, parts=("a",), run_id=run, is_short=short,
        lost=lost,
    )
    for query, sources, run, short, lost in product(
        ("p", "q"), (None, {P0: 9}), ("first", "second"), (False, True), (None, 4)
    )
]  # fmt: skip
BATCHES = [
    Batch("q", batch, print_, start, IDS, is_stateful=stateful, parts=parts, run_id="second")
    for batch, print_, start, stateful, parts in product(
        (0, 2, 3, 4, 6), ("f", "g"), (None, {P0: 9}, {P0: 8}), (False, True), (("a", "b"), ("b",))
    )
] + [Batch("q", version, is_version=True) for version in (0, 2, 3, 4, 6)]
OVERRIDES = [
    Overrides(adopt=adopt, take_over=named, allow_empty_state=empty, may_skip=skip)
    for adopt, named, empty, skip in product(
        (False, True), (None, "p", "x"), (False, True), (False, True)
    )
]


def test_every_case_is_reached_and_decided_as_the_table_says() -> None:
    assert EXPECTED.keys() == RULE.keys() == set(Case)
    reached = set()
    for found, batch, overrides in product(ENTRIES, BATCHES, OVERRIDES):
        case = classify(found, batch, overrides)
        sentences = VERSION_SENTENCES if batch.is_version else STREAM_SENTENCES
        decision = decide(found, batch, overrides, sentences)
        assert decision.verdict.value == EXPECTED[case][overrides.adopt], (found, batch, overrides)
        assert decision.reason
        assert bool(decision.missing) is (decision.verdict is Verdict.COMPLETE)
        reached.add((case, decision.verdict))
    assert reached == {
        (case, Verdict(verdict)) for case, verdicts in EXPECTED.items() for verdict in verdicts
    }


# The record.


def test_an_entry_survives_encoding() -> None:
    full = LedgerEntry(
        "q",
        12,
        "abc",
        {P0: 9, P1: 0},
        IDS,
        sources_committed=True,
        is_stateful=False,
        parts=("a", "b"),
        run_id="r",
        is_short=True,
        lost=14,
        serial=7,
    )
    assert decode_entry(encode_entry(full)) == full
    bare = LedgerEntry("q", -1)
    assert decode_entry(encode_entry(bare)) == bare


def test_a_record_with_unknown_fields_is_read() -> None:
    fields = json.loads(encode_entry(LedgerEntry("q", 3))) | {"later": {"deep": [1]}}
    assert decode_entry(json.dumps(fields).encode()).batch_id == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not a ledger entry"),
        (b"\xff\x00", "not a ledger entry"),
        (b"[]", "not a ledger entry"),
        (b"{}", "not a ledger entry"),
        (b'{"v":2,"queryId":"q"}', "not a ledger entry"),
        (b'{"v":2,"queryId":"q","batchId":1,"sources":{"in":7}}', "not a ledger entry"),
        (b'{"v":3,"queryId":"q","batchId":1}', "a newer fencepost has written it"),
    ],
)
def test_a_record_that_is_not_an_entry_is_refused(value: bytes, words: str) -> None:
    with pytest.raises(EntryUnreadable, match=words):
        decode_entry(value)


def test_each_entry_has_a_higher_serial_than_the_last() -> None:
    first = next_entry(None, LedgerEntry("q", 0))
    assert next_entry(first, LedgerEntry("q", 1)).serial == first.serial + 1


def test_a_fingerprint_does_not_depend_on_the_order_of_sources() -> None:
    assert fingerprint_of(["a", "b"]) == fingerprint_of(["b", "a"]) != fingerprint_of(["a", "c"])
