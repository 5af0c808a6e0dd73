"""What an audit without findings may conclude, and what it must leave open."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.base.failures import ConfigError
from fencepost.spark.auditing.bounds import Bounds
from fencepost.spark.auditing.job import Summary
from fencepost.spark.auditing.judging import blind_spots
from fencepost.spark.auditing.question import Asked, read_question
from fencepost.spark.auditing.result import AuditFinding, AuditResult, SideCounts

SIDE = SideCounts(("t",), 1, 10, 0, 0, 0)
MISSING = AuditFinding("missing", 1, "proven", "Inputs without any output")


def spots(*, repeated: int = 0, compacted: Iterable[str] = (), **asked: Any) -> str:
    """Why nothing can be concluded, of an audit of `in` and `out` by the key."""
    question = read_question(**cast("Asked", {"input": "in", "output": "out"} | asked))
    bounds = cast("Bounds", SimpleNamespace(compacted=frozenset(compacted)))
    summary = cast("Summary", SimpleNamespace(repeated=repeated))
    return "; ".join(blind_spots(question, bounds, summary))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ""),
        ({"repeated": 3}, "3 inputs share their key"),
        ({"repeated": 3, "counts_per_key": True}, ""),
        # Equal inputs count as one, which has one output.
        ({"repeated": 3, "distinct": True}, ""),
        ({"per_input": 2}, "the 2 outputs of an input have the same key"),
        ({"per_input": 2, "distinct": True, "repeated": 3}, "the 2 outputs of an input"),
        ({"per_input": 2, "counts_per_key": True}, ""),
        ({"compacted": ["out"], "counts_per_key": True}, "compaction removes outputs"),
        ({"compacted": ["in"]}, "compaction removes inputs with equal keys"),
        # Compaction goes by the record's key, and not by this one.
        ({"compacted": ["in"], "key": "value:id"}, ""),
    ],
)
def test_where_one_loss_and_one_copy_cancel_out_nothing_is_concluded(
    asked: dict[str, Any], expected: str
) -> None:
    found = spots(**asked)
    assert expected in found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("judged", "findings", "seen", "expected"),
    [
        (10, (), (), True),
        (0, (), (), None),
        (10, (), ("keys repeat",), None),
        # What was found is wrong, however much else could not be seen.
        (10, (MISSING,), ("keys repeat",), False),
    ],
)
def test_a_result_is_right_wrong_or_unknown(
    judged: int, findings: tuple[AuditFinding, ...], seen: tuple[str, ...], expected: bool | None
) -> None:
    result = AuditResult(SIDE, SIDE, judged, findings, (), blind_spots=seen)
    assert result.is_exactly_once is expected
    assert result.verdict.startswith(
        {True: "Exactly-once by key", False: "Not exactly-once by key", None: "Cannot tell"}[
            expected
        ]
    )
    assert result.as_json()["blind_spots"] == list(seen)


def test_a_verdict_of_tables_says_what_was_compared_and_what_was_not() -> None:
    asked: Asked = {"input": "in", "table": "t", "table_key": "id", "postgres": "dbname=x"}
    assert read_question(**asked).compared == "key of inputs and id of outputs"
    assert read_question(**asked).not_compared == "Nothing else was compared."
    asked["compare"] = ["a", "b=c"]
    assert read_question(**asked).not_compared == "Also compared: a, b; nothing else."
    asked["compare"] = "*"
    assert read_question(**asked).not_compared == "Also compared: all contents."
    rows: Asked = {"input_table": "s", "table": "t", "table_key": "*", "postgres": "dbname=x"}
    assert read_question(**rows).compared == "*"
    assert read_question(**rows).not_compared == "Whole rows were compared."


def test_an_argument_that_an_audit_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match="no argument 'outputs'; did you mean output"):
        read_question(**cast("Asked", {"input": "in", "outputs": "out"}))


@pytest.mark.parametrize(
    ("keys", "compared", "left_out"),
    [
        ({}, "key", "Values were not compared."),
        ({"key": "header:id"}, "header:id", "Values were not compared."),
        ({"key": "value:id"}, "value:id", "The rest of the values was not compared."),
        ({"key": "value"}, "value", "Keys and headers were not compared."),
        (
            {"input_key": "value:id", "output_key": "key"},
            "value:id of inputs and key of outputs",
            "The rest of the values was not compared.",
        ),
    ],
)
def test_a_verdict_says_what_was_compared_and_what_was_not(
    keys: dict[str, str], compared: str, left_out: str
) -> None:
    question = read_question(**cast("Asked", {"input": "in", "output": "out"} | keys))
    assert question.compared == compared
    assert question.not_compared == left_out
