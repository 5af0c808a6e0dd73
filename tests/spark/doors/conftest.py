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
    import pyspark.sql.datasource

    session = sessions.session("local[2,4]")
    # Spark 4.0 has no writers in Python: there only the sink is tested.
    if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
        from tests.spark.doors import faults

        faults.register(session)
    return session
