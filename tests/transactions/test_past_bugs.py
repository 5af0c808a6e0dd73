"""Past bugs in the transactions of Kafka and others, each under its number.

Bugs that another test covers are listed in docs/cases.md with that test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, coordinator_partition
from fencepost.partition.partition import Partition
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.halves import half_of
from tests.transactions.group import commit_plainly
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    state_of,
    transaction_log,
    values,
)


def prepare(stage: Stage, **settings: str) -> Stage:
    create_topic(stage, "t", 2, {key.replace("_", "."): text for key, text in settings.items()})
    await_coordinator(stage, "a")
    await_coordinator(stage, "g", GROUP)
    stage.settle()
    return stage


def shrink_segments(stage: Stage) -> Stage:
    """Segments of a few batches each, smaller than any setting allows."""
    for index in range(2):
        partition = partition_of(stage, index=index)
        partition.reconfigure(replace(partition.log.config, segment_bytes=400))
    return stage


def partition_of(stage: Stage, topic: str = "t", index: int = 0) -> Partition:
    return stage.partition(topic, index)


# -- hanging and stuck transactions ----------------------------------------------------------------


@pytest.mark.parametrize("turns", half_of(range(14)))
def test_redpanda_6019_no_write_is_in_a_log_before_its_transaction(turns: int) -> None:
    """After a power loss during a first write, a record that is left has a known transaction."""
    with Stage(durability="fsync") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", TV2).initialise()
        stage.connect().send(ApiKey.PRODUCE, 12, one.produce_request("t", b"v"))
        for _ in range(turns):
            stage.loop.turn()
        again = stage.lose_power().again()
    written = values(again, "t", committed=False)
    if written:
        assert state_of(again, "a") == "Ongoing"
        (*_, ongoing) = transaction_log(again, "a")
        assert ongoing is not None
        assert ongoing.partitions == {"t": (0,)}
    assert values(again, "t") == []
    again.abandon()


# -- wrong data ------------------------------------------------------------------------------------


def test_redpanda_10671_records_of_an_abort_are_never_visible_while_it_runs() -> None:
    """After every turn of the loop: the aborted list covers every readable aborted record."""
    with Stage(durability="fsync") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", TV1).initialise()
        one.send("t", b"never")
        partition = partition_of(stage)
        line = stage.connect()
        number = line.send(ApiKey.END_TXN, 4, one.end_request(commit=False))
        looks = 0
        while number not in line.replies:
            got = partition.fetch(0, 1 << 20, read_committed=True)
            assert not got.data or got.aborted == [(one.producer_id, 0)]
            assert got.last_stable_offset <= got.high_watermark
            stage.loop.turn()
            looks += 1
        assert looks > 3
        assert values(stage, "t") == []


@pytest.fixture
def eager_cleaner() -> Iterator[Stage]:
    """A broker that rolls small segments and compacts them soon."""
    settings = {
        "offsets.topic.segment.bytes": "400",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "0",
    }
    with Stage(durability="os", settings=settings) as stage:
        yield shrink_segments(prepare(stage, cleanup_policy="compact"))


def test_an_aborted_offset_commit_never_hides_a_committed_one_after_compaction(
    eager_cleaner: Stage, protocol: Protocol
) -> None:
    stage = eager_cleaner
    one = WireProducer(stage, "a", protocol).initialise()
    one.send_offsets("g", {("t", 0): 7})
    one.commit()
    for offset in range(100, 110):
        one.send_offsets("g", {("t", 0): offset})
        one.abort()
    index = coordinator_partition("g", 2)
    before = partition_of(stage, CONSUMER_OFFSETS_TOPIC, index).log.size_bytes
    # Other commits roll the segments, and the cleaner runs.
    for number in range(10):
        assert commit_plainly(stage, "g", "t", {1: number}) == {NONE}
    stage.advance(120_000)
    assert partition_of(stage, CONSUMER_OFFSETS_TOPIC, index).log.size_bytes < before
    assert committed_offset(stage, "g", "t") == 7
    again = stage.kill().again()
    assert committed_offset(again, "g", "t") == 7
    again.abandon()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_compacted_log_read_from_its_beginning_has_no_open_transaction(
    eager_cleaner: Stage, protocol: Protocol, commit: bool
) -> None:
    """A batch that is kept for its sequence keeps the marker that ends its transaction."""
    stage = eager_cleaner
    one, other = (WireProducer(stage, name, protocol).initialise() for name in "ab")
    one.join(("t", 0))
    assert one.produce("t", b"x" * 50, key=b"k").error_code == NONE
    assert one.end(commit=commit) == NONE
    for round_number in range(4):
        for _ in range(8):
            other.join(("t", 0))
            assert other.produce("t", b"y" * 50, key=b"k").error_code == NONE
            assert other.end(commit=round_number % 2 == 1) == NONE
        stage.advance(120_000)
    folder = partition_of(stage).log.folder
    stage.kill()
    snapshots = [name for name in stage.disk.list_dir(folder) if name.endswith(".snapshot")]
    assert snapshots
    for name in snapshots:
        stage.disk.remove(f"{folder}/{name}")
    again = stage.again()
    partition = partition_of(again)
    assert len(partition.open_txns) == 0
    assert partition.last_stable_offset == partition.log_end_offset
    assert values(again, "t")[-1] == b"y" * 50
    again.abandon()


def test_kafka_20031_producer_ids_of_many_blocks_are_never_given_out_twice() -> None:
    stage = prepare(Stage(durability="os").start())
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    seen: list[int] = []
    for end in ("stop", "kill", "kill", "stop"):
        for _ in range(700):
            seen.append(stage.call(ApiKey.INIT_PRODUCER_ID, 4, request).producer_id)
        seen.append(WireProducer(stage, f"id-{len(seen)}", TV2).initialise().producer_id)
        if end == "stop":
            stage.stop()
        stage = (stage if end == "stop" else stage.kill()).again()
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)
    stage.abandon()


def test_starlight_68_a_load_accepts_everything_in_the_log() -> None:
    """Recovery accepts falling epochs and gaps in sequences; only new writes are checked."""
    with Stage(durability="os") as stage:
        prepare(stage)
        partition = partition_of(stage)
        for epoch in (5, 2, 4):
            partition.append_records(
                [(None, b"%d" % epoch)],
                stage.clock.now_ms(),
                producer_id=77,
                producer_epoch=epoch,
                transactional=epoch == 5,
            )
        again = stage.kill().again()
    assert values(again, "t", committed=False) == [b"5", b"2", b"4"]
    assert partition_of(again).log_end_offset == 3
    again.abandon()


# -- wrong errors ----------------------------------------------------------------------------------


def test_kafka_18659_produce_is_advertised_from_version_0_on(stage: Stage) -> None:
    """librdkafka treats a broker whose Produce begins at v3 as one that cannot produce."""
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    reply = stage.call(ApiKey.API_VERSIONS, 3, request)
    (produce,) = [row for row in reply.api_keys if row.api_key == ApiKey.PRODUCE]
    assert (produce.min_version, produce.max_version) == (0, 13)
