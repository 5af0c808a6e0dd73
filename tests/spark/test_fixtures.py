"""The Spark session that other people's tests use; docs/guide/testing.md has one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.spark.fixtures import running_session
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()
pytest_plugins = ["pytester"]


def test_a_session_that_runs_already_is_used_as_it_is_and_left_running(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with running_session({"spark.sql.shuffle.partitions": "77"}) as found:
        assert found.sparkContext is spark.sparkContext
        assert found.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.range(3).count() == 3


def test_without_java_a_test_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    pytester.makeconftest(
        "from fencepost.spark import installation\ninstallation.bundled_java = lambda: None"
    )
    pytester.makepyfile("def test_mine(fencepost_spark): assert False")
    ended = pytester.runpytest_subprocess(
        "-p", "fencepost.spark.fixtures", "-p", "no:cacheprovider", "-rs"
    )
    ended.assert_outcomes(skipped=1)
    ended.stdout.fnmatch_lines(["*Spark needs Java 17 or newer, and none was found*"])
