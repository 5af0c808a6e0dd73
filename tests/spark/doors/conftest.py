"""One session for all tests of the format: failed tasks would be tried again in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    """Two slots, and two attempts of a task: with `local[2]` Spark makes one."""
    from fencepost.spark.engine.versions import numbers_of

    session = sessions.session("local[2,2]")
    # Older versions do not have the format's streams.
    if numbers_of(session.version) >= (4, 1):
        from tests.spark.doors import faults

        faults.register(session)
    return session
