"""A controller and its broker without sockets and a loop: the test runs turns, timers and syncs."""

from __future__ import annotations

import hashlib
import importlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError, SyncError
from fencepost.broker.authorization import AllowAll
from fencepost.broker.context import Context, Services
from fencepost.broker.controller.controller import Controller, Outcome
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.controller_port import InternalTopics
from fencepost.broker.coordinators.by_topic import Coordinators
from fencepost.broker.coordinators.log_loader import LoadQueue
from fencepost.broker.metadata.effects import MetadataEffects
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.security.audit import Audit
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.identity import load_identity
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.partition_store import PartitionStore
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.broker.turns import Line
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.registry import decide_bump_leader_epochs
from fencepost.coordinator.metadata.state import Endpoint
from fencepost.log.segment.open_segments import OpenSegments
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
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.housekeeping import Housekeeping
    from fencepost.log.config import LogConfig
    from fencepost.partition.partition import Partition
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

    def load(self, index: int, partition: Partition, *, held: bool) -> None:
        assert not held
        self.loaded.append(index)

    def unload(self, index: int) -> None:
        if index in self.loaded:
            self.loaded.remove(index)


class StubFlusher:
    """A disk that never loses power needs nothing."""

    def written(self, partition: Partition) -> None: ...

    def sealed(self, partition: Partition) -> None: ...

    def save_closed(self, partitions: Mapping[Partition, bool], done: Callable[[], None]) -> None:
        done()


class StubRemoval:
    """Leaves the folders of deleted partitions where they are."""

    def add(self, folders: Iterable[str]) -> None: ...


def _refused() -> Generator[None, None, Partition]:
    yield from ()
    raise StorageError("no room")


class StageStore(PartitionStore):
    """A store that refuses to open partitions when the test says so."""

    is_refusing = False

    def opening(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Generator[None, None, Partition]:
        return (
            _refused()
            if self.is_refusing
            else super().opening(name, topic_id, leader_epoch, config)
        )


class StageRuntime:
    """Turns and timers that the test runs, and syncs that it decides on."""

    def __init__(self, disk: UnsyncedDisk, *, fsync: bool) -> None:
        self.disk = disk
        self.clock = Clock()
        self.line = Line(self)  # type: ignore[arg-type]
        self.loads = LoadQueue(self)  # type: ignore[arg-type]
        self._fsync = fsync
        self.timers: list[Callable[[], None]] = []
        self._next_turns: list[Callable[[], None]] = []
        self._waiting: list[tuple[Partition, int, Callable[[], None]]] = []

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        (self.timers if delay_ms else self._next_turns).append(callback)

    def when_durable(
        self, partition: Partition, end_offset: int, callback: Callable[[], None]
    ) -> None:
        if not self._fsync or partition.high_watermark >= end_offset:
            callback()
        else:
            self._waiting.append((partition, end_offset, callback))

    def turn(self) -> bool:
        """One turn of the loop; False when there was nothing to do in it."""
        turns, self._next_turns = self._next_turns, []
        for callback in turns:
            callback()
        return bool(turns)

    def fire_timers(self) -> None:
        """The time of every timer has come."""
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()

    def sync(self) -> None:
        """The disk has everything; what waited for it continues."""
        waiting, self._waiting = self._waiting, []
        for partition, end_offset, _ in waiting:
            durable = partition.log.sync()
            assert durable >= end_offset
            partition.advance_high_watermark(durable)
        for _, _, callback in waiting:
            callback()


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
    """The controller and a broker that follows it; the coordinators only record their calls."""

    groups: Any
    transactions: Any
    markers: Any = None
    runtime: Any

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        disk: UnsyncedDisk | None = None,
        randomness: CountingRandomness | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.config = BrokerConfig({"log.dirs": "/data", **(settings or {})})
        self.disk = disk or UnsyncedDisk()
        self.randomness = randomness or CountingRandomness()
        self.fatal_reasons: list[str] = []
        self.background = StubBackground(self.fatal_reasons.append)
        self.layout = Layout(self.disk, self.config.data)
        self.partitions = LocalPartitions(
            fsync=self.config.durability == "fsync", on_fatal=self.fatal_reasons.append
        )
        self.runtime = self.new_runtime()
        flusher: Any = StubFlusher()
        removal: Any = StubRemoval()
        background: Any = self.background
        self.store = StageStore(
            self.runtime, self.layout, self.partitions, OpenSegments(), flusher, background, removal
        )
        self.follower = MetadataFollower()
        self.metadata = self.follower.state
        self.log = MetadataLog(
            self.runtime, self.layout, self.store, background, flusher, self.follower
        )
        self.controller = Controller(
            self.runtime, self.config, self.randomness, self.layout, self.log, self.follower
        )
        self.producer_ids = ProducerIds(self.controller.reserve_block)
        self.add_coordinators()
        self.coordinators = Coordinators(
            self.metadata, self.partitions, self.groups, self.transactions
        )
        self.effects = MetadataEffects(
            self.runtime,
            self.config,
            self.follower,
            self.store,
            self.partitions,
            self.groups,
            self.coordinators,
        )
        self.follower.attach(self.effects)
        self.internal_topics = InternalTopics(self.metadata, self.controller)
        self._authorizer = authorizer or AllowAll()

    @cached_property
    def services(self) -> Services:
        """For handlers; a compiled `Services` takes no stand-ins."""
        unused: Any = None
        return Services(
            runtime=self.runtime,
            config=self.config,
            authorizer=self._authorizer,
            audit=Audit(self.runtime, self.config, self.metadata.acls),
            partitions=self.partitions,
            batch_opener=unused,
            replies=unused,
            layout=self.layout,
            follower=self.follower,
            controller=self.controller,
            internal_topics=self.internal_topics,
            groups=self.groups,
            transactions=self.transactions,
            markers=self.markers,
            housekeeping=cast("Housekeeping", StubHousekeeping()),
        )

    def new_runtime(self) -> Any:
        return StageRuntime(self.disk, fsync=self.partitions.fsync)

    def add_coordinators(self) -> None:
        self.groups = Coordinator()
        self.transactions = Coordinator()

    def start(self, *, host: str = "localhost", port: int = 9092) -> Self:
        self.layout.load()
        identity = load_identity(self.disk, self.config.data, self.config.node_id, self.randomness)
        self.follower.cluster_id = identity.cluster_id
        self.controller.load()
        self.effects.open_all()
        if not self.layout.clean:
            self.controller.raise_epochs_above(self.effects.logged_epochs())
        self.controller.register([Endpoint("PLAINTEXT", host, port)])
        self.coordinators.load_all()
        return self

    def halt(self) -> None:
        """Ends work that takes several turns, as the first step of a stop."""
        self.controller.stop()
        self.effects.stop()

    def stop(self, *, clean: bool = True) -> None:
        self.store.close_all(clean=clean, settled=True)

    def restarted(self, *, clean: bool = True, **settings: str) -> StubNode:
        """The next run on the same disk."""
        self.stop(clean=clean)
        given = {**self.config.static, **{k.replace("_", "."): v for k, v in settings.items()}}
        return StubNode(given, disk=self.disk, randomness=self.randomness).start()

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get(topic, index)

    def turn(self) -> bool:
        """One turn of the loop; False when there was nothing to do in it."""
        return bool(self.runtime.turn())

    def sync(self) -> None:
        """The disk has everything; what waited for it continues."""
        self.runtime.sync()

    # -- for tests

    def context(self, version: int = 99) -> Context:
        return Context(self.services, version, "test", "127.0.0.1")

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
        self, principal: str, host: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        return (operation, resource_type, resource_name) not in self._denied

    def authorize_by_type(
        self, principal: str, host: str, operation: str, resource_type: str
    ) -> bool:
        return True


def bump_leader_epochs(
    controller: Controller,
    partitions: Iterable[TopicPartition],
    done: Callable[[ErrorCode], None] = lambda _: None,
) -> None:
    """Raises leader epochs without a change of leader, as no broker does while it runs."""
    decision, effects = controller._append(decide_bump_leader_epochs(controller._state, partitions))
    controller._log.finish(effects, lambda: done(decision.error))
