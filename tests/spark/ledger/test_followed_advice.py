"""After the advice of a refusal is followed, every row is there once.

Goal: what a refusal of the ledger advises neither loses nor repeats a row. Method: a query is
refused, and then run as the sentence says, with the values that it prints.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark
from tests.spark.ledger.copying import FIRST, SECOND, THIRD, Copying, edit, offsets_of
from tests.spark.pipeline import failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


@pytest.fixture
def copying(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, new_topic: Callable[..., str]
) -> Copying:
    found = Copying(spark, cluster, tmp_path, new_topic)
    found.add(*FIRST)
    assert found.run() is None
    found.add(*SECOND)
    return found


def restart_as_advised(copying: Copying, failure: str) -> str | None:
    """With an empty checkpoint, and the offsets and the query that the refusal prints."""
    there = re.search(r"startingOffsets='([^']+)'", failure)
    owner = re.search(r'take_over="([^"]+)"', failure)
    assert there is not None
    assert owner is not None
    copying.checkpoint = copying.checkpoint.with_name("new")
    return copying.run(copying.sink(take_over=owner[1]), startingOffsets=there[1])


def test_after_a_crash_behind_the_commit_and_with_another_id_nothing_is_written_again(
    copying: Copying, new_topic: Callable[..., str]
) -> None:
    assert copying.run() is None
    for name in ("1", ".1.crc"):
        (copying.checkpoint / "commits" / name).unlink(missing_ok=True)
    failure = failed(copying.run(copying.sink(transactional_id="another")))
    assert "the id was changed" in failure
    assert "may_skip" not in failure
    assert "go back to the former one" in failure
    copying.add(*THIRD)
    assert copying.run() is None
    assert copying.output == sorted([*FIRST, *SECOND, *THIRD])


def test_after_an_edited_checkpoint(copying: Copying) -> None:
    edit(copying.checkpoint, 0, lambda offsets: offsets | {copying.source: {"0": 2}})
    assert restart_as_advised(copying, failed(copying.run())) is None
    assert copying.output == sorted([*FIRST, *SECOND])


def test_after_a_restored_checkpoint(copying: Copying, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(copying.checkpoint, kept)
    offsets_of(kept, 0).with_name(".0.crc").unlink(missing_ok=True)
    assert copying.run() is None
    copying.add(*THIRD)
    assert copying.run() is None
    copying.checkpoint = kept
    failure = failed(copying.run())
    assert "which is newer than batch 1" in failure
    assert restart_as_advised(copying, failure) is None
    copying.add("d")
    assert copying.run(startingOffsets="latest") is None
    assert copying.output == sorted([*FIRST, *SECOND, *THIRD, "d"])


def test_after_a_batch_that_was_lost(copying: Copying) -> None:
    sink = copying.sink()

    def catch(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            return
        sink(df, batch_id)

    assert copying.run(catch) is None
    copying.add(*THIRD)
    failure = failed(copying.run())
    assert "the checkpoint continues with batch 2" in failure
    assert restart_as_advised(copying, failure) is None
    assert copying.output == sorted([*FIRST, *SECOND, *THIRD])
