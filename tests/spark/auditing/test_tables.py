"""Audits of tables on a real PostgreSQL: what is found, what is not judged, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.auditing.question import Asked
from tests.outside.conftest import dsn, postgres
from tests.spark.auditing.sql import run
from tests.spark.auditing.topics import NOW_MS, Topics
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["dsn", "postgres"]

pytestmark = on_spark()

LATER_MS = 1 << 50
"""All inputs are older."""
PAYMENTS = "CREATE TABLE payments (refund_id text, amount bigint, paid_at timestamptz)"


@pytest.fixture
def topics(
    cluster: Cluster, bootstrap: str, spark: SparkSession, new_topic: Callable[..., str]
) -> Topics:
    return Topics(cluster, bootstrap, spark, new_topic)


def refund(number: int, **changed: Any) -> Record:
    value = {"refund_id": f"r-{number}", "amount": number * 10} | changed
    return Record(timestamp_ms=NOW_MS, key=b"%d" % number, value=json.dumps(value).encode())


def paid(numbers: str) -> str:
    return f"INSERT INTO payments SELECT 'r-' || n, n * 10 FROM generate_series({numbers}) AS n"


def test_from_a_topic_into_a_table_everything_that_is_wrong_is_found_and_named(
    topics: Topics, dsn: str
) -> None:
    read = topics.new(2, "in")
    topics.put(read, 0, [refund(number) for number in range(50)])
    topics.put(read, 1, [refund(number) for number in range(50, 100)])
    run(
        dsn,
        PAYMENTS,
        paid("0, 99"),
        "DELETE FROM payments WHERE refund_id = 'r-7'",
        paid("20, 21"),
        "UPDATE payments SET amount = 1 WHERE refund_id = 'r-3'",
        "INSERT INTO payments VALUES ('alien', 5), (NULL, 5)",
    )
    asked: dict[str, Any] = {
        "input": read,
        "table": "payments",
        "postgres": dsn,
        "key": "value:refund_id",
        "table_key": "refund_id",
        "compare": "amount",
        "until_ms": LATER_MS,
    }
    found = topics.audit(**asked)
    assert found.counts == {"missing": 1, "doubled": 2, "unexpected": 1, "changed": 1}
    assert found.is_exactly_once is False
    examples = {each.kind: [str(one) for one in each.examples] for each in found.findings}
    assert examples["missing"] == [f"key r-7, input {read}:0:7"]
    assert examples["doubled"] == [
        f"key r-{number}, input {read}:0:{number}, output payments" for number in (20, 21)
    ]
    assert examples["unexpected"] == ["key alien, output payments"]
    assert examples["changed"] == [f"key r-3, input {read}:0:3, output payments"]
    # Rows could have been deleted or changed by others; nothing but the pipeline adds any.
    assert {each.kind: each.certainty for each in found.findings} == {
        "missing": "likely",
        "doubled": "proven",
        "unexpected": "proven",
        "changed": "likely",
    }
    assert found.not_judged == ((1, "outputs without the key refund_id"),)
    assert (found.inputs.records, found.outputs.records, found.outputs.rows) == (100, 0, 103)
    assert f"read 100 records of {read} (2 partitions)" in str(found)
    assert "and 103 rows of payments" in str(found)
    assert "payments was read as it was at 2" in str(found)
    rows = {(row.kind, bytes(row.key)): row for row in found.rows().collect()}
    assert set(rows) == {
        ("missing", b"r-7"),
        ("doubled", b"r-20"),
        ("doubled", b"r-21"),
        ("unexpected", b"alien"),
        ("changed", b"r-3"),
    }
    assert rows["unexpected", b"alien"].outputTopic == "payments"
    assert rows["unexpected", b"alien"].outputOffset is None

    run(
        dsn,
        "TRUNCATE payments",
        paid("0, 99"),
    )
    right = topics.audit(**asked)
    assert right.verdict == (
        "Exactly-once by value:refund_id of inputs and refund_id of outputs as far as it was "
        "judged: 100 inputs. Also compared: amount; nothing else."
    )


def test_of_a_table_that_is_read_only_rows_of_ended_transactions_must_have_outputs(
    topics: Topics, dsn: str
) -> None:
    written = topics.new(1, "out")
    run(dsn, PAYMENTS, paid("0, 9"))
    topics.put(written, 0, [refund(number) for number in range(8)])
    asked: dict[str, Any] = {
        "input_table": "payments",
        "output": written,
        "postgres": dsn,
        "key": "value:refund_id",
        "table_key": "refund_id",
    }
    with psycopg.connect(dsn) as open_still:
        open_still.execute(paid("10, 12").encode())
        # It ended later than the open one began, and its rows are not judged.
        run(dsn, paid("13, 14"))
        found = topics.audit(**asked)
        assert found.counts == {"missing": 2}
        assert [each.certainty for each in found.findings] == ["likely"]
        assert found.not_judged == (
            (
                2,
                "inputs without output of transactions that were running when the audit began",
            ),
        )
        assert (found.judged, found.inputs.rows) == (10, 12)
        topics.put(written, 0, [refund(number) for number in (8, 9)])
        assert topics.audit(**asked).is_exactly_once is True
    # The one that was open is committed: its events are missing now.
    found = topics.audit(**asked, until_ms=LATER_MS)
    assert found.counts == {"missing": 5}
    assert [each.certainty for each in found.findings] == ["proven"]
    # A row that is gone is no proof that its event has none.
    run(dsn, "DELETE FROM payments WHERE refund_id = 'r-2'")
    (unexpected,) = [each for each in topics.audit(**asked).findings if each.kind == "unexpected"]
    assert unexpected.certainty == "likely"
    assert unexpected.sentence.endswith("unless rows of payments were deleted")


def test_a_topic_and_a_table_are_both_outputs_and_an_input_with_one_of_them_is_torn(
    topics: Topics, dsn: str
) -> None:
    read, written = topics.new(1, "in"), topics.new(1, "out")
    topics.put(read, 0, [refund(number) for number in range(20)])
    topics.put(written, 0, [refund(number) for number in range(20)])
    run(dsn, PAYMENTS, paid("0, 19"), "DELETE FROM payments WHERE refund_id = 'r-4'")
    found = topics.audit(
        input=read,
        output=written,
        table="payments",
        postgres=dsn,
        key="value:refund_id",
        table_key="refund_id",
        until_ms=LATER_MS,
    )
    assert found.counts == {"torn": 1}
    assert found.findings[0].examples[0].lacking == ("payments",)


def test_two_tables_are_compared_by_whole_rows_without_kafka(
    topics: Topics, dsn: str, spark: SparkSession
) -> None:
    from fencepost.spark import audit

    run(
        dsn,
        "CREATE TABLE source (id bigint, name text, more json) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF source FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE high PARTITION OF source FOR VALUES FROM (5) TO (1000)",
        "INSERT INTO source SELECT n, n || 'x', '{\"b\": 1}' FROM generate_series(0, 9) AS n",
        'CREATE TABLE "Target R" (id bigint, name varchar(9), more jsonb, r int)',
        'INSERT INTO "Target R" SELECT id, name, more, NULL FROM source',
        'CREATE VIEW target AS SELECT id, name, more FROM "Target R"',
        "UPDATE \"Target R\" SET name = 'other' WHERE id = 5",
    )
    asked: Asked = {
        "input_table": "source",
        "table": "target",
        "postgres": dsn,
        "table_key": "*",
        "until_ms": LATER_MS,
    }
    found = audit(spark, "127.0.0.1:1", **asked)
    assert found.counts == {"missing": 1, "unexpected": 1}
    assert "Not exactly-once" in found.verdict or "Probably not" in found.verdict
    named = audit(spark, "127.0.0.1:1", **asked | {"table_key": "id", "compare": "*"})
    assert named.counts == {"changed": 1}
    assert [str(each) for each in named.findings[0].examples] == [
        "key 5, input source, output target"
    ]
