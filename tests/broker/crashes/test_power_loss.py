"""Power loss at every point: fsync mode keeps acknowledged records, os mode need not.

Method: a fixed piece of work runs on a disk in memory that loses unsynced data. The power is cut at
the n-th disk call, for many n; then the broker is started again on the remaining data. Acknowledged
records must be there once and at their offsets; pending ones may be there or not, but not twice
when their producer sends them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.controller.topics_stage import CountingRandomness, bump_leader_epochs
from tests.broker.node_stage import Stage
from tests.broker.requests import (
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    fetch,
    produce,
    produce_request,
    read_topic,
    records_in,
)
from tests.log.batches import SeededRandomness

pytestmark = pytest.mark.usefixtures("quiet")

PRODUCER: dict[str, Any] = {"producer_id": 4_000, "epoch": 0}
Place = tuple[str, int]


class Work:
    """The requests of a client, their replies, and the pending ones when the power was cut."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.written: defaultdict[Place, list[bytes]] = defaultdict(list)
        self.under_way: dict[Place, bytes] = {}
        self.committed = -1
        self.committing = -1

    def run(self, stage: Stage) -> None:
        """Topics, batches and offsets, one after the other and concurrently."""
        self._create(stage, "first", 2)
        self._write(stage, ("first", 0))
        self._write(stage, ("first", 0), ("first", 1))
        self._commit(stage, 1)
        self._create(stage, "second", 1)
        for _ in range(3):
            self._write(stage, ("first", 0), ("first", 1), ("second", 0))
        self._commit(stage, 2)
        self._write(stage, ("second", 0))

    def _create(self, stage: Stage, name: str, partitions: int) -> None:
        create_topic(stage, name, partitions)
        self.topics[name] = partitions

    def _write(self, stage: Stage, *places: Place) -> None:
        """One batch into each partition, all in flight together on separate connections."""
        self.under_way = {
            place: b"%s-%d-%d" % (place[0].encode(), place[1], len(self.written[place]))
            for place in places
        }
        lines = [(place, stage.connect()) for place in places]
        asked = [
            (place, line, line.send(ApiKey.PRODUCE, PRODUCE_VERSION, self._request(place)))
            for place, line in lines
        ]
        for place, line, number in asked:
            reply = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, number)
            outcome = reply.responses[0].partition_responses[0]
            assert (outcome.error_code, outcome.base_offset) == (0, len(self.written[place]))
            self.written[place].append(self.under_way.pop(place))

    def _request(self, place: Place) -> Any:
        sequence = len(self.written[place])
        batch = batch_of(self.under_way[place], sequence=sequence, **PRODUCER)
        return produce_request(place[0], batch, index=place[1])

    def _commit(self, stage: Stage, offset: int) -> None:
        self.committing = offset
        commit_offset(stage, offset)
        self.committed = offset

    def check(self, stage: Stage) -> None:
        """All acknowledged records are there, once and at their offsets."""
        for name, partitions in self.topics.items():
            for index in range(partitions):
                self._check_partition(stage, (name, index))
        if self.committed >= 0:
            assert committed_offset(stage) in (self.committed, self.committing)

    def _check_partition(self, stage: Stage, place: Place) -> None:
        written = self.written[place]
        unsure = self.under_way.get(place)
        found = read_topic(stage, *place)
        assert found in (written, [*written, unsure])
        if unsure is not None:
            outcome = produce(stage, place[0], self._request_batch(place), index=place[1])
            assert (outcome.error_code, outcome.base_offset) == (0, len(written))
            assert read_topic(stage, *place) == [*written, unsure]

    def _request_batch(self, place: Place) -> Any:
        return batch_of(self.under_way[place], sequence=len(self.written[place]), **PRODUCER)


NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def when_coordinated(stage: Stage, key_type: int, ask: Callable[[], tuple[int, Any]]) -> Any:
    """Retries until there is a coordinator; the first FindCoordinator creates its topic."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
    for _ in range(10):
        stage.call(ApiKey.FIND_COORDINATOR, 4, request)
        error, answer = ask()
        if error not in NOT_YET:
            assert error == ErrorCode.NONE
            return answer
        stage.advance(1_000)
    raise AssertionError("there is no coordinator")


def commit_offset(stage: Stage, offset: int) -> None:
    topic = OffsetCommitRequestTopic(
        name="first",
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
    )
    request = OffsetCommitRequest(group_id="group", topics=[topic])

    def ask() -> tuple[int, None]:
        reply = stage.call(ApiKey.OFFSET_COMMIT, 8, request)
        return reply.topics[0].partitions[0].error_code, None

    when_coordinated(stage, 0, ask)


def committed_offset(stage: Stage) -> int:
    asked = OffsetFetchRequestTopics(name="first", partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id="group", topics=[asked])

    def ask() -> tuple[int, Any]:
        reply = stage.call(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group])).groups[0]
        return reply.error_code, reply

    offset: int = when_coordinated(stage, 0, ask).topics[0].partitions[0].committed_offset
    return offset


def calls_of(work: Callable[[Stage], None], durability: str = "fsync") -> range:
    """The numbers of the disk calls that a start and the work make."""
    stage = Stage(durability=durability)
    first = stage.disk.calls
    stage.start()
    work(stage)
    stage.stop()
    assert stage.disk.calls > first, "the work made no disk call"
    return range(first + 1, stage.disk.calls + 1)


def run_until_power_loss(stage: Stage, work: Callable[[Stage], None], call: int) -> None:
    """Runs the work on a machine whose power is cut at that call."""
    stage.disk.lose_power_at(call)
    try:
        stage.start()
        work(stage)
        stage.stop()
    except Exception:  # noqa: BLE001 - after a crash any failure is expected.
        assert stage.disk.calls >= call, "the work failed before the power was lost"


@pytest.mark.parametrize("torn", [False, True])
def test_in_fsync_mode_everything_acknowledged_survives(torn: bool) -> None:
    randomness = CountingRandomness() if torn else None
    calls = calls_of(lambda stage: Work().run(stage))
    assert len(calls) > 200
    for call in calls[::5]:
        work = Work()
        stage = Stage()
        run_until_power_loss(stage, work.run, call)
        with_what_is_left = stage.lose_power(randomness).again()
        work.check(with_what_is_left)
        assert with_what_is_left.fatal == []
        with_what_is_left.stop()


def test_further_losses_of_power_during_recovery_lose_nothing_more() -> None:
    for call in calls_of(lambda stage: Work().run(stage))[::40]:
        work = Work()
        stage = Stage()
        run_until_power_loss(stage, work.run, call)
        for later in range(1, 60, 7):
            stage.lose_power(CountingRandomness())
            disk, now_ms = stage.disk, stage.clock.now_ms()
            stage = Stage(disk=disk, now_ms=now_ms, randomness=stage.randomness)
            run_until_power_loss(stage, lambda started: started.settle(), later)
        final = stage.lose_power().again()
        work.check(final)
        final.stop()


def test_in_os_mode_a_power_loss_may_lose_an_acknowledged_batch() -> None:
    """As in Kafka: only the operating system has the data."""
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    stage.stop()
    again = stage.again()
    assert produce(again, "t", batch_of(b"acknowledged")).error_code == ErrorCode.NONE
    assert read_topic(again, "t") == [b"acknowledged"]
    after = again.lose_power().again()
    assert read_topic(after, "t") == []
    # The offset was never durable, so no client has seen it: it is assigned again.
    assert produce(after, "t", batch_of(b"next")).base_offset == 0
    after.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_in_both_modes_everything_acknowledged_survives_a_kill(durability: str) -> None:
    for call in calls_of(lambda stage: Work().run(stage), durability)[::6]:
        work = Work()
        stage = Stage(durability=durability)
        run_until_power_loss(stage, work.run, call)  # The process is dead from then on.
        again = stage.kill().again()
        work.check(again)
        again.stop()


# -- transactions ----------------------------------------------------------------------------------


class Transfer:
    """One transaction over two partitions, in TV1."""

    def __init__(self) -> None:
        self.is_acknowledged = False
        self.has_begun = False

    def run(self, stage: Stage) -> None:
        create_topic(stage, "money", 2)
        request = InitProducerIdRequest(transactional_id="transfer", transaction_timeout_ms=60_000)

        def ask() -> tuple[int, Any]:
            reply = stage.call(ApiKey.INIT_PRODUCER_ID, 4, request)
            return reply.error_code, reply

        producer = when_coordinated(stage, 1, ask)
        self.has_begun = True
        identity = (producer.producer_id, producer.producer_epoch)
        add_partitions(stage, *identity)
        for index in range(2):
            batch = batch_of(
                b"moved",
                producer_id=identity[0],
                epoch=identity[1],
                sequence=0,
                transactional=True,
            )
            outcome = produce(stage, "money", batch, index=index, transactional_id="transfer")
            assert outcome.error_code == ErrorCode.NONE
        end = EndTxnRequest(
            transactional_id="transfer",
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=True,
        )
        assert stage.call(ApiKey.END_TXN, 4, end).error_code == ErrorCode.NONE
        self.is_acknowledged = True
        stage.settle()


def add_partitions(stage: Stage, producer_id: int, producer_epoch: int) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="transfer",
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        topics=[AddPartitionsToTxnTopic(name="money", partitions=[0, 1])],
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    reply = stage.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
    topics = reply.results_by_transaction[0].topic_results
    assert {r.partition_error_code for t in topics for r in t.results_by_partition} == {0}


def committed_values(stage: Stage) -> list[list[bytes | None]]:
    """The committed records of both partitions, when no transaction is open."""
    seen = []
    for index in range(2):
        got = fetch(stage, "money", index=index, isolation_level=1)
        assert got.last_stable_offset == got.high_watermark
        aborted = {each.producer_id for each in got.aborted_transactions or ()}
        values = [] if aborted else [record.value for record in records_in(got.records)]
        seen.append(values)
    return seen


def test_after_a_power_loss_a_transaction_is_complete_or_absent() -> None:
    outcomes = set()
    for call in calls_of(lambda stage: Transfer().run(stage))[::4]:
        transfer = Transfer()
        stage = Stage()
        run_until_power_loss(stage, transfer.run, call)
        after = stage.lose_power(CountingRandomness()).again()
        after.advance(5 * 60_000)  # An unfinished transaction is aborted by its timeout.
        if transfer.has_begun:
            seen = committed_values(after)
            assert seen in ([[b"moved"], [b"moved"]], [[], []])
            outcomes.add(seen == [[], []])
            if transfer.is_acknowledged:
                assert seen == [[b"moved"], [b"moved"]]
        assert after.fatal == []
        after.stop()
    assert outcomes == {True, False}, "the power was lost both before and after the decision"


class Replacement:
    """A topic that is deleted and created again under the same name."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def run(self, stage: Stage) -> None:
        create_topic(stage, "name")
        self.told.append("created")
        produce(stage, "name", batch_of(b"of the first life"))
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="name")])
        reply = stage.call(ApiKey.DELETE_TOPICS, 6, deletion)
        assert reply.responses[0].error_code == ErrorCode.NONE
        self.told.append("deleted")
        create_topic(stage, "name")
        self.told.append("created again")


def test_a_leader_epoch_known_only_from_batches_is_never_reused() -> None:
    """Clients keep the highest epoch they have seen; a lower one would make them wait forever."""
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"old"))
    stage.advance(2_000)
    partition = stage.node.partitions.get("t", 0)
    assert partition is not None
    for _ in range(3):
        bump_leader_epochs(stage.node.controller, [partition.name])
    produce(stage, "t", batch_of(b"new"))
    seen = partition.leader_epoch
    partition.log.sync()
    again = stage.lose_power().again()
    opened = again.node.partitions.get("t", 0)
    assert opened is not None
    state = again.node.metadata.partition("t", 0)
    assert state is not None
    assert state.leader_epoch == opened.leader_epoch > seen
    assert produce(again, "t", batch_of(b"newer")).error_code == ErrorCode.NONE
    assert read_topic(again, "t")[-1] == b"newer"
    again.stop()


def test_a_deleted_topic_stays_deleted_and_a_recreated_one_begins_empty() -> None:
    for call in calls_of(lambda stage: Replacement().run(stage))[::2]:
        replacement = Replacement()
        stage = Stage()
        run_until_power_loss(stage, replacement.run, call)
        after = stage.lose_power(CountingRandomness()).again()
        metadata = after.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        is_there = [topic.name for topic in metadata.topics] == ["name"]
        if "created again" in replacement.told:
            assert is_there
        if "deleted" in replacement.told and is_there:
            assert read_topic(after, "name") == []
        after.stop()


def live_four_times(stage: Stage) -> Iterator[Stage]:
    """Several processes on one disk, stopped or killed, with saved recovery points."""
    for name, end in (("a", "stop"), ("b", "stop"), ("c", "kill"), ("d", "stop")):
        yield stage
        create_topic(stage, name, 2)
        stage.advance(5_000)
        getattr(stage, end)()
        stage = stage.again()
    stage.stop()


def test_in_os_mode_a_power_loss_is_never_mistaken_for_damaged_metadata() -> None:
    settings = {"log.flush.offset.checkpoint.interval.ms": "1000"}
    whole = Stage(durability="os", settings=settings)
    for _ in live_four_times(whole.start()):
        pass
    calls = whole.disk.calls
    assert calls > 100
    for call in range(1, calls + 1, 3):
        stage = Stage(durability="os", settings=settings)
        stage.disk.lose_power_at(call)
        try:
            for life in live_four_times(stage.start()):
                stage = life
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            assert stage.disk.calls >= call, "the work failed before the power was lost"
        stage.lose_power(CountingRandomness()).again().stop()


# -- what a second crash may remove ----------------------------------------------------------------


def test_records_visible_after_a_kill_survive_a_power_loss() -> None:
    """The batch was appended but never synced. Once a reader can see it, it is on the disk."""
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"acknowledged"))
    stage.connect().send(ApiKey.PRODUCE, 11, produce_request("t", batch_of(b"in the page cache")))
    stage.disk.lose_power_at(1)  # The process writes nothing more; the disk keeps every byte.
    again = stage.kill().again()
    shown = read_topic(again, "t")
    assert shown == [b"acknowledged", b"in the page cache"]
    third = again.lose_power().again()
    assert read_topic(third, "t") == shown
    third.stop()


@pytest.mark.parametrize("torn", [False, True])
def test_a_producer_whose_records_were_deleted_survives_a_power_loss(torn: bool) -> None:
    """Only a snapshot has it; a retry of its last batch is still recognised as a duplicate."""
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "200"})
    producer: dict[str, Any] = {"producer_id": 4_000, "epoch": 0}
    for sequence in range(4):
        produce(stage, "t", batch_of(b"%d" % sequence, sequence=sequence, **producer))
    everything = DeleteRecordsTopic(
        name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
    )
    stage.call(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[everything]))
    # The sync of these makes the deletion durable too.
    for _ in range(4):
        produce(stage, "t", batch_of(b"of another"))
    stage = stage.lose_power(SeededRandomness(7) if torn else None).again()
    repeated = produce(stage, "t", batch_of(b"3", sequence=3, **producer))
    assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 3)
    gap = produce(stage, "t", batch_of(b"5", sequence=5, **producer))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(stage, "t", batch_of(b"4", sequence=4, **producer)).base_offset == 8
    stage.stop()
