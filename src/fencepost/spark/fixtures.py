"""A pytest fixture with a Spark session, which pytest finds wherever fencepost is installed.

    def test_a_refund_is_emitted_once(fencepost_broker, fencepost_spark, tmp_path): ...

The session is one for all tests of a process, because a JVM takes seconds to start. Its settings
are those of `fencepost_spark_config` over `QUIET`. A session that is running already is used as it
is, and left running. Where Spark cannot run, the test is skipped with the reason.

Every pytest run in an environment with fencepost imports this module, so it imports Spark only when
a test needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from fencepost.spark.installation import ExtraMissing, JavaMissing, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET: Final = {
    "spark.master": "local[2]",
    "spark.app.name": "tests",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""A small session, which nothing outside this machine can reach."""


@pytest.fixture(scope="session")
def fencepost_spark_config() -> Mapping[str, str]:
    """Spark's settings for `fencepost_spark`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def fencepost_spark(
    fencepost_spark_config: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A Spark session in this process, the same for all tests."""
    try:
        prepare()
    except (ExtraMissing, JavaMissing) as reason:
        pytest.skip(str(reason))
    warehouse = tmp_path_factory.mktemp("warehouse").as_uri()
    with running_session({"spark.sql.warehouse.dir": warehouse, **fencepost_spark_config}) as found:
        yield found


@contextmanager
def running_session(settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session that runs in this process, or a new one for the block."""
    from pyspark.sql import SparkSession

    from fencepost.spark.connection import close_clusters

    found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    builder = SparkSession.builder
    for name, value in {**QUIET, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        close_clusters()
