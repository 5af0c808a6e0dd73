"""Crashes and failing calls while the metadata log becomes a checkpoint and topics change.

Method: a broker whose metadata log is shortened after a few records. Two administrators create and
delete topics and change settings. A third one creates a topic between any two disk calls of the
thread that writes the checkpoint. The process dies, or the power is lost, at every disk call; or
every call fails once. Then the broker starts again:

- topics whose creation was answered exist, with their ids and settings, and can be written to;
- topics whose deletion was answered are gone;
- the metadata log is short, and can be shortened again.

In `os` mode a power loss may undo what was answered, but the broker starts in any case.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.controller import checkpoint as metadata_checkpoint
from fencepost.broker.controller.checkpoint import Checkpoint
from fencepost.records.metadata_log import TOPIC_RESOURCE
from fencepost.simulation.disk import UnsyncedDisk
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.crashes.test_crash_matrix import some_of
from tests.broker.node_stage import FOLDER, DiedError, Line, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, produce, read_topic
from tests.halves import half_of
from tests.log.batches import SeededRandomness

pytestmark = pytest.mark.usefixtures("quiet", "short_history", "one_step_per_turn")

METADATA = f"{FOLDER}/__cluster_metadata-0"
NONE = ErrorCode.NONE


@pytest.fixture
def short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_checkpoint, "LEAST_RECORDS", 16)
    monkeypatch.setattr(metadata_checkpoint, "HISTORY_PER_RECORD", 1)


class WatchedDisk(UnsyncedDisk):
    """A disk that lets others run before each call of a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.before_call: Callable[[], None] | None = None

    def call(self, kind: str) -> None:
        if self.before_call is not None:
            meanwhile, self.before_call = self.before_call, None
            meanwhile()
            self.before_call = meanwhile
        super().call(kind)


class Administrators:
    """Three clients that change topics, and what they know of the outcomes."""

    def __init__(self, stage: Stage) -> None:
        self.existing: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()
        self.created = 0
        self.refused = 0
        self.arrived = 0
        self.move_to(stage)

    def move_to(self, stage: Stage) -> None:
        self.stage = stage
        self.lines = [stage.connect() for _ in range(3)]
        self._asked: list[tuple[Line, ApiKey, int, str, int]] = []

    def round(self) -> None:
        """Creations and deletions that are under way at the same time."""
        doomed = next(iter(self.existing), None) if len(self.existing) > 3 else None
        self.stage.loop.call_soon(self.ask_to_create, self.lines[0])
        if doomed is not None:
            self.stage.loop.call_soon(self.ask_to_delete, self.lines[1], doomed)
        self.stage.loop.call_soon(self.ask_to_create, self.lines[1])
        self.stage.settle()
        self.hear()

    def ask_to_create(self, line: Line) -> None:
        name = f"t{self.created}"
        self.created += 1
        self.unsure.add(name)
        setting = CreatableTopicConfig(name="retention.ms", value=str(self.created))
        topic = CreatableTopic(
            name=name, num_partitions=1, replication_factor=-1, configs=[setting]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        number = line.send(ApiKey.CREATE_TOPICS, 7, request)
        self._asked.append((line, ApiKey.CREATE_TOPICS, 7, name, number))

    def ask_to_delete(self, line: Line, name: str) -> None:
        self.unsure.add(name)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
        number = line.send(ApiKey.DELETE_TOPICS, 6, request)
        self._asked.append((line, ApiKey.DELETE_TOPICS, 6, name, number))

    def hear(self) -> None:
        while self._asked:
            line, api, version, name, number = self._asked[0]
            reply = line.reply(api, version, number)
            del self._asked[0]
            (told,) = reply.topics if api == ApiKey.CREATE_TOPICS else reply.responses
            self.unsure.discard(name)
            if told.error_code != NONE:
                self.refused += 1
                assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            elif api == ApiKey.CREATE_TOPICS:
                self.existing[name] = told.topic_id
            else:
                del self.existing[name]
                self.deleted.add(name)

    def arrive(self) -> None:
        """A request that arrives while a thread writes the checkpoint."""
        if self.arrived < 12:
            self.arrived += 1
            self.ask_to_create(self.lines[2])

    def check(self, *, is_lossy: bool = False) -> None:
        state = self.stage.node.metadata
        if not is_lossy:
            assert set(self.existing) - self.unsure <= set(state.topics)
            assert not (self.deleted - self.unsure) & set(state.topics)
        for name, topic in state.topics.items():
            if name in self.existing and name not in self.unsure:
                assert topic.topic_id == self.existing[name], f"{name} is another topic"
            number = int(name.removeprefix("t"))
            settings = state.settings_of(TOPIC_RESOURCE, name)
            assert settings == {"retention.ms": str(number + 1)}, name
            value = b"still %s" % name.encode()
            assert produce(self.stage, name, batch_of(value)).error_code == NONE
            assert read_topic(self.stage, name)[-1] == value
        assert {name for _, name in state.settings} <= set(state.topics)

    def go_on(self) -> None:
        """The metadata log is shortened again, and again."""
        self.unsure.clear()
        self.existing = {n: t.topic_id for n, t in self.stage.node.metadata.topics.items()}
        self.deleted -= set(self.existing)
        for _ in range(12):
            self.round()
        assert self.refused == 0 or self.stage.fatal == []
        names = [n for n in self.stage.disk.list_dir(METADATA) if n.endswith(".checkpoint")]
        assert len(names) == 1, names


@contextlib.contextmanager
def arrivals(administrators: Administrators) -> Iterator[None]:
    """Requests arrive between the disk calls of the thread that writes the checkpoint."""
    disk = administrators.stage.disk
    assert isinstance(disk, WatchedDisk)
    real = Checkpoint.run

    def run(self: Checkpoint) -> None:
        disk.before_call = administrators.arrive
        try:
            real(self)
        finally:
            disk.before_call = None

    Checkpoint.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        Checkpoint.run = real  # type: ignore[method-assign]


def shorten(administrators: Administrators) -> None:
    """The story: a checkpoint is written while topics come and go."""
    with arrivals(administrators):
        for _ in range(3):
            administrators.round()
    administrators.stage.advance(2_000)
    administrators.hear()


@cache
def prepared(durability: str) -> tuple[UnsyncedDisk, Any, int]:
    """A disk whose metadata log will be shortened soon, for the second time."""
    stage = Stage(durability=durability, disk=WatchedDisk()).start()
    administrators = Administrators(stage)
    start = stage.node.controller._log.partition
    while start.log_start_offset == 0:
        administrators.round()
    due_at = stage.node.controller._log._checkpoints._due_at
    while start.log_end_offset < due_at - 8:
        administrators.round()
    stage.advance(2_000)
    stage.kill()
    return stage.disk, administrators, stage.clock.now_ms()


def started(durability: str) -> Administrators:
    disk, known, now_ms = prepared(durability)
    stage = Stage(
        durability=durability,
        disk=copy.deepcopy(disk),
        now_ms=now_ms + 1,
        randomness=copy.deepcopy(known.stage.randomness),
    ).start()
    stage.advance(2_000)
    mine = Administrators(stage)
    mine.existing, mine.deleted = dict(known.existing), set(known.deleted)
    mine.created = known.created
    return mine


@cache
def calls_of(durability: str) -> list[str]:
    administrators = started(durability)
    kinds = administrators.stage.disk.kinds = []
    before = administrators.stage.node.controller._log.partition.log_start_offset
    shorten(administrators)
    administrators.stage.disk.kinds = None
    assert administrators.arrived > 5, "nothing arrived while the checkpoint was written"
    assert administrators.stage.node.controller._log.partition.log_start_offset > before
    administrators.check()
    administrators.go_on()
    administrators.check()
    administrators.stage.stop()
    return kinds


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_after_a_crash_at_sampled_calls_of_a_checkpoint_the_topics_are_as_answered(
    durability: str, crash: str
) -> None:
    for call in half_of(some_of(calls_of(durability)), durability, crash):
        administrators = started(durability)
        stage = administrators.stage
        stage.disk.lose_power_at(call)
        try:
            shorten(administrators)
        except Exception:  # noqa: BLE001 - the process is dead: nothing that fails after that means anything.
            assert stage.disk._power_lost_at is not None
            assert stage.disk.calls >= stage.disk._power_lost_at, "it failed while all was well"
        if crash == "kill":
            stage.kill()
        else:
            stage.lose_power(SeededRandomness(call) if call % 2 else None)
        is_lossy = (durability, crash) == ("os", "lose_power")
        try:
            administrators.move_to(stage.again())
            administrators.check(is_lossy=is_lossy)
            administrators.go_on()
            administrators.check()
            administrators.move_to(administrators.stage.kill().again())
            administrators.check()
            assert administrators.stage.fatal == []
        except Exception as problem:
            raise AssertionError(f"{crash} at call {call}: {problem!r}") from problem
        administrators.stage.abandon()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "short write"])
def test_after_a_failed_call_of_a_checkpoint_the_topics_are_as_answered(
    durability: str, failure: str
) -> None:
    error = errno.EIO if failure == "EIO" else errno.ENOSPC
    for call in half_of(some_of(calls_of(durability)), durability, failure):
        administrators = started(durability)
        stage = administrators.stage
        stage.disk.fail_call(call, error, short=failure == "short write")
        try:
            try:
                shorten(administrators)
            except (DiedError, ClosedError):
                assert stage.fatal, "a connection was cut although the broker lives"
            stage.disk.heal()
            if stage.fatal:
                assert "sync" in stage.fatal[0], stage.fatal
                administrators.move_to(stage.kill().again())
            else:
                stage.advance(10_000)  # Partitions that could not be opened are opened again.
            administrators.check()
            administrators.go_on()
            administrators.check()
            administrators.move_to(administrators.stage.kill().again())
            administrators.check()
            assert administrators.stage.fatal == []
        except Exception as problem:
            raise AssertionError(f"{failure} at call {call}: {problem!r}") from problem
        administrators.stage.abandon()
