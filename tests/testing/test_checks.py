"""The named checks: each reports the fault that is planted for it, and a sound history none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.testing import checks

P, Q = ("payments", 0), ("payments", 1)

SENT = ["a", "b", "c", "d"]


def test_a_sound_history_has_no_finding() -> None:
    assert checks.aborted_read(["x"], SENT) == []
    assert checks.lost_write(SENT, SENT) == []
    assert checks.duplicate(SENT) == []
    assert checks.torn_transaction({1: ["a", "b"], 2: ["x", "y"], 3: []}, SENT) == []
    assert checks.offsets_without_output({P: 5, Q: 0}, [(P, 0), (P, 4)], [(P, 0), (P, 4)]) == []
    assert checks.nonmonotonic_poll([(P, 0), (Q, 0), (P, 3), (Q, 1)]) == []
    assert checks.nonmonotonic_send([(P, 0), (Q, 0), (P, 3), (Q, 1)]) == []


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            checks.aborted_read(["x", "y"], ["a", "x", "x"]),
            "aborted read: 'x' was read, and its transaction was aborted",
        ),
        (
            checks.lost_write(SENT, ["a", "b", "d"]),
            "lost write: 'c' was committed and never read",
        ),
        (
            checks.lost_write(["a", "a"], ["a"]),
            "lost write: 'a' was committed 2 times and read once",
        ),
        (checks.duplicate(["a", "b", "a"]), "duplicate: 'a' was read 2 times and sent once"),
        (
            checks.duplicate(["a", "a", "a", "b", "b"], sent=["a", "a", "b", "b"]),
            "duplicate: 'a' was read 3 times and sent 2 times",
        ),
        (
            checks.torn_transaction({"t-1": ["a", "x", "y"]}, SENT),
            "torn transaction: of 't-1' 'a' was read, and 'x', 'y' not",
        ),
        (
            checks.offsets_without_output({P: 3}, [(P, 0), (P, 2), (P, 3)], [(P, 0)]),
            "offsets without output: the group stands at 3 of ('payments', 0), and 2 has no output",
        ),
        (
            checks.nonmonotonic_poll([(P, 4), (Q, 0), (P, 2)]),
            "non-monotonic poll: ('payments', 0) gave 2 after 4",
        ),
        (
            checks.nonmonotonic_poll([(P, 4), (P, 4)]),
            "non-monotonic poll: ('payments', 0) gave 4 after 4",
        ),
        (
            checks.nonmonotonic_send([(P, 4), (P, 2), (P, 3)]),
            "non-monotonic send: ('payments', 0) has at 2 what was sent after its record at 4",
        ),
    ],
)
def test_each_check_catches_the_fault_planted_for_it_and_nothing_else(
    found: list[str], sentence: str
) -> None:
    assert found == [sentence]


def test_a_read_of_nothing_is_a_loss_and_not_a_success() -> None:
    assert len(checks.lost_write(SENT, [])) == len(SENT)
    (problem,) = checks.offsets_without_output({P: 3}, [], [])
    assert problem.endswith("stands at 3 of ('payments', 0), whose input is not given")


def test_a_list_may_be_any_iterable() -> None:
    assert checks.lost_write(iter(SENT), iter(SENT[1:])) == checks.lost_write(SENT, SENT[1:])
    assert checks.duplicate(iter("abca"), iter("abc")) == checks.duplicate("abca", "abc")
    offsets = {"a": 3, "b": 7}
    assert checks.lost_write(offsets, ["a"]) == checks.lost_write(["a", "b"], ["a"])
    assert checks.duplicate(offsets, sent=offsets) == []
    torn = checks.torn_transaction({1: iter("ax")}, iter("a"))
    assert torn == checks.torn_transaction({1: "ax"}, "a") != []


def test_of_many_findings_the_first_are_shown_and_the_others_counted() -> None:
    found = checks.lost_write(range(100), [])
    assert len(found) == 21
    assert found[-1] == "and 80 more like this"


def swap(log: list[int]) -> tuple[list[int], list[str]]:
    swapped = [log[1], log[0], *log[2:]]
    return log, checks.nonmonotonic_poll((P, each) for each in swapped)


def drop(log: list[int]) -> tuple[list[int], list[str]]:
    return log, checks.lost_write(log, log[1:])


def repeat(log: list[int]) -> tuple[list[int], list[str]]:
    return log, checks.duplicate([*log, log[-1]], sent=log)


def tear(log: list[int]) -> tuple[list[int], list[str]]:
    return log, checks.torn_transaction({"t": log}, log[1:])


@given(
    st.lists(st.integers(0, 1000), min_size=2, unique=True).map(sorted),
    st.sampled_from([swap, drop, repeat, tear]),
)
def test_one_fault_in_any_log_is_one_finding(
    log: list[int], plant: Callable[[list[int]], tuple[list[int], list[str]]]
) -> None:
    _, found = plant(log)
    assert len(found) == 1
