"""A node without sockets and a loop: real partitions on a disk in memory, synced by the test."""

from __future__ import annotations

import hashlib
import importlib
from typing import TYPE_CHECKING, Any, cast

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError, SyncError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from fencepost.broker.authorization import AllowAll
from fencepost.broker.context import Context
from fencepost.broker.controller.controller import Controller, NewTopic, Outcome
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.layout import Layout
from fencepost.broker.waiting import Parked
from fencepost.log.config import LogConfig
from fencepost.log.opening import open_log
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import UnsyncedDisk
from fencepost.wire.apis import API
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from tests.partition.conftest import retain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.node import Node
    from fencepost.wire.apis import ApiKey

NOW_MS = 1_700_000_000_000


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


class CountingRandomness:
    """Different bytes at every call, the same in every run."""

    def __init__(self) -> None:
        self.thrown = 0

    def bytes(self, count: int) -> bytes:
        self.thrown += 1
        return hashlib.sha256(str(self.thrown).encode()).digest()[:count]


class Coordinator:
    """Records its calls."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.deleted_topics: list[str] = []

    def forgetting(self, names: Collection[str]) -> Iterator[Callable[[], None]]:
        yield lambda: self.deleted_topics.extend(names)

    def on_topic_created(self, name: str) -> None:
        """There is nothing to remove."""

    def when_durable(self, callback: Callable[[], None]) -> None:
        callback()

    def load(self, index: int, partition: Partition) -> None:
        self.loaded.append(index)


class StubPartitions:
    def __init__(self, fsync: bool) -> None:
        self.fsync = fsync
        self.by_name: dict[TopicPartition, Partition] = {}


class StubFlusher:
    def written(self, partition: Partition) -> None:
        """The disk never loses power, so nothing is flushed."""


class StubBackground:
    """Runs the work of threads immediately, or step by step while `is_held` is set."""

    def __init__(self, fatal: Callable[[str], None]) -> None:
        self._fatal = fatal
        self.is_held = False
        self.held: list[Callable[[], None]] = []
        """One call per step: the work, and then its continuation."""

    def run(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        def finish() -> None:
            try:
                work()
            except SyncError as problem:
                self._fatal(str(problem))
                return
            except (OSError, StorageError) as problem:
                failed = problem
                self._step(lambda: done(failed))
                return
            self._step(lambda: done(None))

        self._step(finish)

    def _step(self, step: Callable[[], None]) -> None:
        if self.is_held:
            self.held.append(step)
        else:
            step()

    def step(self) -> bool:
        """Runs the next step that was held; False if there is none."""
        if self.held:
            self.held.pop(0)()
            return True
        return False


class StubHousekeeping:
    def retain_soon(self, partition: Partition) -> None:
        retain(partition, NOW_MS)


class StubNode:
    """The parts of a node that `Controller` and its handlers use."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        disk: UnsyncedDisk | None = None,
        randomness: CountingRandomness | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.config = BrokerConfig({"log.dirs": "/data", **(settings or {})})
        self.node_id = self.config.node_id
        self.clock = Clock()
        self.disk = disk or UnsyncedDisk()
        self.randomness = randomness or CountingRandomness()
        self.authorizer = authorizer or AllowAll()
        self.layout = Layout(self.disk, self.config.data)
        self.partitions = StubPartitions(fsync=self.config.durability == "fsync")
        self.housekeeping = StubHousekeeping()
        self.flusher = StubFlusher()
        self.groups = Coordinator()
        self.transactions = Coordinator()
        self.fatal_reasons: list[str] = []
        self.background = StubBackground(self.fatal)
        self.timers: list[Callable[[], None]] = []
        self.next_turns: list[Callable[[], None]] = []
        self.refuse_to_open = False
        self._waiting: list[tuple[Partition, int, Callable[[], None]]] = []
        self.controller = Controller(cast("Node", self))

    def start(self, *, host: str = "localhost", port: int = 9092) -> StubNode:
        self.layout.load()
        self.controller.load()
        self.controller.register(host, port)
        return self

    def stop(self, *, clean: bool = True) -> None:
        for partition in self.partitions.by_name.values():
            partition.close(clean=clean)
        if clean:
            self.layout.save_checkpoints(self.partitions.by_name.values())
            self.layout.mark_clean()

    def restarted(self, *, clean: bool = True, **settings: str) -> StubNode:
        """The next run on the same disk."""
        self.stop(clean=clean)
        given = {**self.config.static, **{k.replace("_", "."): v for k, v in settings.items()}}
        return StubNode(given, disk=self.disk, randomness=self.randomness).start()

    def fatal(self, reason: str) -> None:
        self.fatal_reasons.append(reason)

    # -- what Node offers

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.by_name.get(TopicPartition(topic, index))

    def open_partition(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Partition:
        if self.refuse_to_open:
            raise StorageError("no room")
        opened = open_log(
            self.disk,
            self.layout.claim(name, topic_id),
            config,
            now_ms=NOW_MS,
            clean=self.layout.clean,
            recovery_point=self.layout.recovery_point(name),
            log_start_offset=self.layout.log_start_offset(name),
        )
        fsync = self.partitions.fsync
        partition = Partition(name, topic_id, leader_epoch, opened, durable_at_append=not fsync)
        self.partitions.by_name[name] = partition
        return partition

    def open_metadata_log(self) -> Partition:
        name = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
        return self.open_partition(name, bytes(15) + b"\x01", 0, LogConfig())

    def close_partition(self, name: TopicPartition, *, delete: bool) -> None:
        partition = self.partitions.by_name.pop(name, None)
        if partition is not None:
            partition.close(clean=not delete)
        if delete:
            self.layout.delete(name)

    def when_durable(
        self, partition: Partition, end_offset: int, callback: Callable[[], None]
    ) -> None:
        if not self.partitions.fsync or partition.high_watermark >= end_offset:
            callback()
        else:
            self._waiting.append((partition, end_offset, callback))

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        (self.timers if delay_ms else self.next_turns).append(callback)

    def turn(self) -> bool:
        """Runs one turn of the loop; False if there was nothing to do."""
        turns, self.next_turns = self.next_turns, []
        for callback in turns:
            callback()
        return bool(turns)

    def fire_timers(self) -> None:
        """Fires every timer."""
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()

    def sync(self) -> None:
        """Syncs the disk and calls everything that waits for durability."""
        waiting, self._waiting = self._waiting, []
        for partition, end_offset, _ in waiting:
            durable = partition.log.sync()
            assert durable >= end_offset
            partition.advance_high_watermark(durable)
        for _, _, callback in waiting:
            callback()

    # -- for tests

    def context(self, version: int = 99) -> Context:
        return Context(cast("Node", self), version, "test", "127.0.0.1")

    def create(self, *topics: NewTopic | str, validate_only: bool = False) -> list[Outcome]:
        wanted = [NewTopic(each) if isinstance(each, str) else each for each in topics]
        heard: list[Outcome] = []
        self.controller.create(wanted, heard.extend, validate_only=validate_only)
        if self.partitions.fsync:
            self.sync()
        while self.turn():
            pass
        return heard

    def made(self, name: str, partition_count: int = 1, **settings: str) -> None:
        given = [(key.replace("_", "."), value) for key, value in settings.items()]
        (outcome,) = self.create(NewTopic(name, partition_count, settings=given))
        assert outcome.error is ErrorCode.NONE, outcome.message

    def fill(self, topic: str, count: int, index: int = 0) -> Partition:
        partition = self.partition(topic, index)
        assert partition is not None
        for number in range(count):
            partition.append_records([(b"key", b"%d" % number)], NOW_MS)
        return partition

    def ask(self, api: ApiKey, request: Any, version: int | None = None) -> Any:
        """The reply that a client of that version gets, encoded and decoded on both sides."""
        version = API[api].max_version if version is None else version
        sent = b"".join(encode_request(api, version, 7, "test", request))
        frame = memoryview(bytearray(sent))[4:]
        header = read_request_header(frame)
        form = decode_request(api, version, frame, header.body_offset)
        handler = importlib.import_module(f"fencepost.broker.handlers.{api.name.lower()}")
        handled = handler.handle(form, self.context(version))
        # On a slow machine the request takes several turns.
        while isinstance(handled, Parked) and not handled.answered and self.turn():
            pass
        reply = answer_of(handled)
        answered = b"".join(encode_response(api, version, 7, reply))
        _, response = decode_response(api, version, memoryview(answered)[4:])
        return response


def answer_of(reply: object) -> Any:
    if isinstance(reply, Parked):
        assert reply.answered, "there is no reply yet"
        return reply.reply
    return reply


class Deny:
    """Denies the given operations and allows all others."""

    def __init__(self, *denied: tuple[str, str, str]) -> None:
        self._denied = set(denied)

    def authorize(
        self, principal: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        return (operation, resource_type, resource_name) not in self._denied
