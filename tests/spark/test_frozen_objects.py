"""What a worker has loaded is frozen: Spark collects garbage after every task."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.options import read_options
from fencepost.records.opened import Record
from fencepost.spark import compiled
from fencepost.testing.embedded import Broker

pytest.importorskip("pyarrow", reason="the spark extra is not installed")


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of modules at each freeze, in a process that has not frozen anything."""
    found: list[int] = []
    monkeypatch.setattr(compiled, "_frozen_modules", 0)
    monkeypatch.setattr(gc, "freeze", lambda: found.append(len(sys.modules)))
    return found


def test_objects_are_frozen_once_and_again_after_more_modules(
    frozen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        compiled.freeze_loaded_objects()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "loaded_later", types.ModuleType("loaded_later"))
    for _ in range(3):
        compiled.freeze_loaded_objects()
    assert len(frozen) == 2


def test_a_task_that_writes_what_the_shuffle_brought_freezes(frozen: list[int]) -> None:
    from fencepost.spark.ways.delivery import Attempt
    from fencepost.spark.ways.shuffled import DeliveryPlan, deliver

    with Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        plan = DeliveryPlan(cluster.init_producer_id("t"), 1, cluster.options)
        assert deliver(plan, Attempt(0, 0, 1), iter(()))["written"] == []
    assert len(frozen) == 1


def test_a_task_that_reads_a_few_records_freezes(frozen: list[int]) -> None:
    from fencepost.spark.source.options import read_source_options
    from fencepost.spark.source.range_reader import read_range
    from fencepost.spark.source.ranges import OffsetRange

    place = TopicPartition("t", 0)
    with Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("t", 1, 1)])
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            writer.write_records(place, [Record(value=b"x")])
            writer.flush()
        options = read_source_options(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}, streaming=True
        )
        rows = sum(batch.num_rows for batch in read_range(options, OffsetRange(place, 0, 1)))
    assert (rows, len(frozen)) == (1, 1)


def test_a_task_that_packs_a_few_rows_freezes(frozen: list[int]) -> None:
    import pyarrow as pa

    from fencepost.spark.ways.packing.by_record import PackingPlan
    from fencepost.spark.ways.shuffled import pack

    plan = PackingPlan(
        batch_id=0,
        slots=1,
        topic="t",
        partition_counts={"t": 1},
        codec=0,
        batch_bytes=1_000_000,
        max_record_bytes=1_000_000,
        options=read_options("127.0.0.1:1", {}),
        reserved={},
    )
    packed = list(pack(plan, 0, iter([pa.record_batch({"value": [b"x"]})])))
    assert (len(packed), len(frozen)) == (1, 1)
