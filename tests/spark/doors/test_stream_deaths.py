"""Goal: a query of the format that dies at any step loses and duplicates nothing.

Method: as in `test_driver_deaths.py`, with the steps of the format; a query that fails is started
again by the test, as a supervisor would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark.ledger.reader import read_ledger_view
from tests.spark.conftest import on_spark, read_values, require_spark
from tests.spark.crowd import Crowd, Point
from tests.spark.doors import faults
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark(300)

DEATHS = [
    Point("first write", 1),
    Point("first write", 0, version=1),
    Point("ending", 1),
    Point("sent", 0),
    Point("sent", 1, version=1),
]

SETTLED = Point("first write", 1, version=3)
YOUNG = Point("ending", 0)
"""Queries whose id another one tries to use. No version 3 exists: the name must be unique."""


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
    points = [SETTLED, YOUNG, *(point for point in DEATHS if point in wanted)]
    folder = tmp_path_factory.mktemp("crowd")
    driver = "tests.spark.doors.driver_process"
    with Crowd(bootstrap, cluster, folder, points, driver) as found:
        yield found


@pytest.fixture(scope="module")
def dead_crowd(crowd: Crowd) -> Crowd:
    crowd.kill()
    return crowd


def again(crowd: Crowd, spark: SparkSession, point: Point) -> str | None:
    """Starts the query of a dead driver from its checkpoint."""
    query = crowd.queries[point]
    pipeline = RoutedPipeline(spark, crowd.bootstrap, Path(query.folder), query.topic, query.name)
    return pipeline.run_routed(format=faults.FORMAT)


def test_a_second_query_with_an_id_in_use_is_refused_and_the_first_continues(
    crowd: Crowd, spark: SparkSession, tmp_path: Path
) -> None:
    crowd.assert_stopped(SETTLED)
    query = crowd.queries[SETTLED]
    second = RoutedPipeline(spark, crowd.bootstrap, tmp_path, query.topic, query.name)
    second.add(["intruder"])
    failure = second.run_routed()
    assert failure is not None
    assert "either two queries use one id, or the checkpoint is new" in failure
    assert crowd.release(SETTLED) is None
    crowd.assert_whole(SETTLED)


def test_of_two_new_queries_with_one_id_the_first_is_fenced_and_does_not_take_it_back(
    crowd: Crowd, spark: SparkSession, tmp_path: Path
) -> None:
    crowd.assert_stopped(YOUNG)
    query = crowd.queries[YOUNG]
    second = RoutedPipeline(spark, crowd.bootstrap, tmp_path, query.topic, query.name)
    second.add(numbered(7))
    assert second.run_routed() is None
    failure = crowd.release(YOUNG)
    assert failure is not None
    assert "was taken over by another query" in failure
    failure = again(crowd, spark, YOUNG)
    assert failure is not None
    assert "either two queries use one id" in failure
    assert sorted(read_values(crowd.cluster, query.topic)) == sorted(numbered(7))


@pytest.mark.parametrize("point", DEATHS, ids=str)
def test_a_query_that_dies_at_any_step_loses_and_duplicates_nothing(
    dead_crowd: Crowd, spark: SparkSession, point: Point
) -> None:
    dead_crowd.assert_stopped(point)
    assert again(dead_crowd, spark, point) is None
    dead_crowd.assert_whole(point)
    entry = read_ledger_view(dead_crowd.cluster, dead_crowd.queries[point].name, fenced=True).entry
    assert entry is not None
    assert entry.batch_id == len(point.query.files) - 1
