"""One session for all tests of the format: failed tasks would be tried again in it."""

from __future__ import annotations

import importlib
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
    # Spark 3.5 has no data sources in Python, and 4.0 no such writers: there only the sink is
    # tested.
    writer = "DataSourceStreamArrowWriter"
    if not is_before_4() and hasattr(importlib.import_module("pyspark.sql.datasource"), writer):
        from tests.spark.doors import faults

        faults.register(session)
    return session
