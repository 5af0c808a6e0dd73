"""The parent of a cluster on a virtual loop and a disk in memory, with brokers that are simulated.

    stage = ParentStage().start()               three brokers serve
    stage.call(1, ApiKey.CREATE_TOPICS, 7, request)     as a client asks it at broker 1
    stage.kill_broker(2)                        its process is gone; the parent notices
    stage.die(); stage = stage.again()          the parent and all brokers end; the next start

`Parent`, its `ControllerNode` and its layout are real. A broker follows the metadata log
(`Following`), and opens, writes and closes real logs in the same directory, but it serves no
clients, and its disk calls neither fail nor count: only the parent's do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, cast

from fencepost.base.failures import StorageError
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.base.seams import Disk, Randomness
from fencepost.broker.metadata.effects import RETRY_OPEN_MS
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.broker_layout import BrokerLayout
from fencepost.broker.storage.parent_layout import ParentLayout
from fencepost.cluster import messages
from fencepost.cluster.broker.following import Following
from fencepost.cluster.messages import Kind
from fencepost.cluster.parent.broker_child import BrokerChild
from fencepost.cluster.parent.controller_node import CONTROLLER_ID, ControllerNode
from fencepost.cluster.parent.parent import BrokerState, Parent
from fencepost.cluster.parent.supervision import HEARTBEAT_MS
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionsCreated,
    TopicRemoved,
)
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.node_stage import FOLDER, DiskOfOneLife, LoopClock
from tests.broker.raw import frame_of
from tests.broker.requests import NOW_MS
from tests.broker.storage.cluster_stage import CONFIG, Process, process
from tests.broker.virtual_loop import VirtualLoop
from tests.partition.batches import client_batch

BROKERS: Final = (1, 2, 3)
SESSION_MS: Final = 9_000


class ParentDiedError(Exception):
    """The parent has ended, and all brokers with it."""


class SharedDisk(UnsyncedDisk):
    """A disk whose calls fail for the parent alone."""

    def __init__(self) -> None:
        super().__init__()
        self._is_quiet = False

    def call(self, kind: str) -> None:
        if not self._is_quiet:
            super().call(kind)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Calls of a broker."""
        was, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = was


class StageLink:
    """The parent's end of the link to a broker; it has the interface of `Link`."""

    def __init__(self, loop: Any, end: StageBroker, on_message: Any, on_end: Any) -> None:
        self._broker = end
        self.on_message = on_message
        self.on_end = on_end
        end.link = self

    def send(self, kind: int, body: Sequence[Any], files: Sequence[int] = ()) -> None:
        for file in files:
            os.close(file)
        self._broker.later(self._broker.receive, kind, memoryview(b"".join(body)))

    def close(self) -> None:
        self._broker.link = None


class StageBroker:
    """One broker process, from its start to its end; also the handle that the parent has of it."""

    def __init__(self, stage: ParentStage, broker_id: int, pid: int) -> None:
        self.stage = stage
        self.broker_id = broker_id
        self.pid = pid
        self.end = self
        self.link: StageLink | None = None
        self.code: int | None = None
        self.is_unreapable = False
        self.follower = MetadataFollower()
        self.following = Following(self.follower, self, self, lambda offset: None)
        self.process: Process | None = None
        self.answers: dict[int, Any] = {}
        self.answered: dict[int, asyncio.Future[Any]] = {}
        self.offline: set[TopicPartition] = set()
        """The partitions that it leads and could not open."""

    # -- the process, as the parent sees it (BrokerChild) ------------------------------------------

    def reap(self) -> int | None:
        return None if self.is_unreapable else self.code

    def wait(self, seconds: float) -> int | None:
        return self.reap()

    def processor_ms(self) -> int | None:
        return None

    def kill(self) -> None:
        self.exit(-9)

    def exit(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.stage.later(self._ended)

    def _ended(self) -> None:
        for future in self.answered.values():
            if not future.done():
                future.set_exception(ConnectionError("the broker has ended"))
        if self.link is not None:
            self.link.on_end()

    # -- messages ---------------------------------------------------------------------------------

    def later(self, callback: Callable[..., None], *given: Any) -> None:
        """Runs a callback of this process in the next turn, unless it has ended by then."""
        self.stage.later(self._run, callback, *given)

    def _run(self, callback: Callable[..., None], *given: Any) -> None:
        if self.code is None:
            with self.stage.disk.quiet():
                callback(*given)

    def send(self, kind: Kind, body: Sequence[Any] = ()) -> None:
        self.stage.later(self._deliver, kind, memoryview(b"".join(body)))

    def _deliver(self, kind: Kind, body: memoryview) -> None:
        if self.link is not None:
            self.link.on_message(int(kind), body, [])

    def receive(self, kind: int, body: memoryview) -> None:
        match kind:
            case Kind.START:
                port = 9091 + self.broker_id
                hello = {"ports": [port], "endpoints": [("PLAINTEXT", "localhost", port, 0)]}
                self.send(
                    Kind.HELLO, messages.encode_json({**hello, "address": f"localhost:{port}"})
                )
                self._beat()
            case Kind.STATE:
                self._load(messages.decode_batch(body))
            case Kind.RECORDS:
                self.following.receive(messages.decode_batch(body))
            case Kind.OPEN:
                self.following.may_open(messages.decode_offset(body))
            case Kind.ANSWER:
                answer = messages.decode_json(body)
                self.answered.pop(answer["number"]).set_result(answer["answer"])
            case Kind.REPLY:
                number, frame = messages.decode_reply(body)
                self.answered.pop(number).set_result(bytes(frame))
            case Kind.STOP:
                assert self.process is not None
                self.process.store.close_all(clean=True, settled=True)
                self.exit(0)
            case _:
                assert kind == Kind.PEER, kind

    def _beat(self) -> None:
        self.send(Kind.HEARTBEAT, messages.encode_heartbeat(has_offline=bool(self.offline)))
        self.stage.loop.call_later(HEARTBEAT_MS / 1000, self._run, self._beat)

    # -- the metadata log (following.Effects, following.Reports) ----------------------------------

    def _load(self, batch: messages.Batch) -> None:
        self.following.load(batch)
        if self.broker_id in self.stage.die_at_start:
            self.stage.die_at_start.discard(self.broker_id)
            self.exit(-9)
            return
        layout = BrokerLayout(self.stage.disk, FOLDER, self.broker_id, BROKERS)
        layout.load()
        self.process = process(self.stage.disk, layout)
        for topic, index, _ in self.follower.state.led_by(self.broker_id):
            self._open(topic.name, index)
        self.send(Kind.SERVING)

    def release(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        assert self.process is not None
        for effect in effects:
            match effect:
                case TopicRemoved(topic, count, topic_id):
                    for index in range(count):
                        self.process.store.delete(TopicPartition(topic, index), topic_id)
                case LeadersChanged(changes):
                    for change in changes:
                        if change.closes_at(self.broker_id):
                            self._close(TopicPartition(change.topic, change.partition))
        self.later(done)

    def open(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        assert self.process is not None
        self.process.store.refresh()
        for effect in effects:
            match effect:
                case PartitionsCreated(topic, first, count):
                    for index in range(first, first + count):
                        self._open(topic, index)
                case LeadersChanged(changes):
                    for change in changes:
                        self._open(change.topic, change.partition)
        self.later(done)

    def _open(self, topic: str, index: int) -> None:
        """Opens what it leads by now; the log must be as it was written."""
        name, state = TopicPartition(topic, index), self.follower.state
        assert self.process is not None
        self.offline.discard(name)
        if state.leader(topic, index) != self.broker_id or name in self.process.partitions.by_name:
            return
        assert not self.stage.holders(name), f"{name} is open twice"
        found = state.partition(topic, index)
        assert found is not None
        topic_id = state.topics[topic].topic_id
        try:
            if name in self.stage.unreadable:
                raise StorageError(f"{name} cannot be read")
            self.process.store.refresh()
            opened = self.process.store.open(name, topic_id, found.leader_epoch, CONFIG)
        except StorageError:  # Or the folder of another topic is there. It is tried again.
            self.offline.add(name)
            again = RETRY_OPEN_MS / 1000
            self.stage.loop.call_later(again, self._run, self._open, topic, index)
            return
        assert opened.log_end_offset == self.stage.written.get((topic_id, index), 0), name

    def _close(self, name: TopicPartition) -> None:
        assert self.process is not None
        self.offline.discard(name)
        partition = self.process.store.withdraw(name)
        if partition is None:
            return  # It has never been opened.
        outcome: list[Exception | None] = []
        steps = self.process.store.closing([partition])
        for wait in steps:
            while wait is not None:
                wait(outcome.append)
                try:
                    wait = steps.send(outcome.pop())
                except StopIteration:
                    return

    def released(self, end_offset: int) -> None:
        self.send(Kind.RELEASED, messages.encode_offset(end_offset))

    def done(self, end_offset: int) -> None:
        self.send(Kind.DONE, messages.encode_offset(end_offset))


class ParentStage:
    """One run of a parent with three brokers, until it stops or dies."""

    def __init__(
        self,
        disk: SharedDisk | None = None,
        *,
        durability: str = "os",
        randomness: CountingRandomness | None = None,
        now_ms: int = NOW_MS,
        written: dict[tuple[bytes, int], int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.disk = disk or SharedDisk()
        self.durability = durability
        self.randomness = randomness or CountingRandomness()
        self.written = {} if written is None else written
        """The end of each log that brokers have written, by topic id and index."""
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._on_problem)
        self.clock = LoopClock(self.loop, now_ms)
        self.unreadable: set[TopicPartition] = set()
        """Partitions that the disk does not let brokers open now."""
        self.die_at_start: set[int] = set()
        """Brokers whose next process dies before it opens anything."""
        self.fatal: list[str] = []
        self.problems: list[BaseException] = []
        self.processes: list[StageBroker] = []
        self._life = DiskOfOneLife(self.disk)
        self._numbers = itertools.count(1)
        own = {"log.dirs": FOLDER, "node.id": str(CONTROLLER_ID), "durability": durability}
        config = BrokerConfig({**own, **(settings or {})}, broker_count=len(BROKERS))
        host = PartitionHost(
            config,
            lambda disk: ParentLayout(disk, FOLDER),
            clock=self.clock,
            disk=cast("Disk", self._life),
            on_fatal=self._on_fatal,
        )
        self.node = ControllerNode(config, host, BROKERS, randomness=self.randomness)
        self.parent = Parent(
            self.loop,
            self.node,
            [BrokerState(each, {"ports": [0]}) for each in BROKERS],
            randomness=self.randomness,
            spawn=self._spawn,
            session_timeout_ms=SESSION_MS,
            announce=lambda addresses: None,
            make_link=cast("Any", StageLink),
        )
        self._running: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Loads the directory, and returns when all brokers serve."""
        self.loop.run_until_complete(self._load())
        self._running = self.loop.create_task(self.parent.run(()))
        self.advance(5_000)
        assert self.states() == ["serving"] * len(BROKERS), self.states()
        return self

    async def _load(self) -> None:
        self.node.attach(self.loop)
        self.node.load()
        self.node.host.removal.start(self.loop, self.node.host.layout.deleted_folders())

    def _spawn(self, broker_id: int) -> BrokerChild:
        made = StageBroker(self, broker_id, 1_000 + len(self.processes))
        self.processes.append(made)
        return cast("BrokerChild", made)

    # -- time -------------------------------------------------------------------------------------

    def later(self, callback: Callable[..., None], *given: Any) -> None:
        self.loop.call_soon(self._unless_dead, callback, *given)

    def _unless_dead(self, callback: Callable[..., None], *given: Any) -> None:
        if not self.is_dead:
            callback(*given)

    @property
    def is_dead(self) -> bool:
        """Whether the parent has ended, at a disk call or by itself."""
        died_at = self.disk._power_lost_at
        return bool(self.fatal) or (died_at is not None and self.disk.calls >= died_at)

    def advance(self, milliseconds: float) -> None:
        """Lets time pass; ParentDiedError if the parent dies."""
        until = self.loop.time() + milliseconds / 1000
        while self.loop.time() < until:
            self.loop.settle()
            if self.is_dead:
                raise ParentDiedError
            wait = min(HEARTBEAT_MS / 1000, until - self.loop.time())
            self.loop.run_until_complete(asyncio.sleep(wait))
        self.loop.settle()
        if self.is_dead:
            raise ParentDiedError

    # -- brokers ----------------------------------------------------------------------------------

    def states(self) -> list[str]:
        return [self.parent.describe(each)["state"] for each in self.parent.brokers.values()]

    def broker(self, broker_id: int) -> StageBroker | None:
        """The process of a broker that lives."""
        child = cast("StageBroker | None", self.parent.brokers[broker_id].child)
        return child if child is not None and child.code is None else None

    def living(self) -> list[StageBroker]:
        return [each for each in map(self.broker, BROKERS) if each is not None]

    def holders(self, name: TopicPartition) -> list[StageBroker]:
        """The living processes that have a partition open."""
        return [
            each
            for each in self.living()
            if each.process is not None and name in each.process.partitions.by_name
        ]

    def kill_broker(self, broker_id: int) -> None:
        broker = self.broker(broker_id)
        assert broker is not None
        broker.exit(-9)

    def write(self, topic: str, index: int) -> None:
        """A client writes a record to the leader of a partition, synced in fsync mode."""
        name = TopicPartition(topic, index)
        (holder,) = self.holders(name)
        assert holder.process is not None
        with self.disk.quiet():
            partition = holder.process.partitions.by_name[name]
            partition.append_from_client(client_batch(b"value"), 1_000)
            if self.durability == "fsync":
                partition.log.sync()
        self.written[partition.topic_id, index] = partition.log_end_offset

    # -- requests ---------------------------------------------------------------------------------

    def call(
        self,
        api: ApiKey,
        version: int,
        form: Any,
        *,
        at: int = 1,
        principal: str = "User:ANONYMOUS",
        listener: str = "PLAINTEXT",
    ) -> Any:
        """A client's request that a broker forwards."""
        number = next(self._numbers)
        frame = frame_of(api, version, form, number)
        body = messages.encode_request(number, "127.0.0.1", principal, listener, [frame])
        reply = self._ask(at, number, Kind.REQUEST, body)
        return decode_response(api, version, memoryview(reply))[1]

    def reserve(self, at: int = 1) -> range | None:
        """A block of producer ids for a broker."""
        number = next(self._numbers)
        body = messages.encode_json({"number": number, "reserve": True})
        block = self._ask(at, number, Kind.ASK, body)
        return None if block is None else range(*block)

    def _ask(self, at: int, number: int, kind: Kind, body: Sequence[Any]) -> Any:
        broker = self.broker(at) or self.living()[0]
        answer = broker.answered[number] = self.loop.create_future()
        broker.send(kind, body)
        for _ in range(600):
            self.advance(50)
            if answer.done():
                return answer.result()
        raise AssertionError("no answer within 30 s")

    # -- ends -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """A clean stop."""
        self.parent.stop()
        assert self._running is not None
        self.loop.run_until_complete(self._running)
        self.loop.run_until_complete(self.node.stop(was_begun=self.parent.is_begun))
        self._abandon()

    def die(self, *, loses_power: bool = False, randomness: Randomness | None = None) -> None:
        """Ends the parent and all brokers now; `loses_power` keeps only what was synced."""
        if self.disk._power_lost_at is None:
            self.disk.lose_power_at(1)
        self._abandon()
        if loses_power:
            self.disk.crash(randomness)
        else:
            self.disk.kill()

    def _abandon(self) -> None:
        if not self.loop.is_closed():
            if self._running is not None:
                self._running.cancel()
            self.loop.settle()
            self.loop.close()
            self._life.is_over = True

    def again(self) -> ParentStage:
        """The next start on the same disk."""
        return self.next_run().start()

    def next_run(self) -> ParentStage:
        """The next run on the same disk, which is not started yet."""
        return ParentStage(
            self.disk,
            durability=self.durability,
            randomness=self.randomness,
            now_ms=self.clock.now_ms() + 1,
            written=self.written,
        )

    def _on_fatal(self, reason: str) -> None:
        if not self.is_dead:
            self.fatal.append(reason)

    def _on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if problem is not None and not self.is_dead and not isinstance(problem, PowerLost):
            self.problems.append(problem)

    # -- what must be true ------------------------------------------------------------------------

    def check(self) -> None:
        """All brokers serve, know what the parent knows, and have open what they lead."""
        assert self.problems == []
        assert self.states() == ["serving"] * len(BROKERS), self.states()
        state = self.node.metadata
        assert state.active_nodes() == set(BROKERS)
        assert self.node.brokers.unfinished() == []
        for broker in self.living():
            # Blocks of producer ids reach it with the next other change.
            known = broker.follower.state
            assert known.topics == state.topics, broker.broker_id
            assert known.settings == state.settings, broker.broker_id
            assert known.brokers == state.brokers, broker.broker_id
        for topic in state.topics.values():
            for index, partition in enumerate(topic.partitions):
                holders = [
                    each.broker_id for each in self.holders(TopicPartition(topic.name, index))
                ]
                assert holders == [partition.leader] != [NO_NODE], (topic.name, index)
