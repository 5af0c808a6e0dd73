"""The number of slots, from the driver of a session to the planners of its sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark
from tests.spark.sink.test_preserving import CopyQuery, contents, fill
from tests.spark.transport.test_routes import routes  # noqa: F401 - a fixture.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()


def test_with_more_partitions_than_slots_the_first_batch_takes_the_direct_route(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
    routes: list[str],  # noqa: F811
) -> None:
    copy = CopyQuery(spark, bootstrap, tmp_path, new_topic(5, "in"), new_topic(5, "out"))
    fill(cluster, copy.source)
    assert copy.run(sink=copy.sink(preserve_partitioning=False)) is None
    assert routes == ["direct"]
    assert contents(cluster, copy.target) == contents(cluster, copy.source)


def test_the_number_is_where_planners_look_and_only_they_read_it(spark: SparkSession) -> None:
    from pyspark import SparkFiles

    from fencepost.spark.slots import announce_if_active, announced_slots

    announce_if_active()
    assert Path(SparkFiles.getRootDirectory(), "fencepost-slots").read_text() == "2"
    assert announced_slots() is None


def test_a_planner_reads_the_number_from_its_folder_or_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkFiles

    from fencepost.spark.slots import announced_slots

    artifacts = tmp_path / "default"
    artifacts.mkdir()
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(artifacts))
    assert announced_slots() is None
    (tmp_path / "fencepost-slots").write_text("7")
    assert announced_slots() == 7
    (artifacts / "fencepost-slots").write_text("not a number")
    assert announced_slots() == 7
