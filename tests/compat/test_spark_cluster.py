"""Goal: on a Spark standalone cluster and Apache Kafka, what dies costs no row and duplicates none.

Method: the application of tests/spark/standalone. A worker with its executor, another executor and
the driver are killed while it writes. Many more faults, of brokers too, meet fencepost there.
"""

from __future__ import annotations

from pathlib import Path

from fencepost.client.blocking import connect
from tests.compat.conftest import Side
from tests.spark.conftest import on_spark, require_spark
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster

pytestmark = on_spark(600)

ROWS = 3_000


def test_killed_workers_executors_and_drivers_cost_no_row_on_apache_kafka(
    apache_kafka: Side, tmp_path: Path
) -> None:
    require_spark()
    servers = apache_kafka.bootstrap_servers
    with connect(servers) as client, StandaloneCluster(tmp_path, workers=2) as spark:
        application = Application(
            "standalone",
            tmp_path / "app",
            servers,
            spark.master_url,
            spark.settings(),
            partitions=2,
        )
        faults = (spark.workers[0].kill, spark.workers[1].kill_executors, application.kill)
        application.create_topics(client)
        application.feed(client, ROWS)
        try:
            application.start()
            application.await_progress(client, 0)
            for fault in faults:
                before = application.committed(client)
                application.feed(client, ROWS)
                fault()
                application.await_progress(client, before)
            application.finish()
        finally:
            application.driver.kill()
        application.assert_exactly_once()
    assert len(application.fed) == 4 * ROWS
