"""Goal: the refunds pipeline runs with `spark-pipelines`, from pip, exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fencepost.client.blocking import Cluster
from fencepost.examples.refunds.pipeline.__main__ import create_project
from fencepost.examples.refunds.spark.fill import create_topics, write_settlements
from fencepost.examples.refunds.spark.pipeline import transactional_id
from fencepost.examples.refunds.spark.settlements import APPROVED, Topics
from fencepost.spark.java_home import provide_java
from fencepost.spark.sink.ledger.reader import read_ledger_view
from tests.spark.conftest import environment, on_spark, read_values, require_spark

pytestmark = on_spark(300)

SETTLEMENTS = 50


@pytest.fixture
def prefix(cluster: Cluster) -> str:
    require_spark()
    pytest.importorskip("grpc_status", reason="the connect extra is not installed")
    pytest.importorskip("yaml", reason="the connect extra is not installed")
    found = f"sdp-{os.getpid()}-"
    create_topics(cluster, [Topics.of(prefix=found)])
    write_settlements(cluster, Topics.of(prefix=found).settlements, SETTLEMENTS)
    return found


def run_pipeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    provide_java()
    command = Path(sys.executable).parent / "spark-pipelines"
    return subprocess.run(
        [command, "run", "--conf", "spark.ui.enabled=false", *arguments],
        cwd=folder,
        env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_the_refunds_pipeline_decides_every_settlement_once_and_a_full_refresh_is_refused(
    bootstrap: str, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    create_project(tmp_path, bootstrap, prefix)
    topics = Topics.of(prefix=prefix)
    ended = run_pipeline(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    audit = [json.loads(value) for value in read_values(cluster, topics.audit)]
    assert len({row["refund_id"] for row in audit}) == len(audit) == SETTLEMENTS
    approved = Counter(row["refund_id"] for row in audit if row["decision"] == APPROVED)
    refunds = Counter(json.loads(v)["refund_id"] for v in read_values(cluster, topics.refunds))
    assert refunds == approved
    entry = read_ledger_view(cluster, transactional_id(prefix), f"{prefix}fencepost-ledger").entry
    assert entry is not None
    assert sum((entry.sources or {}).values()) == SETTLEMENTS
    assert entry.sources_committed

    # A full refresh starts a new query from the beginning of the source: it would pay again.
    ended = run_pipeline(tmp_path, "--full-refresh-all")
    assert ended.returncode != 0
    assert "the checkpoint is new and would write rows again" in ended.stdout + ended.stderr
    assert len(read_values(cluster, topics.audit)) == SETTLEMENTS
