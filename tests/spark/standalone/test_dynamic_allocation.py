"""Goal: on a cluster whose executors come and go with the load, a query is exactly-once.

`tests/spark/test_dynamic_allocation.py` shows what happens when Spark runs a task again. Here the
executors are those of a standalone cluster, which end while the query has nothing to do.
"""

from __future__ import annotations

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
            return {pid for worker in spark.workers for pid in worker.pids(EXECUTOR)}

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
            application.await_progress(cluster, 0)
            first = executors()
            await_truth(lambda: not executors(), 60)
            before = application.committed(cluster)
            application.feed(cluster, 3_000)
            application.await_progress(cluster, before)
            second = executors()
            application.feed(cluster, 3_000)
            for worker in spark.workers:
                worker.kill_executors()
            application.finish()
        finally:
            application.driver.kill()
    application.assert_exactly_once()
    assert first
    assert second
    assert not first & second
    assert "shuffled" in application.routes
    assert "direct" not in application.routes
    assert application.restarts == 0, application.failures
