"""Every case of Kafka's behaviour and every past bug has a test, or a reason why not yet."""

from __future__ import annotations

import re

import pytest

from tools.list_cases import (
    BUGS,
    CASES,
    PAGE,
    WAITING,
    Shown,
    find_tests,
    missing,
    page,
    showing_bug,
    showing_case,
)

NUMBERS = [number for cases in CASES.values() for number in cases]


@pytest.fixture(scope="module")
def tests() -> list[Shown]:
    return find_tests()


def test_there_are_ninety_cases() -> None:
    assert sorted(NUMBERS) == list(range(1, 91))


def test_each_case_and_each_bug_has_a_test_or_a_reason_to_wait(tests: list[Shown]) -> None:
    assert missing(tests) == []


def test_a_case_whose_listed_test_is_missing_is_reported(tests: list[Shown]) -> None:
    gone = "test_a_topic_may_be_fetched_by_its_id"
    without = [test for test in tests if test.name != gone]
    assert missing(without) == [f"Fetch, topic ids (KIP-516): no test is called {gone}"]


def test_every_case_that_waits_has_a_reason() -> None:
    assert set(WAITING) == {66}
    assert all(WAITING.values())


def test_a_case_without_a_test_is_reported(tests: list[Shown]) -> None:
    without = [test for test in tests if "_case_60_" not in test.name]
    assert missing(without) == ["case 60: no test is called test_case_60_..."]


def test_a_bug_without_a_test_is_reported(tests: list[Shown]) -> None:
    without = [test for test in tests if "17754" not in test.text]
    assert missing(without) == ["KAFKA-17754: no test names it"]


def test_a_waiting_case_with_tests_is_reported(tests: list[Shown]) -> None:
    arrived = Shown("test_case_66_followers_follow", "tests/somewhere.py", "")
    assert missing([*tests, arrived]) == ["case 66 is said to wait, but there are tests of it"]


def test_a_number_does_not_match_part_of_another() -> None:
    assert showing_case(6, [Shown("test_case_60_and_so_on", "", "")]) == []
    (bug,) = [bug for bugs in BUGS.values() for bug in bugs if bug.names == ("KAFKA-9600",)]
    assert showing_bug(bug, [Shown("test_it", "", "KAFKA-96001")]) == []


def test_the_page_lists_every_case_and_no_missing_test(tests: list[Shown]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == NUMBERS
    known = {f"{test.sentence} " for test in tests}
    named = re.findall(r"([^|<>]*?)\(\[test_[a-z_]+\]\(\.\./[a-z_/]+\.py\)\)", text)
    assert named
    gone = [sentence for sentence in named if sentence.lstrip() not in known]
    assert gone == [], "the page is outdated; run: python -m tools.list_cases"


def test_the_page_can_be_written(tests: list[Shown]) -> None:
    lines = list(page(tests))
    assert len([line for line in lines if line.startswith("| ")]) > 90 + len(BUGS)
