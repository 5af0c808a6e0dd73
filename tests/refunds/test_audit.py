"""The audit finds every planted error, and nothing in correct data.

No streaming: three small tables.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView
from fencepost_examples.refunds.spark import audit
from fencepost_examples.refunds.spark.audit import QUESTIONS, Findings, compare_offsets, examine
from fencepost_examples.refunds.spark.settlements import (
    ABOVE_DAILY_LIMIT,
    APPROVED,
    AUDIT_SCHEMA,
    REFUND_SCHEMA,
    SETTLEMENT_SCHEMA,
    Settlement,
    merchant_rules,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

RULE = next(rule for rule in merchant_rules() if rule.daily_limit_paise == 1_000_000)


def settlement(number: int, amount_paise: int = 1_000) -> Settlement:
    return Settlement(
        f"refund-{number}", RULE.merchant, amount_paise, "item missing", "support desk", "day 1"
    )


def decided(number: int, amount_paise: int = 1_000, decision: str = APPROVED) -> dict[str, Any]:
    source = {"decision": decision, "source_partition": 0, "source_offset": number}
    return asdict(settlement(number, amount_paise)) | source


def refund(number: int, amount_paise: int = 1_000) -> dict[str, Any]:
    return {
        "refund_id": f"refund-{number}",
        "merchant": RULE.merchant,
        "amount_paise": amount_paise,
    }


@dataclass
class Settlements:
    """Seven settlements with correct output, for tests to spoil."""

    settlements: list[dict[str, Any]] = field(
        default_factory=lambda: [asdict(settlement(number)) for number in range(7)]
    )
    audit: list[dict[str, Any]] = field(
        default_factory=lambda: [decided(number) for number in range(7)]
    )
    refunds: list[dict[str, Any]] = field(
        default_factory=lambda: [refund(number) for number in range(7)]
    )

    def examine(self, spark: SparkSession, *, daily_limit: bool = False) -> Findings:
        schemas = {
            "settlements": SETTLEMENT_SCHEMA,
            "audit": AUDIT_SCHEMA,
            "refunds": REFUND_SCHEMA,
        }
        for name, schema in schemas.items():
            rows = getattr(self, name)
            spark.createDataFrame(rows, schema).createOrReplaceTempView(name)
        return examine(spark, daily_limit=daily_limit)


def found(findings: Findings) -> dict[str, int]:
    return {question: count for question, count in findings.wrong.items() if count}


def test_correct_data_has_no_findings(spark: SparkSession) -> None:
    findings = Settlements().examine(spark, daily_limit=True)
    assert findings.is_clean
    assert findings.rows == {"settlements": 7, "decisions": 7, "refunds": 7}
    assert findings.paid_too_much_paise == 0


def test_every_planted_violation_is_found_and_counted_and_doubles_have_their_cost(
    spark: SparkSession,
) -> None:
    """One for each settlement: none hides or adds to another."""
    world = Settlements()
    world.audit[0] = decided(0, decision="refused: no goodwill")
    world.refunds[1] = refund(1, 1_001)
    world.refunds += [refund(2), refund(2), refund(9)]
    world.audit += [decided(2), decided(9)]
    del world.refunds[3:5], world.audit[4:6]
    findings = world.examine(spark)
    assert found(findings) == {
        "settlements decided more than once": 1,
        "refunds paid more than once": 1,
        "approvals without their refund": 1,
        "settlements without a decision": 2,
        "refunds without their audit row": 2,
        "refunds of another amount than settled": 1,
        "decisions without a settlement": 1,
        audit.AGAINST_THE_RULES: 1,
    }
    assert (findings.refunds_too_many, findings.paid_too_much_paise) == (2, 2_000)


def spend(*amounts: tuple[int, str]) -> Settlements:
    """One merchant's day, with a limit of a million."""
    return Settlements(
        settlements=[asdict(settlement(n, amount)) for n, (amount, _) in enumerate(amounts)],
        audit=[decided(n, amount, decision) for n, (amount, decision) in enumerate(amounts)],
        refunds=[refund(n, amount) for n, (amount, what) in enumerate(amounts) if what == APPROVED],
    )


def test_a_day_above_its_limit_is_found(spark: SparkSession) -> None:
    amount = RULE.highest_paise
    count = RULE.daily_limit_paise // amount
    world = spend(*[(amount, APPROVED)] * (count + 1))
    assert found(world.examine(spark, daily_limit=True)) == {audit.ABOVE_THE_LIMIT: 1}


def test_a_refusal_before_the_limit_is_reached_is_found(spark: SparkSession) -> None:
    world = spend((1_000, APPROVED), (1_000, ABOVE_DAILY_LIMIT))
    assert found(world.examine(spark, daily_limit=True)) == {audit.BELOW_THE_LIMIT: 1}


P0, P1 = TopicPartition("settlements", 0), TopicPartition("settlements", 1)
PAGE = LedgerView(TopicPartition("fencepost-ledger", 0), LedgerEntry("query", 7))
ENDS = {P0: 10, P1: 12}


def test_matching_offsets_pass() -> None:
    assert not any(compare_offsets(PAGE, ENDS, ENDS, ENDS, 7).values())


@pytest.mark.parametrize(
    ("view", "committed", "output", "last_batch", "wrong"),
    [
        (PAGE, ENDS, {P0: 10, P1: 11}, 7, {audit.OFFSETS_AND_OUTPUT: 1}),
        (PAGE, ENDS, {P0: 10}, 7, {audit.OFFSETS_AND_OUTPUT: 1}),
        (PAGE, {P0: 10, P1: 9}, {P0: 10, P1: 9}, 7, {audit.OFFSETS_AND_INPUT: 3}),
        (PAGE, ENDS, ENDS, 8, {audit.LEDGER_AND_CHECKPOINT: 1}),
        (
            LedgerView(),
            {},
            ENDS,
            7,
            {
                audit.OFFSETS_AND_OUTPUT: 2,
                audit.OFFSETS_AND_INPUT: 22,
                audit.LEDGER_AND_CHECKPOINT: 8,
            },
        ),
    ],
    ids=["output ends before", "a partition is missing", "behind", "ledger behind", "no ledger"],
)
def test_offsets_that_differ_are_found(
    view: LedgerView,
    committed: dict[TopicPartition, int],
    output: dict[TopicPartition, int],
    last_batch: int,
    wrong: dict[str, int],
) -> None:
    answers = compare_offsets(view, committed, output, ENDS, last_batch)
    assert {question: count for question, count in answers.items() if count} == wrong


def test_the_last_batch_is_the_newest_that_spark_has_logged(tmp_path: Path) -> None:
    assert audit.last_batch_of(tmp_path) == -1
    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".10.crc"):
        (tmp_path / "commits" / name).touch()
    assert audit.last_batch_of(tmp_path) == 10


def test_a_single_violation_fails_the_audit() -> None:
    fine = Findings(wrong=dict.fromkeys(QUESTIONS, 0))
    assert fine.is_clean
    assert not replace(fine, wrong=fine.wrong | {next(iter(QUESTIONS)): 1}).is_clean
