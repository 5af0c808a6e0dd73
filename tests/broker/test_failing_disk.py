"""One call to the disk fails, for every call: clients hear an error or lose the broker, and nothing acknowledged is lost.

Method: the work of the power-loss tests by a client that does not give up. What is refused is sent again; a broker that
stopped by itself is started again, in fsync mode on a disk without what was not synced.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topics, fetch, produce, read_topic
from tests.broker.test_power_loss import calls_of, commit_offset, committed_offset

pytestmark = pytest.mark.usefixtures("quiet")

PRODUCER: dict[str, Any] = {"producer_id": 4_000, "epoch": 0}
TRIES = 8


class Stubborn:
    """A client that repeats what failed until it is done, over as many lives of the broker as that takes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.written: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.committed = -1
        self.lives = 1
        self._is_durable = stage.node.shard.fsync

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
        raise AssertionError("it was never done")

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
def test_one_failure_of_the_disk_loses_nothing(durability: str, error: int) -> None:
    for call in calls_of(lambda stage: Stubborn(stage).run(), durability)[::3]:
        stage = Stage(durability=durability)
        stage.disk.fail_call(call, error)
        client = Stubborn(stage)
        client.start()
        client.run()
        client.stage.kill()  # With the process the failure goes, if nothing has come to it.
        client.stage = client.stage.again()
        client.check()
        client.stage.stop()


def test_a_batch_that_cannot_be_read_is_a_storage_error_and_not_the_end() -> None:
    with Stage(durability="os") as stage:
        client = Stubborn(stage)
        client.create("t", 1)
        client.write("t", 0)
        stage.disk.fail_call(1)
        assert fetch(stage, "t").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert read_topic(stage, "t") == [b"t-0-0"]


def test_a_broker_in_os_mode_survives_a_write_that_fails() -> None:
    with Stage(durability="os") as stage:
        client = Stubborn(stage)
        client.create("t", 1)
        for _ in range(5):
            stage.disk.fail_call(1)
            client.write("t", 0)
        assert client.lives == 1
        assert read_topic(stage, "t") == client.written["t", 0]
