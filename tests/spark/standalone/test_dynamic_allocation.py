"""Goal: on a cluster whose executors come and go with the load, a query is exactly-once.

`tests/spark/test_dynamic_allocation.py` shows what happens when Spark runs a task again. Here the
executors are those of a standalone cluster, which end while the query has nothing to do.
"""

from __future__ import annotations

import time
from pathlib import Path

from fencepost.client.blocking import Cluster
from tests.spark.chaos import await_truth
from tests.spark.conftest import on_spark, require_spark
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import DYNAMIC_ALLOCATION, EXECUTOR, StandaloneCluster

pytestmark = on_spark(600)


def test_a_query_is_exactly_once_while_executors_leave_and_others_come(
    bootstrap: str, cluster: Cluster, tmp_path: Path
) -> None:
    require_spark()
    with StandaloneCluster(tmp_path, workers=2) as spark:

        def executors() -> set[int]:
            # Looking through all processes costs more than the caller's own pause.
            time.sleep(0.2)
            return {pid for worker in spark.workers for pid in worker.pids(EXECUTOR)}

        def those_that_write(before: int) -> set[int]:
            """The executors that were there until more was committed than before."""
            seen: set[int] = set()

            def has_progressed() -> bool:
                seen.update(executors())
                application.supervise()
                return application.committed(cluster) > before

            await_truth(has_progressed, 300)
            return seen

        application = Application(
            f"dynamic-{tmp_path.name}",
            tmp_path / "app",
            bootstrap,
            spark.master_url,
            spark.settings() | DYNAMIC_ALLOCATION,
            partitions=2,
        )
        application.create_topics(cluster)
        application.feed(cluster, 3_000)
        try:
            application.start()
            first = those_that_write(0)
            await_truth(lambda: not executors(), 60)
            before = application.committed(cluster)
            application.feed(cluster, 3_000)
            second = those_that_write(before)
            application.finish()
        finally:
            application.driver.kill()
    application.assert_exactly_once()
    assert first
    assert second
    assert not first & second
    assert "shuffled" in application.routes
    assert "direct" not in application.routes
