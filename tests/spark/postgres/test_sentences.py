"""Every refusal of the ledger has a sentence in the words of a table."""

from __future__ import annotations

import string

import pytest

from fencepost.spark.ledger.entry import LedgerEntry
from fencepost.spark.ledger.rule import (
    RULE,
    STREAM_SENTENCES,
    Batch,
    Case,
    Overrides,
    Verdict,
    decide,
)
from fencepost.spark.postgres.sentences import TABLE_SENTENCES

OF_PARTS = {Case.PARTS_MISSING, Case.PARTS_DIFFER, Case.SHORT_PARTS}
OF_VERSIONS = {Case.OLDER_VERSION}
REFUSED = {case for case, row in RULE.items() if Verdict.REFUSE in row}


def test_each_case_that_may_be_refused_has_one_and_it_speaks_of_no_topic() -> None:
    assert set(TABLE_SENTENCES) == REFUSED - OF_PARTS - OF_VERSIONS
    for case, sentence in TABLE_SENTENCES.items():
        assert "topic" not in sentence
        assert "transactional_id" not in sentence
        fields = {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
        known = {name for _, name, _, _ in string.Formatter().parse(STREAM_SENTENCES[case])}
        assert fields <= known | {"start", "entry.batch_id", "entry.query_id", "batch.batch_id"}


@pytest.mark.parametrize(
    ("entry", "batch", "sentence"),
    [
        (None, Batch("q", 3), "the database has no ledger row of this sink"),
        (LedgerEntry("q", 1), Batch("q", 3), "the last batch of this query in the table is 1"),
        (LedgerEntry("q", 4), Batch("q", 3), "another driver runs the same query"),
        (LedgerEntry("q", 3, run_id="r"), Batch("q", 3, run_id="r"), "another sink with the same"),
        (LedgerEntry("q", 3, "a"), Batch("q", 3, "b"), "with other source offsets"),
        (LedgerEntry("p", 3), Batch("q", 0), 'take_over="p"'),
        (LedgerEntry("q", 3, is_short=True), Batch("q", 3), "with the rows of its first call only"),
        (LedgerEntry("q", 1, lost=2), Batch("q", 3), "batch 2 of this query is not in the table"),
    ],
)
def test_a_refusal_says_what_is_the_case(
    entry: LedgerEntry | None, batch: Batch, sentence: str
) -> None:
    decision = decide(entry, batch, Overrides(), TABLE_SENTENCES)
    assert decision.verdict is Verdict.REFUSE
    assert sentence in decision.reason
