"""The most common failure: the user's own function, or a value that SQL refuses.

The sentence has the last line of the user's traceback and where it was, and the batch is tried
once: another attempt would fail again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark import Progress, TransactionalSink, reason_of
from fencepost.spark.failures import QueryFailed, SinkFailed
from fencepost.spark.sentences import failure_of_job, is_final
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

pytestmark = on_spark()

MANY_ROWS = 20_000
"""More than are collected: they go to the brokers from the tasks."""


def price(number: int) -> str:
    raise KeyError(f"no price for {number}\nin this list")


def by_udf() -> Column:
    from pyspark.sql import functions

    return functions.udf(price)("id").alias("value")


def by_division() -> Column:
    from pyspark.sql import functions

    return functions.expr("cast(1 / (id - id) AS string) AS value")


WHERE = f"of {__file__}, in price)"


@pytest.mark.parametrize("rows", [3, MANY_ROWS])
@pytest.mark.parametrize(
    ("column", "words"),
    [
        (by_udf, ("KeyError: 'no price for ", WHERE)),
        (by_division, ("[DIVIDE_BY_ZERO] Division by zero",)),
    ],
)
def test_a_failure_of_the_query_itself_is_one_sentence_and_one_attempt(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    column: Callable[[], Column],
    words: tuple[str, ...],
    rows: int,
) -> None:
    steps: list[str] = []
    topic = new_topic()
    sink = TransactionalSink(
        bootstrap,
        transactional_id=topic,
        topic=topic,
        on_step=lambda step, _: steps.append(step),
    )
    (tmp_path / "in").mkdir()
    lines = "\n".join(f'{{"id": {number}}}' for number in range(rows))
    (tmp_path / "in" / "numbers.json").write_text(lines)
    numbers = spark.readStream.schema("id int").json(str(tmp_path / "in"))
    query = (
        numbers.select(column())
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with Progress(spark, show=False) as progress, pytest.raises(Exception, match="batch 0") as told:
        query.awaitTermination(120)
    reason = reason_of(told.value)
    assert reason.startswith(f"batch 0: {words[0]}")
    assert all(each in reason for each in words)
    assert "\n" not in reason
    assert steps.count("writing") == 1
    shown = next(status for status in progress.queries if status.query_id == str(query.id))
    assert shown.error == reason


OURS = """\
  File "/job/main.py", line 3, in go
    x
  File "/x/fencepost/spark/ways/stage.py", line 9, in write
    x
OSError: full
"""
THEIRS = """\
  File "/job/prices.py", line 3, in price
    x
KeyError: 1
"""
SPARKS = THEIRS.replace("/job/", "/x/pyspark/")


@pytest.mark.parametrize(
    ("text", "kind"),
    [(THEIRS, QueryFailed), (SPARKS, SinkFailed), (OURS, SinkFailed), ("", SinkFailed)],
    ids=["the user's function", "a lost worker", "our own code", "no traceback"],
)
def test_only_what_the_query_itself_raised_is_not_tried_again(text: str, kind: type) -> None:
    batch: Any = SimpleNamespace(batch_id=7, is_stopping=lambda: False, run_id="")
    rows: Any = SimpleNamespace(isStreaming=False)
    problem = RuntimeError(f"Job aborted\nTraceback (most recent call last):\n{text}")
    found = failure_of_job(problem, rows, batch)
    assert type(found) is kind
    assert is_final(found) is (kind is QueryFailed)
