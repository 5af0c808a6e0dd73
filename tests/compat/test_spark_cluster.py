"""Goal: on a Spark standalone cluster and Apache Kafka, what dies costs no row and duplicates none.

Method: the application of tests/spark/standalone. A worker with its executor, another executor and
the driver are killed while it writes. Many more faults, of brokers too, meet fencepost there.

On Spark 3.5 all processes of Spark are of that version, and the rows come from its own Kafka
source, whose offsets the sink commits in its transactions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.spark.ledger.entry import group_of
from tests.compat.conftest import Side
from tests.spark.conftest import environment, on_spark, require_spark
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster
from tools.spark_connector import FOR_SPARK_35, fetch_connector
from tools.spark_versions import SPARK_35, environment_of, install_spark

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
            is_quick=False,
        )
        faults = (spark.workers[0].kill, spark.workers[1].kill_executors, application.kill)
        copy_under(faults, application, client)
    assert len(application.fed) == 4 * ROWS


def test_killed_executors_and_drivers_cost_no_row_on_spark_35(
    apache_kafka: Side, tmp_path: Path
) -> None:
    servers = apache_kafka.bootstrap_servers
    variables = environment_of(SPARK_35) | {
        "PYTHONPATH": os.pathsep.join([str(install_spark(SPARK_35)), environment()["PYTHONPATH"]]),
        "SPARK_HOME": str(install_spark(SPARK_35) / "pyspark"),
    }
    jars = ",".join(map(str, fetch_connector(FOR_SPARK_35)))
    with (
        connect(servers) as client,
        StandaloneCluster(tmp_path, workers=2, variables=variables) as spark,
    ):
        application = Application(
            "standalone-35",
            tmp_path / "app",
            servers,
            spark.master_url,
            spark.settings() | {"spark.jars": jars},
            sink={"commit_source_offsets": True},
            variables=variables,
            partitions=2,
            source_format="kafka",
            is_quick=False,
        )
        copy_under((spark.workers[0].kill_executors, application.kill), application, client)
        source = [TopicPartition(application.orders.source, n) for n in range(2)]
        ends = client.list_offsets(dict.fromkeys(source, LATEST), isolation="read_committed")
        committed = client.offset_fetch(group_of(application.orders.transactional_id))
    assert {each: found.offset for each, found in committed.items()} == {
        each: found.offset for each, found in ends.items()
    }


def copy_under(
    faults: Sequence[Callable[[], object]], application: Application, client: Cluster
) -> None:
    """Copies rows, with a fault while each of the later ones is written; each must arrive once."""
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
