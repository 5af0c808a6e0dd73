"""How many calls into the JVM a small batch makes: each is a round trip of the driver."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import on_spark
from tests.spark.pipeline import Pipeline, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()

MOST = 33
"""Six of them are Spark's own: they wrap the batch for the user's function."""


class Commands:
    """Counts the commands that each thread sends to the JVM."""

    def __init__(self, gateway_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._by_thread: dict[int, int] = {}
        self._genuine = gateway_client.send_command
        monkeypatch.setattr(gateway_client, "send_command", self._send)

    def _send(self, *arguments: Any, **more: Any) -> Any:
        # Another thread tells the JVM which objects Python has dropped: nothing waits for that.
        thread = threading.get_ident()
        self._by_thread[thread] = self._by_thread.get(thread, 0) + 1
        return self._genuine(*arguments, **more)

    def of_this_thread(self) -> int:
        return self._by_thread[threading.get_ident()]


@pytest.mark.parametrize(
    "columns",
    [["CAST(value AS BINARY) AS key", "CAST(value AS BINARY) AS value"], ["value AS key", "value"]],
    ids=["bytes", "text that is cast"],
)
def test_a_small_batch_makes_few_calls_into_the_jvm(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    gateway: Any = pipeline.spark.sparkContext._gateway
    commands = Commands(gateway._gateway_client, monkeypatch)
    pipeline.add(*(numbered(batch, 10) for batch in range(5)))
    sink, sent = pipeline.sink(), []

    def write(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        sent.append(commands.of_this_thread())

    assert pipeline.run(write, lambda lines: lines.selectExpr(*columns)) is None
    # From the end of one batch to the end of the next. The driver writes from the second on, which
    # also looks up what stays the same during a run.
    costs = [after - before for before, after in pairwise(sent)]
    assert max(costs[1:]) <= MOST
