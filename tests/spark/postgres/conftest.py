"""A table in an empty database, and a query whose batches go into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.outside.conftest import dsn, postgres
from tests.spark.postgres.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["dsn", "postgres"]


@pytest.fixture
def stage(spark: SparkSession, dsn: str, tmp_path: Path) -> Stage:
    """In the database of one test."""
    return Stage(spark, dsn, tmp_path)
