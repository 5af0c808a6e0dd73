"""A checkpoint that was changed under its query is refused, and an honest restart never is.

Goal: rows are neither written twice nor left out, whatever was done to the files of a checkpoint.
Method: real queries whose checkpoint is edited, restored or continued by another function while
they are stopped. Batch ids fit in all of these cases: only the offsets tell.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.client.topics import create_partitions
from tests.spark.conftest import on_spark, read_values
from tests.spark.ledger.copying import FIRST, SECOND, THIRD, Copying, edit, offsets_of
from tests.spark.pipeline import Pipeline, failed, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

REFUSED = "does not begin where batch"


@pytest.fixture
def copying(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, new_topic: Callable[..., str]
) -> Copying:
    return Copying(spark, cluster, tmp_path, new_topic)


@pytest.mark.parametrize("way", ["sink", "format"])
@pytest.mark.parametrize("moved", [-4, 4], ids=["back", "forward"])
def test_offsets_that_were_edited_are_refused_until_they_are_restored(
    copying: Copying, way: str, moved: int
) -> None:
    run: Callable[[], str | None] = copying.run_format if way == "format" else copying.run
    copying.add(*FIRST)
    assert run() is None
    kept = offsets_of(copying.checkpoint, 0).read_text()
    copying.add(*SECOND)

    def move(offsets: Any) -> Any:
        return offsets | {copying.source: {"0": len(FIRST) + moved}}

    edit(copying.checkpoint, 0, move)
    failure = failed(run())
    assert REFUSED in failure
    assert f"{copying.source}-0 ended at 6 and would begin at {6 + moved}" in failure
    assert copying.output == FIRST
    # The batch that was planned from the edited offsets is in the checkpoint too.
    offsets_of(copying.checkpoint, 0).write_text(kept)
    offsets_of(copying.checkpoint, 1).unlink(missing_ok=True)
    assert run() is None
    assert copying.output == [*FIRST, *SECOND]


def test_a_partition_taken_out_of_the_offsets_is_not_read_again(
    copying: Copying, new_topic: Callable[..., str]
) -> None:
    other = new_topic(1, "in")
    copying.add(*FIRST)
    copying.add(*SECOND, topic=other)
    both: dict[str, Any] = {"subscribe": f"{copying.source},{other}"}
    assert copying.run(**both) is None
    edit(copying.checkpoint, 0, lambda offsets: {k: v for k, v in offsets.items() if k != other})
    copying.add(*THIRD)
    assert f"it does not read {other}-0" in failed(copying.run(**both))
    assert copying.output == [*FIRST, *SECOND]


@pytest.mark.parametrize("batches", [1, 3], ids=["to the next id", "past it, with may_skip"])
def test_a_restored_checkpoint_that_another_function_continued_is_refused(
    copying: Copying, tmp_path: Path, batches: int
) -> None:
    copying.add(*FIRST)
    assert copying.run() is None
    shutil.copytree(copying.checkpoint, tmp_path / "kept")
    copying.add(*SECOND)
    assert copying.run() is None
    shutil.rmtree(copying.checkpoint)
    shutil.copytree(tmp_path / "kept", copying.checkpoint)
    # Another function, in small batches: it does not get as far as the topics.
    run = iter(range(batches))

    def stop_early(_: DataFrame, __: int) -> None:
        if next(run, None) is None:
            raise RuntimeError("far enough")

    assert "far enough" in failed(copying.run(stop_early, maxOffsetsPerTrigger=1))
    newest = max(
        int(p.name) for p in (copying.checkpoint / "offsets").iterdir() if p.name.isdigit()
    )
    offsets_of(copying.checkpoint, newest).unlink()
    (copying.checkpoint / "offsets" / f".{newest}.crc").unlink(missing_ok=True)
    failure = failed(copying.run(copying.sink(may_skip=True, adopt=True)))
    assert REFUSED in failure
    assert "would begin at" in failure
    assert copying.output == [*FIRST, *SECOND]


def test_offsets_of_files_are_compared_too(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0), numbered(1))
    assert pipeline.run() is None
    edit(pipeline.checkpoint, 1, lambda offset: {"logOffset": offset["logOffset"] - 1})
    pipeline.add(numbered(2))
    failure = failed(pipeline.run())
    assert REFUSED in failure
    assert "the offsets of its sources are others" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_a_copy_of_the_checkpoint_that_ran_elsewhere_is_refused(
    copying: Copying, tmp_path: Path, new_topic: Callable[..., str]
) -> None:
    copying.add(*FIRST)
    assert copying.run() is None
    original = copying.checkpoint
    copying.checkpoint = tmp_path / "copy"
    shutil.copytree(original, copying.checkpoint)
    copying.add(*SECOND)
    assert copying.run(maxOffsetsPerTrigger=4) is None
    # The original has batch 1 of the same query before it, with other offsets.
    copying.checkpoint = original
    assert "which is newer than batch 1" in failed(copying.run())
    assert copying.output == [*FIRST, *SECOND]


# Honest restarts.


def shapes(copying: Copying) -> dict[str, Callable[[], DataFrame]]:
    spark = copying.spark

    def files() -> DataFrame:
        return spark.readStream.text(str(copying.files)).selectExpr("value AS key", "value")

    def rate() -> DataFrame:
        found = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        return found.selectExpr("'r' AS key", "cast(value AS string) AS value")

    return {
        "a topic and files": lambda: copying.rows().union(files()),
        "a topic and a rate": lambda: copying.rows().union(rate()),
        "the same topic twice": lambda: copying.rows().union(copying.rows()),
        "a state": lambda: copying.rows().dropDuplicates(["value"]),
    }


@pytest.mark.parametrize(
    "name", ["a topic and files", "a topic and a rate", "the same topic twice", "a state"]
)
def test_any_sources_continue_after_a_restart(copying: Copying, name: str) -> None:
    rows = shapes(copying)[name]
    for number, values in enumerate((FIRST, SECOND, THIRD)):
        copying.add(*values)
        (copying.files / f"{number}.txt").write_text("\n".join(f"f-{value}" for value in values))
        assert copying.run(rows=rows()) is None
    once = 2 if name == "the same topic twice" else 1
    found = [value for value in copying.output if value[0] in "abc"]
    assert found == sorted([*FIRST, *SECOND, *THIRD] * once)


def test_new_partitions_new_topics_and_other_options_are_no_difference(
    copying: Copying, new_topic: Callable[..., str]
) -> None:
    copying.add(*FIRST)
    assert copying.run() is None
    copying.cluster.run(create_partitions(copying.cluster.core, copying.source, 3))
    copying.add(*SECOND, partition=2)
    assert copying.run(startingOffsets="latest") is None
    other = new_topic(1, "in")
    copying.add(*THIRD, topic=other)
    both: dict[str, Any] = {"subscribe": f"{copying.source},{other}"}
    assert copying.run(**both, maxOffsetsPerTrigger=5) is None
    assert copying.run(failOnDataLoss="false") is None  # The other topic is gone from the options.
    copying.add("d", topic=other)
    assert copying.run(**both) is None
    assert copying.output == sorted([*FIRST, *SECOND, *THIRD, "d"])


def test_a_topic_that_was_created_again_is_read_from_its_beginning(
    copying: Copying, new_topic: Callable[..., str]
) -> None:
    copying.add(*FIRST)
    assert copying.run() is None
    copying.cluster.delete_topics([copying.source])
    copying.cluster.create_topics([NewTopic(copying.source, 1)])
    copying.add(*SECOND)
    assert copying.run(failOnDataLoss="false") is None
    copying.add(*THIRD)
    assert copying.run(failOnDataLoss="false") is None
    assert copying.output == [*FIRST, *SECOND, *THIRD]
