"""Goal: several applications share one cluster, and each is exactly-once."""

from __future__ import annotations

from pathlib import Path

from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark, require_spark
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster

pytestmark = on_spark(600)


def test_two_applications_on_one_cluster_are_both_exactly_once_and_leave_nothing_behind(
    bootstrap: str, cluster: Cluster, tmp_path: Path
) -> None:
    require_spark()
    with StandaloneCluster(tmp_path, workers=2) as spark_cluster:
        # Otherwise the first takes all cores.
        settings = spark_cluster.settings() | {"spark.cores.max": "1"}
        both = [
            Application(
                f"app-{n}-{tmp_path.name}",
                tmp_path / f"{n}",
                bootstrap,
                spark_cluster.master_url,
                settings,
                partitions=1,
            )
            for n in range(2)
        ]
        try:
            for each in both:
                each.create_topics(cluster)
                each.feed(cluster, 3_000)
                each.driver.start()
            for each in both:
                each.await_progress(cluster, 0)
            machines = [*spark_cluster.workers, spark_cluster.master, both[1].driver]
            pids = [pid for machine in machines for pid in machine.pids()]
            both[0].kill()
            for each in both:
                each.feed(cluster, 3_000)
                each.finish()
                each.assert_exactly_once()
        finally:
            for each in both:
                each.driver.kill()
    assert both[1].restarts == 0
    # Master, workers, executors, their Pythons, and the other driver with its JVM.
    assert len(pids) >= 9
    assert not [pid for machine in machines for pid in machine.pids()]
