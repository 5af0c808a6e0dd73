"""Records with equal keys into findings, and matched pairs into findings about order."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.spark.auditing.matching import MATCH, Kind, Outcome, Records, Rules, match
from fencepost.spark.auditing.ordering import PORTION_BITS, carried_over, late_in, split_portions

# Places 0 and 1 are inputs, 2 and 3 the partitions of one output topic, 4 of another one.
SLOTS = (-1, -1, 0, 0, 1)


class Seen(NamedTuple):
    """One record."""

    place: int
    offset: int
    key: int
    is_open: bool = False


def rules(**changes: Any) -> Rules:
    fields: dict[str, Any] = {
        "slots": SLOTS,
        "sets": 2,
        "per_input": 1,
        "is_distinct": False,
        "judges_missing": True,
        "judges_torn": True,
        "due_from": (0, 0),
        "due_below": (100, 100),
        "committed": None,
    }
    return Rules(**fields | changes)


def matched(seen: list[Seen], asked: Rules, contents: dict[Seen, int] | None = None) -> Outcome:
    ordered = sorted(seen)
    keys = np.array([each.key for each in ordered], np.uint64)
    # Some keys share the first word, and some the second one.
    return match(
        Records(
            keys // np.uint64(2),
            keys % np.uint64(2),
            np.array([each.place for each in ordered], np.int32),
            np.array([each.offset for each in ordered], np.int64),
            np.array([each.is_open for each in ordered], bool),
            None
            if contents is None
            else np.array([contents.get(each, 0) for each in ordered], np.uint64),
        ),
        asked,
    )


def counts(outcome: Outcome) -> dict[str, int]:
    return {
        kind.name.lower(): int((outcome.findings["kind"] == kind).sum())
        for kind in Kind
        if (outcome.findings["kind"] == kind).any()
    }


def both(key: int, offset: int) -> list[Seen]:
    """An output in each topic."""
    return [Seen(2, offset, key), Seen(4, offset, key)]


def test_an_input_with_an_output_in_each_topic_is_no_finding() -> None:
    found = matched([Seen(0, 5, 7), *both(7, 9)], rules())
    assert counts(found) == {}
    assert found.matches.tolist() == [(0, 2, 5, 9), (0, 4, 5, 9)]
    assert found.pairs.tolist() == [(0, 2, 5, 5), (0, 4, 5, 5)]


def test_an_input_without_output_is_missing_and_named() -> None:
    found = matched([Seen(0, 5, 7), Seen(1, 3, 8), *both(8, 0)], rules())
    assert counts(found) == {"missing": 1}
    assert found.findings[["input_place", "input_offset"]].tolist() == [(0, 5)]


def test_an_input_with_an_output_in_one_topic_only_is_torn_and_the_other_topic_is_named() -> None:
    found = matched([Seen(0, 5, 7), Seen(2, 1, 7)], rules())
    assert counts(found) == {"torn": 1}
    assert found.findings["lacking"].tolist() == [0b10]


def test_fewer_outputs_than_expected_per_input_are_torn() -> None:
    found = matched([Seen(0, 5, 7), *both(7, 1)], rules(per_input=2))
    assert counts(found) == {"torn": 1}
    assert found.findings["lacking"].tolist() == [0b11]


def test_the_second_copy_of_an_output_is_doubled_and_named() -> None:
    found = matched([Seen(0, 5, 7), *both(7, 1), Seen(3, 4, 7)], rules())
    assert counts(found) == {"doubled": 1}
    (row,) = found.findings
    assert (row["output_place"], row["output_offset"], row["input_offset"]) == (3, 4, 5)
    assert len(found.matches) == 0, "the order of doubled ones is not compared"


def test_an_output_that_no_input_explains_is_unexpected() -> None:
    assert counts(matched([Seen(4, 1, 7)], rules())) == {"unexpected": 1}


def test_equal_keys_are_counted() -> None:
    inputs = [Seen(0, offset, 7) for offset in range(5)]
    outputs = [each for offset in range(3) for each in both(7, offset)]
    found = matched(inputs + outputs, rules())
    assert counts(found) == {"missing": 2}
    assert found.findings["is_ambiguous"].all()
    assert found.repeated == 5
    assert len(found.pairs) == 0, "it is not known which input an output belongs to"


def test_inputs_that_need_no_output_yet_are_waiting_and_no_finding() -> None:
    seen = [Seen(0, 5, 7), Seen(0, 6, 8), Seen(2, 0, 8)]
    found = matched(seen, rules(due_below=(5, 100)))
    assert counts(found) == {}
    assert found.waiting == 2


def test_an_output_in_an_open_transaction_holds_the_judgement_back() -> None:
    found = matched([Seen(0, 5, 7), Seen(2, 0, 7, is_open=True), Seen(4, 0, 7)], rules())
    assert counts(found) == {}
    assert found.held_back == 1


def test_a_pipeline_that_deduplicates_needs_one_output_for_equal_keys() -> None:
    seen = [Seen(0, 5, 7), Seen(0, 6, 7), Seen(1, 6, 7), *both(7, 0)]
    assert counts(matched(seen, rules(is_distinct=True))) == {}
    assert counts(matched([*seen, Seen(2, 1, 7)], rules(is_distinct=True))) == {"doubled": 1}
    assert counts(matched(seen[:3], rules(is_distinct=True))) == {"missing": 1}


def test_outputs_of_inputs_that_are_not_committed_are_ahead() -> None:
    seen = [Seen(0, 5, 7), *both(7, 0), Seen(0, 6, 8), *both(8, 1)]
    found = matched(seen, rules(committed=(6, 0)))
    assert counts(found) == {"ahead": 2}
    assert set(found.findings["input_offset"]) == {6}


def test_an_output_with_the_content_of_none_of_its_inputs_is_changed() -> None:
    read, other = Seen(0, 5, 7), Seen(0, 6, 8)
    seen = [read, other, *both(7, 0), *both(8, 1)]
    wrong = seen[2]
    assert counts(matched(seen, rules(), dict.fromkeys(seen, 3))) == {}
    found = matched(seen, rules(), dict.fromkeys(seen, 3) | {wrong: 4})
    assert counts(found) == {"changed": 1}
    (row,) = found.findings
    assert (row["output_place"], row["output_offset"], row["input_offset"]) == (2, 0, 5)
    # The content of an input with another key is no excuse.
    assert counts(matched(seen, rules(), {other: 4, wrong: 4, seen[4]: 4, seen[5]: 4})) == {
        "changed": 1
    }
    # Of two inputs with the key, either may have it.
    again = Seen(1, 0, 7)
    seen += [again, *both(7, 9)]
    assert counts(matched(seen, rules(), {again: 4, wrong: 4})) == {}
    # An output too many is doubled, whatever is in it.
    assert counts(matched([read, *both(7, 0), Seen(3, 4, 7)], rules(), {Seen(3, 4, 7): 9})) == {
        "doubled": 1
    }


def test_nothing_is_found_in_nothing() -> None:
    found = matched([], rules())
    assert counts(found) == {}
    assert (found.waiting, found.held_back, found.repeated) == (0, 0, 0)


def expected(seen: list[Seen], asked: Rules) -> Counter[str]:
    """The rules in plain Python, key by key."""
    found: Counter[str] = Counter()
    by_key: defaultdict[int, list[Seen]] = defaultdict(list)
    for each in seen:
        by_key[each.key].append(each)
    for records in by_key.values():
        inputs = [each for each in records if SLOTS[each.place] < 0]
        due = sum(each.offset < asked.due_below[each.place] for each in inputs)
        got = [
            sum(SLOTS[each.place] == s and not each.is_open for each in records) for s in range(2)
        ]
        for outputs in got:
            extra = max(0, outputs - len(inputs) * asked.per_input)
            found["doubled" if inputs else "unexpected"] += extra
        if any(each.is_open for each in records):
            continue
        begun = min(due, max(-(-outputs // asked.per_input) for outputs in got))
        complete = min(due, min(outputs // asked.per_input for outputs in got))
        found["missing"] += due - begun
        found["torn"] += begun - complete
    return +found


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 5), st.booleans()),
        unique_by=lambda each: each[:2],
        max_size=40,
    ),
    st.integers(1, 3),
    st.integers(0, 10),
)
@settings(max_examples=300, deadline=None)
def test_the_counts_are_those_of_the_plain_rules(
    drawn: list[tuple[int, int, int, bool]], per_input: int, below: int
) -> None:
    seen = [Seen(p, o, k, is_open and SLOTS[p] >= 0) for p, o, k, is_open in drawn]
    asked = rules(per_input=per_input, due_below=(below, 10))
    assert counts(matched(seen, asked)) == expected(seen, asked)


def late(*pairs: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """The input and output offsets of the late ones, over all portions."""
    found, reaches = [], []
    for _, portion, part in split_portions(np.array(list(pairs), MATCH)):
        here, reached = late_in(portion, part)
        found.append(here)
        reaches += reached
    found.append(carried_over(reaches))
    return [(int(row["input_offset"]), int(row["output_offset"])) for part in found for row in part]


def test_outputs_in_the_order_of_their_inputs_are_not_late() -> None:
    assert late((0, 2, 1, 1), (0, 2, 2, 2), (0, 2, 2, 3), (0, 2, 9, 4)) == []


def test_an_output_behind_one_of_a_later_input_is_late() -> None:
    assert late((0, 2, 1, 1), (0, 2, 5, 2), (0, 2, 3, 3), (0, 2, 6, 4)) == [(3, 3)]


@pytest.mark.parametrize("other", [(1, 2, 1, 3), (0, 3, 1, 3)], ids=["input", "output"])
def test_other_partitions_have_an_order_of_their_own(other: tuple[int, int, int, int]) -> None:
    assert late((0, 2, 5, 2), other) == []


def test_an_output_is_late_because_of_an_earlier_portion() -> None:
    far = 1 << PORTION_BITS
    assert late((0, 2, 5, 2), (0, 2, 3, far), (0, 2, 6, far + 1)) == [(3, far)]
    assert late((0, 2, 3, 2), (0, 2, 5, far), (0, 2, 6, far + 1)) == []
