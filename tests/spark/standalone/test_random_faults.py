"""Goal: exactly once, whatever dies under a query on a standalone cluster, and in any order.

Method: `faults.py`, with a schedule from a seed. The test is short: a worker leaves, a broker and
an executor are killed (`test_applications.py` kills a driver). A long run:

    FENCEPOST_SPARK_FAULTS=60 FENCEPOST_SPARK_SEED=7 pytest -s THIS_FILE

FENCEPOST_SPARK_SECONDS makes no more faults after that time. FENCEPOST_SPARK_DYNAMIC=1 lets Spark
start and end executors as it needs them, so there are no barrier stages.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import fencepost
from tests.spark.conftest import on_spark, require_spark
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import DYNAMIC_ALLOCATION, StandaloneCluster
from tests.spark.standalone.faults import BROKERS, WORKERS, Faults

COUNT = int(os.environ.get("FENCEPOST_SPARK_FAULTS", "3"))
SECONDS = float(os.environ.get("FENCEPOST_SPARK_SECONDS", "inf"))
SEED = int(os.environ.get("FENCEPOST_SPARK_SEED", "44"))
IS_DYNAMIC = bool(os.environ.get("FENCEPOST_SPARK_DYNAMIC"))

pytestmark = on_spark(300 + 60 * COUNT)


def test_a_query_is_exactly_once_under_random_faults(tmp_path: Path) -> None:
    require_spark()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {line}", flush=True)

    say(f"seed {SEED}, {COUNT} faults")
    with fencepost.Cluster(BROKERS) as brokers, StandaloneCluster(tmp_path, WORKERS) as spark:
        application = Application(
            "faults",
            tmp_path / "app",
            brokers.bootstrap_servers,
            spark.master_url,
            spark.settings() | (DYNAMIC_ALLOCATION if IS_DYNAMIC else {}),
        )
        report = Faults(SEED, spark, brokers, application, say).run(COUNT, SECONDS)
    say(str(report))
    assert report.faults.total() == COUNT or not math.isinf(SECONDS)
