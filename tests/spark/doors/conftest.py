"""One session for all tests of the format: failed tasks would be tried again in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    """Two slots, and four attempts of a task: with `local[2]` Spark makes one."""
    from fencepost.spark.engine.versions import is_before_4

    session = sessions.session("local[2,4]")
    # Spark 3.5 has no data sources in Python, and so not the format.
    if not is_before_4():
        from tests.spark.doors import faults

        faults.register(session)
    return session
