"""Goal: the refunds pipeline runs with `spark-pipelines`, from pip, exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark.installation import provide_java
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost_examples.refunds.pipeline.__main__ import create_project
from fencepost_examples.refunds.spark.fill import create_topics, write_settlements
from fencepost_examples.refunds.spark.pipeline import transactional_id
from fencepost_examples.refunds.spark.settlements import APPROVED, Topics
from tests.spark.conftest import environment, on_spark, read_values, require_spark

pytestmark = on_spark(600)

SETTLEMENTS = 50


@pytest.fixture
def prefix(cluster: Cluster) -> str:
    return fill_topics(cluster)


def fill_topics(cluster: Cluster) -> str:
    """Returns the prefix of the topics."""
    require_spark()
    pytest.importorskip("grpc_status", reason="the connect extra is not installed")
    pytest.importorskip("yaml", reason="the connect extra is not installed")
    found = f"sdp-{os.getpid()}-"
    create_topics(cluster, [Topics.of(prefix=found)])
    write_settlements(cluster, Topics.of(prefix=found).settlements, SETTLEMENTS)
    return found


class Ended(NamedTuple):
    code: int
    output: str


def run_pipeline(folder: Path, *arguments: str) -> Ended:
    provide_java()
    command = Path(sys.executable).parent / "spark-pipelines"
    # A flow that fails would be started again, twice, after several seconds each.
    settings = ["--conf", "spark.sql.pipelines.maxFlowRetryAttempts=0"]
    settings += ["--conf", "spark.ui.enabled=false"]
    with subprocess.Popen(
        [command, "run", *settings, *arguments],
        cwd=folder,
        env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=560)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ended(process.returncode, output)


def test_the_refunds_pipeline_decides_every_settlement_once(
    bootstrap: str, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    create_project(tmp_path, bootstrap, prefix)
    topics = Topics.of(prefix=prefix)
    ended = run_pipeline(tmp_path)
    assert ended.code == 0, ended.output
    audit = [json.loads(value) for value in read_values(cluster, topics.audit)]
    assert len({row["refund_id"] for row in audit}) == len(audit) == SETTLEMENTS
    approved = Counter(row["refund_id"] for row in audit if row["decision"] == APPROVED)
    refunds = Counter(json.loads(v)["refund_id"] for v in read_values(cluster, topics.refunds))
    assert refunds == approved
    entry = read_ledger_view(cluster, transactional_id(prefix), f"{prefix}fencepost-ledger").entry
    assert entry is not None
    assert sum((entry.sources or {}).values()) == SETTLEMENTS
    assert entry.sources_committed
