"""Goal: a declarative pipeline on Apache Kafka pays once, also after a full refresh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import connect
from fencepost_examples.refunds.pipeline.__main__ import create_project
from fencepost_examples.refunds.spark.settlements import Topics
from tests.refunds.test_declarative_pipeline import SETTLEMENTS, fill_topics, run_pipeline
from tests.spark.conftest import read_values

if TYPE_CHECKING:
    from tests.compat.conftest import Side

pytestmark = pytest.mark.timeout(600)


def test_a_full_refresh_of_a_pipeline_is_refused_and_writes_nothing(
    apache_kafka: Side, tmp_path: Path
) -> None:
    with connect(apache_kafka.bootstrap_servers) as cluster:
        prefix = fill_topics(cluster)
        topics = Topics.of(prefix=prefix)
        create_project(tmp_path, apache_kafka.bootstrap_servers, prefix)
        ended = run_pipeline(tmp_path)
        assert ended.code == 0, ended.output
        assert len(read_values(cluster, topics.audit)) == SETTLEMENTS
        # It starts a new query from the beginning of the source, and would pay again.
        ended = run_pipeline(tmp_path, "--full-refresh-all")
        assert "the checkpoint is new and would write rows again" in ended.output
        assert ended.code != 0
        assert len(read_values(cluster, topics.audit)) == SETTLEMENTS
