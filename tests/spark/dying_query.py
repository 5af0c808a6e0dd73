"""A query in a process of its own, which kills itself with SIGKILL: run by test_crashes.py.

Arguments: brokers, folder, topic, the step to die at (or "never"), the batch to die in. The step "sent" dies while
EndTxn is on its way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from fencepost.spark import TransactionalSink


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(bootstrap: str, folder: str, topic: str, step: str, batch: int) -> None:
    from pyspark.sql import SparkSession

    def on_step(reached: str, number: int) -> None:
        if number != batch:
            return
        if reached == step:
            die()
        if step == "sent" and reached == "ending":
            threading.Timer(0.002, die).start()

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/in")
    query = (
        lines.selectExpr("value AS key", "value")
        .writeStream.foreachBatch(
            TransactionalSink(bootstrap, transactional_id=topic, topic=topic, on_step=on_step)
        )
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
