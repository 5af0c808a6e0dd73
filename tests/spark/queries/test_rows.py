"""Goal: batches of every size and rows of every kind are written once, on every route.

Method: one query whose batches are empty, have one row, or many, and take all three routes; its
rows have null keys, null values and headers. It crashes in several batches.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, failed
from tests.spark.ways.watching import WAYS, watch_ways

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The route of each batch that was written, with its number."""
    taken: list[tuple[str, int]] = []
    watch_ways(monkeypatch.setattr, lambda way, batch_id: taken.append((way, batch_id)))
    return taken


def mixed(lines: DataFrame) -> DataFrame:
    """A third of the rows has no key, a third no value, and some have headers."""
    return lines.where("value != 'none'").selectExpr(
        "if(int(value) % 3 = 0, NULL, value) AS key",
        "if(int(value) % 3 = 1, NULL, value) AS value",
        "if(int(value) % 7 = 0, array(named_struct('key', 'h', 'value', binary(value))), NULL)"
        " AS headers",
    )


def mixed_record(number: int) -> tuple[bytes | None, bytes | None, tuple[Any, ...]]:
    text = str(number).encode()
    return (
        None if number % 3 == 0 else text,
        None if number % 3 == 1 else text,
        (("h", text),) if number % 7 == 0 else (),
    )


def test_batches_of_every_size_and_route_are_written_once_with_all_kinds_of_rows(
    pipeline: Pipeline, cluster: Cluster, routes: list[tuple[str, int]]
) -> None:
    sizes = [1, 1, 0, 1_500, 1_500, 0, 3, 1]
    numbers = iter(range(sum(sizes)))
    files = [[str(next(numbers)) for _ in range(size)] or ["none"] for size in sizes]
    pipeline.add(*files)
    crashes = {("written", 1), ("ended", 1), ("ended", 2), ("written", 3), ("ended", 4)}
    failures = 0

    def on_step(step: str, batch_id: int) -> None:
        if (step, batch_id) in crashes:
            crashes.remove((step, batch_id))
            raise RuntimeError("died")

    while crashes:
        sink = pipeline.sink(on_step=on_step)

        def write(df: DataFrame, batch_id: int, sink: Any = sink) -> None:
            # More partitions than there are slots: such a batch goes through the shuffle.
            sink(df.repartition(5) if batch_id == 4 else df, batch_id)

        assert "died" in (pipeline.run(write, mixed) or "")
        failures += 1
    assert pipeline.run(pipeline.sink(), mixed) is None
    assert failures == 5
    assert {route for route, _ in routes} == set(WAYS)
    # Batch 4 was committed before its crash, and only drained after it.
    assert [route for route in routes if route[1] == 4] == [("shuffled", 4)]
    found = Counter(
        (record.key, record.value, record.headers)
        for partition in range(3)
        for record in cluster.records(TopicPartition(pipeline.topic, partition))
    )
    assert found == Counter(mixed_record(number) for number in range(sum(sizes)))


def test_a_batch_with_a_row_that_is_too_large_is_written_once_after_the_limit_is_raised(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    """Neither the large row nor its neighbours are visible before."""
    roomy = f"{pipeline.topic}-roomy"
    cluster.create_topics([NewTopic(roomy, 2, 1, configs={"max.message.bytes": "4000000"})])
    pipeline.add(["1"], ["2", "2000000", "3"], ["4"])

    def sized(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("repeat('x', int(value)) AS value")

    for _ in range(2):
        failure = failed(pipeline.run(pipeline.sink(topic=roomy), sized))
        assert "kafka.max.request.size allows" in failure
        assert read_values(cluster, roomy) == ["x"]
    options = {"kafka.max.request.size": "3000000"}
    assert pipeline.run(pipeline.sink(topic=roomy, options=options), sized) is None
    assert sorted(map(len, read_values(cluster, roomy))) == [1, 2, 3, 4, 2_000_000]
