"""Past bugs in the transactions of Kafka and others, each under its number.

Bugs that another test covers are listed in docs/cases.md with that test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from fencepost.partition.partition import Partition
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.group import commit_plainly
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    committed_offsets,
    consume,
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
    found = stage.node.partitions.get(topic, index)
    assert found is not None
    return found


# -- hanging and stuck transactions ----------------------------------------------------------------


@pytest.mark.parametrize("turns", range(14))
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


def test_redpanda_30003_a_transaction_without_writes_survives_snapshots_and_restarts(
    protocol: Protocol,
) -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", protocol).initialise()
        if protocol is TV1:
            assert one.add_one("t") == NONE
        one.send("t", b"elsewhere", index=1)
        stage.stop()
        again = stage.again()
    one.client = again
    assert state_of(again, "a") == "Ongoing"
    one.commit()
    assert partition_of(again).last_stable_offset == partition_of(again).log_end_offset
    again.abandon()


def test_kop_1412_no_transaction_stays_prepared_after_a_restart(protocol: Protocol) -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", protocol).initialise()
        one.send("t", b"v")
        one.send_offsets("g", {("t", 0): 1})
        for index in range(2):
            stage.node.groups.unload(index)
        assert one.end(commit=True) == NONE
        assert state_of(stage, "a") == "PrepareCommit"
        again = stage.kill().again()
    again.settle()
    assert state_of(again, "a") == "CompleteCommit"
    assert committed_offset(again, "g", "t") == 1
    again.abandon()


def test_kafka_9065_a_gap_at_the_end_of_the_coordinators_log_does_not_stop_its_load() -> None:
    """Compaction leaves such gaps; so does a tombstone that was cleaned away."""
    settings = {
        "transaction.state.log.segment.bytes": "300",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "0",
    }
    with Stage(durability="os", settings=settings) as stage:
        prepare(stage)
        one = WireProducer(stage, "a", TV2).initialise()
        for _ in range(20):
            one.send("t", b"v")
            one.commit()
        log = partition_of(stage, TRANSACTION_STATE_TOPIC, coordinator_partition("a", 2)).log
        before = log.size_bytes
        stage.advance(120_000)
        assert log.size_bytes < before / 2
        again = stage.kill().again()
    assert state_of(again, "a") == "CompleteCommit"
    one.client = again
    one.send("t", b"last")
    one.commit()
    assert len(values(again, "t")) == 21
    again.abandon()


def test_kafka_16570_a_fencing_tool_gets_a_retriable_error_until_the_abort_is_complete(
    stage: Stage, protocol: Protocol
) -> None:
    prepare(stage)
    one = WireProducer(stage, "a", protocol).initialise()
    one.send("t", b"v")
    tool = WireProducer(stage, "a", TV2)
    assert tool.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert tool.init() == NONE
    assert tool.epoch == one.epoch + 2


def test_kafka_18660_after_the_last_epoch_the_reply_has_the_next_producer_id(stage: Stage) -> None:
    prepare(stage)
    one = WireProducer(stage, "a", TV2).initialise()
    for coordinator in stage.node.transactions.coordinators():
        if "a" in coordinator.state.transactions:
            coordinator.state.transactions["a"].producer_epoch = 32_766
    one.epoch = 32_766
    one.send("t", b"last of the old")
    old_id = one.producer_id
    one.commit()
    assert one.producer_id != old_id
    assert one.epoch == 0
    one.send("t", b"first of the new")
    one.commit()
    assert values(stage, "t") == [b"last of the old", b"first of the new"]


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


class Mixture:
    """Three producers of both protocols with random steps, on a broker that crashes at times."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.stage = prepare(Stage(durability="fsync").start())
        self._producers = [
            WireProducer(self.stage, name, self._rng.choice([TV1, TV2])).initialise()
            for name in "abc"
        ]

    def step(self) -> str:
        one = self._rng.choice(self._producers)
        action = self._rng.choice(["write"] * 3 + ["commit", "abort", "time", "stop", "power"])
        if action == "write":
            one.join(("t", 0), ("t", 1))
            if one.produce("t", b"v", index=self._rng.randrange(2)).error_code != NONE:
                one.initialise()
        elif action in ("commit", "abort"):
            if one.end(commit=action == "commit") not in (NONE, ErrorCode.INVALID_TXN_STATE):
                one.initialise()
        elif action == "time":
            self.stage.advance(self._rng.randrange(40_000))
            for each in self._producers:
                each.initialise()
        else:
            self._restart(action)
        return action

    def _restart(self, action: str) -> None:
        if action == "stop":
            self.stage.stop()
        else:
            self.stage.lose_power()
        self.stage = self.stage.again()
        self.stage.settle()
        for each in self._producers:
            each.client = self.stage


@pytest.mark.parametrize("seed", range(4))
def test_redpanda_7544_the_last_stable_offset_never_goes_back(seed: int) -> None:
    """Over any mixture of writes, ends, timeouts and restarts."""
    mixture = Mixture(seed)
    known = [0, 0]
    for _ in range(80):
        action = mixture.step()
        stage = mixture.stage
        now = [partition_of(stage, index=index).last_stable_offset for index in range(2)]
        assert all(a >= b for a, b in zip(now, known, strict=True)), (action, known, now)
        known = now
    assert not mixture.stage.fatal
    assert not mixture.stage.problems
    mixture.stage.abandon()


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_redpanda_31483_offsets_are_the_same_before_and_after_a_restart(
    protocol: Protocol, outcome: str
) -> None:
    """A plain commit while one is pending in a transaction, before its end and after."""
    with Stage(durability="os") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", protocol).initialise()
        one.send_offsets("g", {("t", 0): 10, ("t", 1): 10})
        assert commit_plainly(stage, "g", "t", {0: 20}) == {NONE}
        assert one.end(commit=outcome == "commit") == NONE
        live = [told.committed_offset for told in committed_offsets(stage, "g", "t", 0, 1)]
        again = stage.kill().again()
    assert live == [20, 10 if outcome == "commit" else -1]
    assert [told.committed_offset for told in committed_offsets(again, "g", "t", 0, 1)] == live
    again.abandon()


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


def test_kafka_8335_compaction_keeps_the_last_sequence_of_a_producer(
    eager_cleaner: Stage, protocol: Protocol
) -> None:
    """Also KAFKA-5490: the last batch of a producer is kept even if others rewrite all its keys."""
    stage = eager_cleaner
    one, other = (WireProducer(stage, name, protocol).initialise() for name in "ab")
    one.join(("t", 0))
    for _ in range(8):
        assert one.produce("t", b"x" * 50, key=b"k").error_code == NONE
    one.commit()
    for _ in range(20):
        other.join(("t", 0))
        assert other.produce("t", b"y" * 50, key=b"k").error_code == NONE
        other.commit()
    before = partition_of(stage).log.size_bytes
    stage.advance(120_000)
    assert partition_of(stage).log.size_bytes < before
    assert {record.value for record in consume(stage, "t").records} == {b"y" * 50}
    again = stage.kill().again()
    one.client = again
    one.join(("t", 0))
    if protocol is TV1:
        gap = one.produce("t", b"z", key=b"k", sequence=one.sequences["t", 0] + 1)
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.produce("t", b"z", key=b"k").error_code == NONE
    one.commit()
    assert consume(again, "t").values[-1] == b"z"
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


@pytest.mark.parametrize("seed", range(6))
def test_kafka_9892_after_a_power_loss_only_complete_snapshots_are_used(seed: int) -> None:
    """Small segments, so that snapshots are frequent, and a disk that tears unsynced writes."""

    class Torn:
        def __init__(self) -> None:
            self._rng = random.Random(seed)

        def bytes(self, count: int) -> bytes:
            return self._rng.randbytes(count)

    with Stage(durability="fsync") as stage:
        shrink_segments(prepare(stage))
        one, other = (WireProducer(stage, name, TV1).initialise() for name in "ab")
        for number in range(6):
            one.send("t", b"1/%d" % number)
            other.send("t", b"2/%d" % number)
            if number != 5:
                assert one.end(commit=number % 2 == 0) == NONE
        again = stage.lose_power(Torn()).again()
    one.client = other.client = again
    assert values(again, "t") == [b"1/0"], "the second producer is still open"
    repeated = one.twin()
    repeated.sequences["t", 0] -= 1
    assert repeated.produce("t", b"1/5").error_code == NONE, "recognised as a duplicate"
    one.send("t", b"1/6")
    one.commit()
    other.commit()
    expected = {b"1/0", b"1/2", b"1/4", b"1/5", b"1/6", *(b"2/%d" % n for n in range(6))}
    assert set(values(again, "t")) == expected
    assert len(values(again, "t")) == len(expected)
    again.abandon()


def test_kafka_12153_a_partial_append_does_not_move_the_last_stable_offset(
    stage: Stage, protocol: Protocol
) -> None:
    prepare(stage)
    one, other = (WireProducer(stage, name, protocol).initialise() for name in "ab")
    for each in (one, other):
        each.join(("t", 0))
    one.send("t", b"before")
    partition = partition_of(stage)
    bounds = (partition.last_stable_offset, partition.log_end_offset, len(partition.open_txns))
    if protocol is TV2:
        other.send("t", b"elsewhere", index=1)
    stage.disk.fill(free_bytes=100)
    assert one.produce("t", b"x" * 200).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert bounds == (
        partition.last_stable_offset,
        partition.log_end_offset,
        len(partition.open_txns),
    )
    stage.disk.empty()
    one.send("t", b"after")
    one.commit()
    assert values(stage, "t") == [b"before", b"after"]


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


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_kafka_17507_offsets_are_settled_when_the_end_gets_its_reply(
    protocol: Protocol, commit: bool
) -> None:
    with Stage(durability="fsync") as stage:
        prepare(stage)
        one = WireProducer(stage, "a", protocol).initialise()
        for offset in range(1, 20):
            one.send_offsets("g", {("t", 0): offset})
            assert one.end(commit=commit) == NONE
            assert committed_offset(stage, "g", "t") == (offset if commit else -1)


# -- wrong errors ----------------------------------------------------------------------------------


def test_kafka_18042_a_stale_epoch_is_refused_without_asking_the_coordinator(
    stage: Stage, protocol: Protocol
) -> None:
    prepare(stage)
    old = WireProducer(stage, "a", protocol).initialise()
    old.send("t", b"v")
    WireProducer(stage, "a", protocol).initialise()
    for index in range(2):
        stage.node.transactions.unload(index)
    assert old.produce("t", b"v").error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_kafka_18659_produce_is_advertised_from_version_0_on(stage: Stage) -> None:
    """librdkafka treats a broker whose Produce begins at v3 as one that cannot produce."""
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    reply = stage.call(ApiKey.API_VERSIONS, 3, request)
    (produce,) = [row for row in reply.api_keys if row.api_key == ApiKey.PRODUCE]
    assert (produce.min_version, produce.max_version) == (0, 13)


def test_kafka_14920_after_a_failed_verification_the_next_sequence_is_refused(stage: Stage) -> None:
    """Cases 57 and 58 over the wire: a gap at the beginning would be permanent."""
    prepare(stage)
    one = WireProducer(stage, "a", TV1).initialise()
    assert one.produce("t", b"first").error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert one.add_one("t") == NONE
    second = one.produce("t", b"second", sequence=1)
    assert second.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    one.send("t", b"first", b"second")
    one.commit()
    assert values(stage, "t") == [b"first", b"second"]


def test_kafka_18202_a_tv2_first_write_begins_at_sequence_0(stage: Stage) -> None:
    prepare(stage)
    one = WireProducer(stage, "a", TV2).initialise()
    assert one.produce("t", b"v", sequence=5).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    one.send("t", b"v")
    one.commit()
    assert values(stage, "t") == [b"v"]
    old = WireProducer(stage, "b", TV1).initialise()
    old.join(("t", 1))
    assert old.produce("t", b"v", index=1, sequence=5).error_code == NONE, "TV1 may begin anywhere"
