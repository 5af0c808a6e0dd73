"""A driver with a query for each step of a batch, which stops there and waits.

The tests kill it, and so all of them at once, or let some continue. Argument: a file with the DSN,
the brokers and the queries. Prints when all have stopped, and the end of each.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before Spark: it chooses the Python of the workers.
import fencepost.spark  # noqa: F401
from fencepost.spark.postgres import copying
from tests.spark import chaos
from tests.spark.pipeline import finish
from tests.spark.postgres.stage import Stage
from tests.spark.queries.cases import CASES


def stop_in_tasks(marker: str) -> Callable[[Any], Any]:
    """The task of a query that stops when some of its rows are on their way to the server."""

    def task(plan: Any) -> Any:
        copy = GENUINE(plan)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            def slow() -> Iterator[Any]:
                for batch in batches:
                    yield batch
                    chaos.wait_to_be_released(marker)

            yield from copy(slow())

        return run

    return task


def start(spark: Any, dsn: str, bootstrap: str, order: dict[str, Any]) -> Any:
    stage = Stage(spark, dsn, Path(order["folder"]), order["name"], order["creation"])
    topic, first = order["topic"], order["first"]
    marker = f"{order['folder']}/marker"

    def on_step(step: str, batch: int) -> None:
        if (step, batch) == (order["step"], order["batch"]):
            chaos.wait_to_be_released(marker)
        if (order["step"], step, batch) == ("copying", "staged", order["batch"]):
            # Another query may be in the same step only later: they are started one by one.
            setattr(copying, "_task", stop_in_tasks(marker))  # noqa: B010
        else:
            setattr(copying, "_task", GENUINE)  # noqa: B010

    sink = (
        stage.both_sinks(bootstrap, topic, first, on_step=on_step)
        if first
        else stage.sink(on_step=on_step)
    )
    case = CASES[order["case"]]
    with case.in_session(spark):
        return stage.start(sink, case.shape, case.mode)


GENUINE = copying._task


def main(path: str) -> None:
    from pyspark.sql import SparkSession

    plan = json.loads(Path(path).read_text())
    spark = (
        SparkSession.builder.master("local[12]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for order in plan["orders"]:
        query = start(spark, plan["dsn"], plan["bootstrap"], order)
        threading.Thread(target=report_end, args=(order["name"], query), daemon=True).start()
        reached = Path(f"{order['folder']}/marker.reached")
        chaos.await_truth(
            lambda query=query, reached=reached: (  # type: ignore[misc]
                not query.isActive or reached.exists()
            ),
            240,
        )
    print("all queries have stopped", flush=True)
    while True:
        signal.pause()


def report_end(name: str, query: Any) -> None:
    failure = finish(query, 3600)
    print(f"ended {name}: {json.dumps(failure)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
