"""The folders of a deleted topic are removed while a cluster runs, not only at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.records.opened import Record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def test_the_files_of_a_deleted_topic_are_gone_when_the_cluster_has_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fencepost.Cluster(2, data=data) as cluster, connect(cluster.bootstrap_servers) as client:
        client.create_topics([NewTopic("orders", partitions=2)])
        with client.writer(client.init_producer_id(None)) as writer:
            for partition in range(2):
                writer.write_records(TopicPartition("orders", partition), [Record(value=b"x")])
            writer.flush()
        assert len(list(data.glob("orders-*"))) == 2
        client.delete_topics(["orders"])
    # A stop waits for the removal that has begun.
    assert not list(data.glob("orders-*"))
