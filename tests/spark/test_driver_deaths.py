"""Goal: a driver that dies before or after any step of a batch loses and duplicates nothing.

Method: one driver process with a query for each step, of the sink and of the format; when every
query has reached its step, the driver is killed with SIGKILL. Then each query is started again from
its checkpoint, and its topic must hold every row once. Before that, while the driver lives, other
drivers start with the same transactional ids.

A step where the protocols differ is there with both: with one for lines, and with the other often
for a query with state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark.ledger.reader import read_ledger_view
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values, require_spark
from tests.spark.crowd import Crowd, Point
from tests.spark.pipeline import failed, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark(300)

DEATHS = [
    Point("fencing", 0),
    Point("fenced", 0, version=1),
    Point("ledger read", 0),
    Point("first write", 0),
    Point("first write", 1, version=1),
    Point("written", 0),
    Point("entered", 1, version=1),
    Point("ending", 1),
    Point("sent", 0),
    Point("sent", 1, version=1),
    Point("ended", 0, version=1),
    Point("ended", 1),
    # Spark has logged the end of the batch before.
    Point("writing", 1),
    # Queries with state, joins, and Python functions.
    Point("ended", 1, case="update, state ids"),
    Point("first write", 1, case="complete"),
    Point("sent", 2, case="append, windows"),
    Point("entered", 1, case="left outer join"),
    Point("sent", 1, case="dropDuplicates"),
    Point("written", 1, case="applyInPandasWithState"),
    Point("sent", 1, case="transformWithState"),
    Point("ended", 2, case="transformWithStateInPandas"),
    # The format.
    Point("first write", 1, door="format"),
    Point("first write", 0, version=1, door="format"),
    Point("ending", 1, door="format"),
    Point("sent", 0, door="format"),
    Point("sent", 1, version=1, door="format"),
]
"""Each with the batch and the protocol: "sent" is between the effect of EndTxn and its answer."""

SETTLED = [Point("written", 1), Point("unreported", 1, door="format")]
YOUNG = [Point("entered", 0), Point("ending", 0, door="format")]


@pytest.fixture(scope="module")
def crowd(
    bootstrap: str,
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Crowd]:
    """A query for each step that a selected test needs."""
    require_spark()
    wanted = {
        item.callspec.params.get("point")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    points = [point for point in (*SETTLED, *YOUNG, *DEATHS) if point in wanted]
    with Crowd(bootstrap, cluster, tmp_path_factory.mktemp("crowd"), points) as found:
        yield found


@pytest.fixture(scope="module")
def dead_crowd(crowd: Crowd) -> Crowd:
    crowd.kill()
    return crowd


@pytest.fixture(autouse=True)
def _protocol_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    chaos.speak_by_name(monkeypatch)


@pytest.mark.parametrize("point", SETTLED, ids=str)
def test_a_second_query_with_an_id_in_use_is_refused_and_the_first_continues(
    crowd: Crowd, spark: SparkSession, tmp_path: Path, point: Point
) -> None:
    crowd.assert_stopped(point)
    failure = failed(crowd.run_other(spark, point, tmp_path, ["intruder"]))
    assert "either two queries use one id, or the checkpoint is new" in failure
    assert crowd.release(point) is None
    crowd.assert_whole(point)


@pytest.mark.parametrize("point", YOUNG, ids=str)
def test_of_two_new_queries_with_one_id_the_first_is_fenced_and_does_not_take_it_back(
    crowd: Crowd, spark: SparkSession, tmp_path: Path, point: Point
) -> None:
    crowd.assert_stopped(point)
    assert crowd.run_other(spark, point, tmp_path, numbered(7)) is None
    assert "was taken over by another query" in failed(crowd.release(point))
    topic = crowd.queries[point].topic
    assert sorted(read_values(crowd.cluster, topic)) == sorted(numbered(7))
    assert "either two queries use one id" in failed(crowd.run_again(spark, point))
    assert sorted(read_values(crowd.cluster, topic)) == sorted(numbered(7))


@pytest.mark.parametrize("point", DEATHS, ids=str)
def test_a_driver_that_dies_at_any_step_loses_and_duplicates_nothing(
    dead_crowd: Crowd, spark: SparkSession, point: Point
) -> None:
    dead_crowd.assert_stopped(point)
    assert dead_crowd.run_again(spark, point) is None
    dead_crowd.assert_whole(point)
    entry = read_ledger_view(dead_crowd.cluster, dead_crowd.queries[point].name, fenced=True).entry
    assert entry is not None
    # A query with a watermark may end with a batch without rows.
    assert entry.batch_id in (len(point.query.files) - 1, len(point.query.files))
