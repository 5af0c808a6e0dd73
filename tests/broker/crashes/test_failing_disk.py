"""Every disk call fails once: clients get an error, and no acknowledged record is lost.

Method: the work of the power-loss tests by a client that retries. Refused requests are sent again;
a broker that stopped is started again, in fsync mode on a disk without unsynced data.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.records.batch import split_batches
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.broker.crashes.test_power_loss import calls_of, commit_offset, committed_offset
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import (
    NOW_MS,
    batch_of,
    create_topic,
    create_topics,
    fetch,
    produce,
    read_topic,
)
from tests.transactions.protocol import TV2
from tests.transactions.wire import WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")

PRODUCER: dict[str, Any] = {"producer_id": 4_000, "epoch": 0}
TRIES = 8


class Stubborn:
    """A client that retries until success, over several starts of the broker."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.written: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.committed = -1
        self.lives = 1
        self._is_durable = stage.node.partitions.fsync

    def start(self) -> None:
        try:
            self.stage.start()
        except FencepostError:
            self._start_again()

    def _start_again(self) -> None:
        self.lives += 1
        dead = self.stage.lose_power() if self._is_durable else self.stage.kill()
        self.stage = dead.again()

    def _until_done(self, attempt: Any) -> None:
        for _ in range(TRIES):
            try:
                if attempt():
                    return
                self.stage.advance(10_000)
            except (ClosedError, DiedError):
                self._start_again()
        raise AssertionError("the request never succeeded")

    def run(self) -> None:
        self.create("first", 2)
        for _ in range(3):
            self.write("first", 0)
            self.write("first", 1)
        self.commit(1)
        self.create("second", 1)
        self.write("second", 0)
        self.commit(2)
        self.write("first", 0)

    def create(self, name: str, partitions: int) -> None:
        def attempt() -> bool:
            (made,) = create_topics(self.stage, name, partitions=partitions)
            return made.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

        self._until_done(attempt)

    def write(self, name: str, index: int) -> None:
        written = self.written[name, index]
        value = b"%s-%d-%d" % (name.encode(), index, len(written))

        def attempt() -> bool:
            batch = batch_of(value, sequence=len(written), **PRODUCER)
            outcome = produce(self.stage, name, batch, index=index)
            if outcome.error_code == ErrorCode.NONE:
                assert outcome.base_offset == len(written)
            return bool(outcome.error_code == ErrorCode.NONE)

        self._until_done(attempt)
        written.append(value)

    def commit(self, offset: int) -> None:
        def attempt() -> bool:
            commit_offset(self.stage, offset)
            return True

        self._until_done(attempt)
        self.committed = offset

    def check(self) -> None:
        for (name, index), values in self.written.items():
            assert read_topic(self.stage, name, index) == values
        assert committed_offset(self.stage) == self.committed


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_one_disk_failure_loses_nothing(durability: str, error: int) -> None:
    for call in calls_of(lambda stage: Stubborn(stage).run(), durability)[::3]:
        stage = Stage(durability=durability)
        stage.disk.fail_call(call, error)
        client = Stubborn(stage)
        client.start()
        client.run()
        client.stage.kill()  # Also clears a failure that no call has reached.
        client.stage = client.stage.again()
        client.check()
        client.stage.stop()


def test_a_batch_that_cannot_be_read_is_a_storage_error_and_is_read_later() -> None:
    with Stage(durability="os") as stage:
        client = Stubborn(stage)
        client.create("t", 1)
        client.write("t", 0)
        stage.disk.fail_call(1)
        assert fetch(stage, "t").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert read_topic(stage, "t") == [b"t-0-0"]


def aborted_and_committed(stage: Stage) -> WireProducer:
    create_topic(stage, "t", settings={"internal.segment.bytes": "300"})
    producer = WireProducer(stage, "x", TV2)
    producer.initialise()
    for number in range(8):
        producer.produce("t", b"%d" % number, timestamp_ms=NOW_MS + number)
        assert producer.end(commit=number % 2 == 0) == ErrorCode.NONE
    return producer


@pytest.mark.parametrize("kinds", [("read", "view"), ("open", "read_file"), ()])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_failed_read_gets_a_storage_error_and_succeeds_the_next_time(
    kinds: tuple[str, ...], error: int
) -> None:
    """Nothing is cached after a start, so indexes and aborted transactions are read too."""
    stage = Stage(durability="os").start()
    aborted_and_committed(stage)
    stage.stop()
    failed = 0
    for call in range(1, 30):
        stage = stage.again()
        for ask in (read_all_committed, offset_by_time):
            stage.disk.fail_for_a_while(call, 1, error, kinds=kinds)
            told, found = ask(stage)
            stage.disk.heal()
            if told == ErrorCode.NONE:
                assert found == ask(stage)[1]
            else:
                failed += 1
                assert told == ErrorCode.KAFKA_STORAGE_ERROR
                assert ask(stage)[0] == ErrorCode.NONE
            assert (stage.fatal, stage.problems) == ([], [])
        stage.stop()
    assert failed > 3


def read_all_committed(stage: Stage) -> tuple[int, list[bytes]]:
    """With the ids of aborted transactions, which a reader needs to skip their records."""
    values: list[bytes] = []
    offset = 0
    while True:
        got = fetch(stage, "t", offset=offset, isolation_level=1)
        if got.error_code or not got.records:
            return got.error_code, values
        batches = split_batches(got.records)
        aborted = {(each.producer_id, each.first_offset) for each in got.aborted_transactions or ()}
        values += [repr(aborted).encode(), bytes(got.records)]
        offset = batches[-1].next_offset


def offset_by_time(stage: Stage) -> tuple[int, list[bytes]]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + 3)
    topic = ListOffsetsTopic(name="t", partitions=[asked])
    reply = stage.call(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(replica_id=-1, topics=[topic]))
    told = reply.topics[0].partitions[0]
    return told.error_code, [b"%d" % told.offset] if not told.error_code else []


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_records_aborted_while_the_transaction_index_cannot_be_read_stay_hidden(
    durability: str,
) -> None:
    stage = Stage(durability=durability).start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "x", TV2)
    producer.initialise()
    producer.produce("t", b"first")
    assert producer.end(commit=False) == ErrorCode.NONE
    stage.stop()
    producer.client = stage = stage.again()
    producer.produce("t", b"aborted")
    stage.disk.fail_for_a_while(1, 3, errno.EIO, kinds=["read_file"])
    assert producer.end(commit=False) == ErrorCode.NONE
    stage.disk.heal()
    producer.produce("t", b"seen")
    assert producer.end(commit=True) == ErrorCode.NONE
    assert consume(stage, "t").values == [b"seen"]
    producer.client = stage = stage.kill().again()
    assert consume(stage, "t").values == [b"seen"]
    stage.stop()
    stage = stage.again()
    assert consume(stage, "t").values == [b"seen"]
    stage.stop()


def test_a_broker_in_os_mode_survives_a_failed_write() -> None:
    with Stage(durability="os") as stage:
        client = Stubborn(stage)
        client.create("t", 1)
        for _ in range(5):
            stage.disk.fail_call(1)
            client.write("t", 0)
        assert client.lives == 1
        assert read_topic(stage, "t") == client.written["t", 0]
