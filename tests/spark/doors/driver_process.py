"""A driver with many queries of the format, each of which stops at a different step.

Argument: a file with the brokers and the orders (see `crowd.py`). Prints what it has done.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

# Before Spark: it chooses the Python of the workers, as PYSPARK_PYTHON is not set here.
import fencepost.spark  # noqa: F401
from tests.spark import chaos
from tests.spark.conftest import quick_settings
from tests.spark.doors import faults
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.driver_process import report_end


def main(path: str) -> None:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    plan = json.loads(Path(path).read_text())
    spark = (
        # More slots than cores: tasks that wait hold theirs.
        SparkSession.builder.master("local[8]")
        .config(conf=SparkConf().setAll(list(quick_settings().items())))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    faults.register(spark)
    for order in plan["orders"]:
        start(spark, plan["bootstrap"], order)
    print("everybody waits", flush=True)
    while True:
        signal.pause()


def start(spark: Any, bootstrap: str, order: dict[str, Any]) -> None:
    folder, marker = Path(order["folder"]), f"{order['folder']}/marker"
    pipeline = RoutedPipeline(spark, bootstrap, folder, order["topic"], order["name"])
    query = pipeline.start_routed(
        format=faults.FORMAT,
        faultStep=order["step"],
        faultBatch=order["batch"],
        faultMarker=marker,
    )
    threading.Thread(target=report_end, args=(order["name"], query), daemon=True).start()
    chaos.await_truth(lambda: not query.isActive or Path(f"{marker}.reached").exists(), 240)


if __name__ == "__main__":
    main(sys.argv[1])
