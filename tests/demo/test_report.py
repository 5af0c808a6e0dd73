"""The demo's last words: numbers, verdict."""

from __future__ import annotations

from dataclasses import replace

from fencepost_examples.demo.picture import draw
from fencepost_examples.demo.plan import (
    Victim,
)
from fencepost_examples.demo.report import WIDTHS, has_passed, write_report
from fencepost_examples.refunds.spark import audit
from fencepost_examples.refunds.spark.audit import QUESTIONS
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE
from tests.demo.histories import a_history


def test_duplicates_without_transactions_are_reported_but_do_not_fail_the_run() -> None:
    history, options = a_history(doubled=7)
    assert has_passed(history, options)
    report = write_report(history, options)
    assert report[0] == "Killed: 1 x driver, 1 x broker, 1 x loader. Seed 4, 61 s."
    assert report[-2].startswith("PASSED: ")
    assert report[-1] == "Without transactions, 7 refunds were paid more than once."
    assert any(line.split()[-2:] == ["0.00", "7.35"] for line in report)
    assert all(len(line) <= 79 for line in report)


def test_the_report_says_how_often_one_of_several_brokers_was_paused_and_rolled() -> None:
    history, options = a_history()
    history.kills += [(56.0, Victim.PAUSED_BROKER), (57.0, Victim.ROLLED_BROKER)]
    options = replace(options, brokers=3)
    report = write_report(history, options)
    assert report[0] == "Killed: 1 x driver, 1 x broker, 1 x loader. Seed 4, 61 s."
    assert report[1] == "Of 3 brokers, one was paused 1 x, rolled 1 x."
    assert "kill -9, pause, roll" in draw(history, options)


def test_every_question_fits_its_column() -> None:
    others = [value for value in vars(audit).values() if isinstance(value, str) and " " in value]
    names = [*QUESTIONS, *(value for value in others if "\n" not in value)]
    assert audit.OFFSETS_AND_OUTPUT in names
    assert max(map(len, names)) + len("  ") <= WIDTHS[0]


def test_a_lost_settlement_is_a_failure() -> None:
    history, options = a_history(lost=1)
    assert not has_passed(history, options)
    assert write_report(history, options)[-1].startswith("FAILED: ")


def test_a_settlement_that_never_reached_the_topic_is_a_failure() -> None:
    history, options = a_history()
    history.findings[EXACTLY_ONCE].rows["settlements"] = 99
    assert not has_passed(history, options)
