"""A Spark session for one machine. On a cluster, use spark-submit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fencepost.spark.installation import provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"


def make_session(name: str, master: str = "local[2]") -> SparkSession:
    """Returns a small session that starts fast: no web UI, few partitions, loopback only."""
    provide_java()
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", LOOPBACK)
        .config("spark.driver.host", LOOPBACK)
        # After an executor is lost, the write stage checks for free cores again after 1 s, not 15
        # s.
        .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
        .getOrCreate()
    )
