"""A driver with many queries, each of which stops at a different step and waits there.

The tests kill the driver, and so all of them at once, or let some continue.

Argument: a file with the brokers and the orders (see `crowd.py`). Prints what it has done.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# Before Spark: it chooses the Python of the workers, as PYSPARK_PYTHON is not set here.
import fencepost.spark  # noqa: F401
from fencepost.client.blocking import Cluster
from tests.spark import chaos
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import finish
from tests.spark.queries.cases import CASES


@dataclass
class Order:
    """Where one query stops."""

    name: str
    topic: str
    folder: str
    step: str
    batch: int
    case: str
    door: str
    reached: int = -1
    """The batch in which the query is."""

    def __post_init__(self) -> None:
        self.marker = f"{self.folder}/marker"

    def on_step(self, step: str, batch: int) -> None:
        self.reached = batch
        if (step, batch) == (self.step, self.batch):
            self.stop()

    def stop(self) -> None:
        chaos.wait_to_be_released(self.marker)

    def stops_at(self, step: str) -> bool:
        return (self.step, self.batch) == (step, self.reached)

    def start(self, spark: Any, bootstrap: str) -> Any:
        pipeline = RoutedPipeline(spark, bootstrap, Path(self.folder), self.topic, self.name)
        case = CASES[self.case]
        if self.door == "format":
            # Spark commits in processes that the functions below cannot reach.
            return pipeline.start_faulty(self.step, self.batch, self.marker)
        with case.in_session(spark):
            return pipeline.start(pipeline.sink(on_step=self.on_step), case.shape, case.mode)


def stop_after_end_txn(patch: pytest.MonkeyPatch, orders: dict[str, Order]) -> None:
    """The step "sent": EndTxn was executed, and the driver has no answer yet."""
    genuine = Cluster.end_txn

    def end_txn(self: Cluster, identity: Any, *, commit: bool) -> Any:
        found = genuine(self, identity, commit=commit)
        order = orders[identity.transactional_id]
        if commit and order.stops_at("sent"):
            order.stop()
        return found

    patch.setattr(Cluster, "end_txn", end_txn)


def stop_after_first_write(
    patch: pytest.MonkeyPatch, bootstrap: str, orders: dict[str, Order]
) -> None:
    """The step "first write": one task has written, and has more to write."""
    for order in orders.values():
        if order.step == "first write" and order.door == "sink":
            around = chaos.AfterFirstWrite(bootstrap, order.marker, chaos.wait_to_be_released)
            chaos.in_tasks(patch, around, partial(_is_due, order))


def _is_due(order: Order, identity: Any) -> bool:
    return identity.transactional_id == order.name and order.stops_at("first write")


def main(path: str) -> None:
    from pyspark.sql import SparkSession

    plan = json.loads(Path(path).read_text())
    orders = {fields["name"]: Order(**fields) for fields in plan["orders"]}
    patch = pytest.MonkeyPatch()
    chaos.speak_by_name(patch)
    stop_after_end_txn(patch, orders)
    stop_after_first_write(patch, plan["bootstrap"], orders)
    spark = (
        # More slots than cores: tasks that wait hold theirs.
        SparkSession.builder.master("local[12]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for order in orders.values():
        query = order.start(spark, plan["bootstrap"])
        threading.Thread(target=report_end, args=(order.name, query), daemon=True).start()
        chaos.await_truth(
            lambda query=query, order=order: (  # type: ignore[misc]
                not query.isActive or Path(f"{order.marker}.reached").exists()
            ),
            240,
        )
    print("all queries have stopped", flush=True)
    while True:
        signal.pause()


def report_end(name: str, query: Any) -> None:
    # It waits for its release: as long as `chaos.wait_to_be_released` does.
    failure = finish(query, 3600)
    print(f"ended {name}: {json.dumps(failure)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
