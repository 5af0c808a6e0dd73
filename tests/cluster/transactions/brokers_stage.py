"""Several brokers on one virtual loop and one disk in memory, with simulated links between them.

    cluster = BrokersStage(brokers=3, topics={"t": (1, 2)})     broker 1 leads t-0, broker 2 t-1
    producer = cluster.producer("a", TV2)
    producer.send("t", b"x", index=1)
    cluster.kill(1); cluster.fail_over(1)

Each broker has the real services and handlers, and the real `cluster.peers`. The metadata is given
by hand: `change` appends a batch of records, and every broker that does not lag applies it, closes
what it has lost, and then opens what it leads. A link delivers its messages in their order, after a
delay; it can be held, and then keeps them as the socket of a process that does not read. A broker
that is killed does nothing more, but what it has sent may still be delivered.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Self, TextIO, cast

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.broker.authorization import AllowAll
from fencepost.broker.context import Context, Services
from fencepost.broker.dispatch import Handler
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.handlers import HANDLERS
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.network.memory import MemoryBudget
from fencepost.broker.partitions.batch_opener import Opener
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.peers import Answer, FirstWrite, PeerRequests
from fencepost.broker.runtime import Runtime
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.trace import Trace
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.broker.transactions.markers import EndMarker, MarkerWriter
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.broker.waiting import Parked
from fencepost.cluster.peers import Peers
from fencepost.log.config import LogConfig
from fencepost.log.opening import open_log
from fencepost.partition.partition import Partition
from fencepost.records.metadata_log import (
    FENCED,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from fencepost.simulation.disk import UnsyncedDisk
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.node_stage import LoopClock
from tests.broker.raw import ClosedError
from tests.broker.requests import NOW_MS
from tests.broker.virtual_loop import VirtualLoop
from tests.transactions.protocol import Protocol
from tests.transactions.wire import WireProducer

SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.dirs": "/data",
    "group.initial.rebalance.delay.ms": "0",
}
DELAY_MS: Final = 1.0
"""How long a message takes unless a test says otherwise."""
PATIENCE_MS: Final = 120_000


class Killed(BaseException):
    """The process of a broker ended here; nothing in it may catch that."""


class LifeLoop:
    """The loop as one process sees it: after its end, nothing of it runs."""

    def __init__(self, loop: VirtualLoop, broker: StageBroker) -> None:
        self._loop = loop
        self._broker = broker

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: Callable[..., None], *given: Any) -> asyncio.Handle:
        return self._loop.call_soon(self._broker.run, partial(callback, *given))

    def call_later(
        self, seconds: float, callback: Callable[..., None], *given: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._broker.run, partial(callback, *given))

    def run_in_executor(
        self, executor: None, function: Callable[..., Any], *given: Any
    ) -> LifeFuture:
        return LifeFuture(self._broker, self._loop.run_in_executor(executor, function, *given))


class LifeFuture:
    """The end of work in a thread, for a process that may be dead by then."""

    def __init__(self, broker: StageBroker, future: asyncio.Future[Any]) -> None:
        self._broker = broker
        self._future = future

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._future.add_done_callback(lambda done: self._broker.run(partial(callback, done)))


class LinkEnd:
    """One end of a simulated link; messages to it wait in `unread`."""

    def __init__(self, loop: VirtualLoop, broker: StageBroker) -> None:
        self._loop = loop
        self.broker = broker
        self.peer: LinkEnd
        self.unread: deque[tuple[int, bytes] | None] = deque()
        """None is the end of the link."""
        self.is_held = True
        """Whether nothing is read: not before it is opened, and when a test says so."""
        self.delay_ms: Callable[[], float] = lambda: DELAY_MS
        self._due = 0.0
        self._is_closed = False
        self._on_message: Any = None
        self._on_end: Any = None

    def open(self, on_message: Any, on_end: Any) -> LinkEnd:
        self._on_message, self._on_end = on_message, on_end
        self.release()
        return self

    def post(self, kind: int, body: bytes) -> None:
        if not (self._is_closed or self.broker.is_dead):
            self.peer.arrive((kind, body))

    def arrive(self, message: tuple[int, bytes] | None) -> None:
        self.unread.append(message)
        self._due = max(self._due, self._loop.time() + self.delay_ms() / 1000)
        self._loop.call_at(self._due, self._read)

    def _read(self) -> None:
        if self.is_held or self._is_closed or self.broker.is_dead or not self.unread:
            return
        message = self.unread.popleft()
        if message is None:
            self._is_closed = True
            self.broker.run(self._on_end)
        else:
            kind, body = message
            self.broker.run(partial(self._on_message, kind, memoryview(body), []))

    def release(self) -> None:
        """Reads again: all that has arrived, in its order."""
        self.is_held = False
        for _ in range(len(self.unread)):
            self._loop.call_soon(self._read)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.unread.clear()
            self.peer.arrive(None)


Served = FirstWrite | tuple[EndMarker, list[TopicPartition]]
"""A request between brokers: a verification, or a marker and its partitions."""


class NotedRequests:
    """Serves the requests of peers, and notes them."""

    def __init__(
        self,
        services: Services,
        broker_id: int,
        served: list[tuple[int, Served]],
        trace: Trace | None,
    ) -> None:
        self._requests = PeerRequests(services, trace)
        self._broker_id = broker_id
        self._served = served

    def verify(self, number: int, write: FirstWrite, answer: Answer) -> None:
        self._served.append((self._broker_id, write))
        self._requests.verify(number, write, answer)

    def write_marker(
        self, number: int, marker: EndMarker, names: Sequence[TopicPartition], answer: Answer
    ) -> Callable[[], None] | None:
        self._served.append((self._broker_id, (marker, list(names))))
        return self._requests.write_marker(number, marker, names, answer)


class StageBroker:
    """One broker, from its start to its death."""

    def __init__(self, cluster: BrokersStage, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.is_dead = False
        self.is_lagging = False
        """Whether it does not apply the metadata log now."""
        self.applied = 0
        """The batches of the metadata log that it has applied."""
        self.links: dict[int, LinkEnd] = {}
        self.new_links: dict[int, LinkEnd] = {}
        """Ends of links to brokers whose registration it has not applied."""
        self.points: list[str] = []
        self._kill_at: tuple[str, int] | None = None
        self._calls: list[Call] = []
        loop = cast("asyncio.AbstractEventLoop", LifeLoop(cluster.loop, self))
        config = BrokerConfig(
            {
                **SETTINGS,
                **cluster.settings,
                "node.id": str(broker_id),
                "durability": cluster.durability,
            }
        )
        self.partitions = LocalPartitions(
            fsync=cluster.durability == "fsync", on_fatal=cluster.fatal.append
        )
        self.runtime = Runtime(cluster.clock, cluster.disk, self.partitions)
        self.runtime.attach(loop)
        self.runtime.crash_points = self._reach
        self.partitions.attach(loop)
        self.follower = MetadataFollower()
        self.metadata = self.follower.state
        self.peers = Peers(loop, lambda: self._requests, self._applied_offset)
        self.groups = GroupCoordinator(self.runtime, config, cluster.randomness, self.metadata)
        markers = MarkerWriter(
            self.runtime, self.partitions, self.metadata, self.groups, self.peers, broker_id
        )
        self.transactions = TransactionCoordinator(
            self.runtime,
            config,
            self.metadata,
            ProducerIds(cluster.reserve_block),
            markers,
            self.peers,
        )
        nothing: Any = None
        opener = Opener(cluster.fatal.append)
        opener.attach(loop)
        self.services = Services(
            runtime=self.runtime,
            config=config,
            authorizer=AllowAll(),
            audit=nothing,
            partitions=self.partitions,
            batch_opener=opener,
            replies=MemoryBudget(config.queued_max_response_bytes),
            layout=nothing,
            follower=self.follower,
            controller=nothing,
            internal_topics=cast("Any", SimpleNamespace(ensure=lambda topic: None)),
            groups=self.groups,
            transactions=self.transactions,
            markers=markers,
            housekeeping=nothing,
        )
        self._requests = NotedRequests(self.services, broker_id, cluster.served, cluster.trace)

    # -- life and death ----------------------------------------------------------------------------

    def run(self, callback: Callable[[], None]) -> None:
        """Runs a callback of this process, unless it is dead."""
        if self.is_dead:
            return
        try:
            callback()
        except Killed:
            assert self.is_dead

    def kill_at(self, point: str, ordinal: int = 1) -> None:
        """Kills this process when it reaches a point for the n-th time."""
        self._kill_at = point, ordinal

    def _reach(self, point: str) -> None:
        self.points.append(point)
        if self._kill_at == (point, self.points.count(point)):
            self.die()
            raise Killed

    def die(self) -> None:
        self.is_dead = True
        for end in (*self.links.values(), *self.new_links.values()):
            end.peer.arrive(None)
        for call in self._calls:
            call.lost()

    def connect(self, broker_id: int, end: LinkEnd) -> None:
        self.links[broker_id] = end
        self.peers.attach(broker_id, end.open)

    # -- the metadata log --------------------------------------------------------------------------

    def _applied_offset(self) -> int:
        return self.applied if self.cluster.has_offset_rule else 0

    def apply(self, records: Sequence[MetadataRecord]) -> None:
        """Applies one batch: fences, closes what this broker has lost, serves what has waited."""
        removed = [
            self.metadata.topics_by_id[bytes(record.topic_id)].name
            for record in records
            if isinstance(record, RemoveTopicRecord)
        ]
        self.follower.apply(records)
        for record in records:
            if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced == FENCED:
                self.peers.disconnect(record.broker_id)
                self.links.pop(record.broker_id, None)
            elif isinstance(record, RegisterBrokerRecord) and record.broker_id in self.new_links:
                self.connect(record.broker_id, self.new_links.pop(record.broker_id))
        for name, partition in list(self.partitions.by_name.items()):
            topic = self.metadata.topics_by_id.get(partition.topic_id)
            if topic is None or topic.partitions[name.partition].leader != self.broker_id:
                self._close(name)
        for topic_name in removed:
            for work in self.groups.forgetting([topic_name]):
                work()
        self.applied += 1
        self.peers.applied(self.applied)

    def _close(self, name: TopicPartition) -> None:
        if name.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.unload(name.partition)
        elif name.topic == CONSUMER_OFFSETS_TOPIC:
            self.groups.unload(name.partition)
        partition = self.partitions.by_name[name]
        if self.partitions.fsync:
            partition.log.sync()
        self.partitions.remove(name)
        partition.close(clean=False)

    def open(self, name: TopicPartition) -> None:
        """Opens a partition that this broker leads, and loads its coordinator."""
        topic = self.metadata.topics[name.topic]
        cluster = self.cluster
        log = open_log(
            cluster.disk,
            f"/data/{name}-{topic.topic_id.hex()}",
            LogConfig(),
            now_ms=cluster.clock.now_ms(),
            clean=False,
            log_start_offset=0,
            lost_power=False,
        )
        fsync = self.partitions.fsync
        if fsync:
            log.sync()
        epoch = topic.partitions[name.partition].leader_epoch
        partition = Partition(name, topic.topic_id, epoch, log, durable_at_append=not fsync)
        self.partitions.add(partition)
        if name.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.load(name.partition, partition)
        elif name.topic == CONSUMER_OFFSETS_TOPIC:
            self.groups.load(name.partition, partition)

    # -- clients -----------------------------------------------------------------------------------

    def send(self, api: ApiKey, version: int, form: Any) -> Call:
        """Sends a request of a client; the reply comes later."""
        call = Call(api, version)
        if self.is_dead:
            call.lost()
            return call
        frame = memoryview(bytearray(b"".join(encode_request(api, version, 7, "client", form))))[4:]
        header = read_request_header(frame)
        request = decode_request(API[api], version, frame, header.body_offset)
        context = Context(self.services, version, "client", "127.0.0.1")
        self._calls.append(call)
        self.run(partial(self._handle, handler_of(api), request, context, call))
        return call

    def _handle(self, handle: Handler, request: Any, context: Context, call: Call) -> None:
        reply = handle(request, context)
        if isinstance(reply, Parked):
            reply.when_answered(call.answer)
        else:
            call.answer(reply)

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        return self.cluster.wait_for(self.send(api, version, form))


def handler_of(api: ApiKey) -> Handler:
    handle: Handler = importlib.import_module(f"fencepost.broker.handlers.{HANDLERS[api]}").handle
    return handle


class Call:
    """A request of a client and its reply."""

    def __init__(self, api: ApiKey, version: int) -> None:
        self._api, self._version = api, version
        self.reply: Any = None
        self.is_lost = False

    @property
    def is_done(self) -> bool:
        return self.is_lost or self.reply is not None

    def answer(self, reply: Any) -> None:
        if self.is_lost:
            return
        data = b"".join(encode_response(self._api, self._version, 7, reply))
        self.reply = decode_response(self._api, self._version, memoryview(data)[4:])[1]

    def lost(self) -> None:
        """The connection has ended; a reply that has arrived stays."""
        if self.reply is None:
            self.is_lost = True


class BrokersStage:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        brokers: int = 2,
        topics: Mapping[str, Sequence[int]] | None = None,
        transactions: Sequence[int] = (1,),
        offsets: Sequence[int] = (),
        durability: str = "os",
        settings: Mapping[str, str] | None = None,
        has_offset_rule: bool = True,
        trace: TextIO | None = None,
    ) -> None:
        """`topics`, `transactions` and `offsets` name the leader of each partition."""
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._on_problem)
        self.clock = LoopClock(self.loop, NOW_MS)
        self.disk = UnsyncedDisk()
        self.randomness = CountingRandomness()
        self.durability = durability
        self.settings = settings or {}
        self.has_offset_rule = has_offset_rule
        self.trace = None if trace is None else Trace(lambda: self.clock.now_ms() * 1000, trace)
        self.fatal: list[str] = []
        self.problems: list[BaseException] = []
        self.served: list[tuple[int, Served]] = []
        """What brokers have served for each other, with the id of the one that served."""
        self.log: list[list[MetadataRecord]] = []
        self.delay_ms: Callable[[], float] = lambda: DELAY_MS
        self._next_producer_id = 1_000
        self.brokers: dict[int, StageBroker] = {}
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)
        self.create(TRANSACTION_STATE_TOPIC, transactions)
        if offsets:
            self.create(CONSUMER_OFFSETS_TOPIC, offsets)
        for name, leaders in (topics or {"t": (2,)}).items():
            self.create(name, leaders)

    # -- brokers -----------------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        """Starts a broker, or starts a dead one again; it leads nothing yet."""
        others = self.living()
        broker = self.brokers[broker_id] = StageBroker(self, broker_id)
        for records in self.log:
            broker.apply(records)
        for other in others:
            here, there = LinkEnd(self.loop, broker), LinkEnd(self.loop, other)
            here.peer, there.peer = there, here
            for end in (here, there):
                end.delay_ms = lambda: self.delay_ms()
            broker.connect(other.broker_id, here)
            # The other broker gets its end after all records from before this start.
            other.new_links[broker_id] = there
        self.change(
            RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=self.randomness.bytes(16),
                broker_epoch=len(self.log),
                fenced=False,
            )
        )

    def living(self) -> list[StageBroker]:
        return [each for each in self.brokers.values() if not each.is_dead]

    def kill(self, broker_id: int) -> None:
        self.brokers[broker_id].die()

    def link(self, sender: int, receiver: int) -> LinkEnd:
        """The end of a link at its receiver."""
        return self.brokers[sender].links[receiver].peer

    def reserve_block(self, done: Callable[[range | None], None]) -> None:
        first = self._next_producer_id
        self._next_producer_id += 1_000
        done(range(first, first + 1_000))

    # -- the metadata log --------------------------------------------------------------------------

    def change(self, *records: MetadataRecord) -> None:
        """Appends a batch; every broker that does not lag applies it."""
        self.log.append(list(records))
        self.follow()

    def follow(self) -> None:
        """Brokers apply what they have not applied; leaders open what all others have closed."""
        for broker in self.living():
            while not broker.is_lagging and broker.applied < len(self.log):
                broker.run(partial(broker.apply, self.log[broker.applied]))
        for broker in self.living():
            for topic, index, _ in list(broker.metadata.led_by(broker.broker_id)):
                name = TopicPartition(topic.name, index)
                if not any(self._has(each, name, topic.topic_id) for each in self.living()):
                    broker.run(partial(broker.open, name))

    def _has(self, broker: StageBroker, name: TopicPartition, topic_id: bytes) -> bool:
        partition = broker.partitions.by_name.get(name)
        return partition is not None and partition.topic_id == topic_id

    def lag(self, broker_id: int) -> None:
        self.brokers[broker_id].is_lagging = True

    def catch_up(self, broker_id: int) -> None:
        self.brokers[broker_id].is_lagging = False
        self.follow()

    def create(self, name: str, leaders: Sequence[int]) -> None:
        topic_id = self.randomness.bytes(16)
        everyone = sorted(self.brokers)
        self.change(
            TopicRecord(name=name, topic_id=topic_id),
            *(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=everyone,
                    isr=everyone,
                    leader=leader,
                    leader_epoch=0,
                    partition_epoch=0,
                )
                for index, leader in enumerate(leaders)
            ),
        )

    def delete(self, name: str) -> None:
        self.change(RemoveTopicRecord(topic_id=self._topic(name).topic_id))

    def move(self, name: str, index: int, leader: int) -> None:
        """Gives a partition to another broker, or to none (-1)."""
        self.change(
            PartitionChangeRecord(
                partition_id=index, topic_id=self._topic(name).topic_id, leader=leader
            )
        )

    def fail_over(self, broker_id: int, *, leader: int | None = None) -> None:
        """Fences a dead broker; another one leads its partitions."""
        assert self.brokers[broker_id].is_dead
        living = [each.broker_id for each in self.living()]
        state = self._newest()
        lost = [(topic.topic_id, index) for topic, index, _ in state.led_by(broker_id)]
        self.change(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=state.brokers[broker_id].epoch, fenced=FENCED
            ),
            *(
                PartitionChangeRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    leader=living[number % len(living)] if leader is None else leader,
                )
                for number, (topic_id, index) in enumerate(lost)
            ),
        )

    def _newest(self) -> Any:
        return max(self.living(), key=lambda each: each.applied).metadata

    def _topic(self, name: str) -> Any:
        return self._newest().topics[name]

    def leader(self, name: str, index: int = 0) -> StageBroker | None:
        """The living leader of a partition."""
        broker_id = self._newest().leader(name, index)
        if broker_id == NO_NODE or self.brokers[broker_id].is_dead:
            return None
        return self.brokers[broker_id]

    def coordinator(self, transactional_id: str) -> StageBroker | None:
        count = self._newest().partition_count(TRANSACTION_STATE_TOPIC)
        return self.leader(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, count))

    def group_coordinator(self, group: str) -> StageBroker | None:
        count = self._newest().partition_count(CONSUMER_OFFSETS_TOPIC)
        return self.leader(CONSUMER_OFFSETS_TOPIC, coordinator_partition(group, count))

    # -- time --------------------------------------------------------------------------------------

    def advance(self, milliseconds: float) -> None:
        """Lets time pass."""
        self.loop.run_until_complete(asyncio.sleep(milliseconds / 1000))
        self.loop.settle()

    def settle(self) -> None:
        """A client's pause before it tries again."""
        self.advance(20)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until something is so."""
        for _ in range(PATIENCE_MS):
            self.loop.settle()
            if condition():
                return
            self.advance(1)
        raise AssertionError("it never happened")

    def wait_for(self, call: Call) -> Any:
        """The reply to a request; ClosedError if its broker dies first."""
        self.wait_until(lambda: call.is_done)
        if call.is_lost:
            raise ClosedError
        return call.reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self.loop.settle()
        self.loop.close()
        if kind is None:
            assert not self.fatal, self.fatal
            assert not self.problems, self.problems

    def _on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(context.get("exception") or AssertionError(context["message"]))

    # -- clients -----------------------------------------------------------------------------------

    def send(self, api: ApiKey, version: int, form: Any) -> Call:
        """Sends a request to the broker that serves it; without one, the connection fails."""
        broker = self._route(api, form)
        if broker is None:
            call = Call(api, version)
            call.lost()
            return call
        return broker.send(api, version, form)

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        if api is ApiKey.FIND_COORDINATOR:
            (key,) = form.coordinator_keys
            find = self.coordinator if form.key_type else self.group_coordinator
            error = ErrorCode.NONE if find(key) else ErrorCode.COORDINATOR_NOT_AVAILABLE
            return SimpleNamespace(coordinators=[SimpleNamespace(error_code=error)])
        return self.wait_for(self.send(api, version, form))

    def _route(self, api: ApiKey, form: Any) -> StageBroker | None:
        match api:
            case ApiKey.PRODUCE:
                (topic,) = form.topic_data
                return self.leader(topic.name, topic.partition_data[0].index)
            case ApiKey.FETCH:
                (topic,) = form.topics
                return self.leader(topic.topic, topic.partitions[0].partition)
            case ApiKey.LIST_OFFSETS:
                (topic,) = form.topics
                return self.leader(topic.name, topic.partitions[0].partition_index)
            case ApiKey.TXN_OFFSET_COMMIT:
                return self.group_coordinator(form.group_id)
            case ApiKey.OFFSET_FETCH:
                return self.group_coordinator(form.groups[0].group_id)
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                return self.coordinator(form.transactions[0].transactional_id)
            case ApiKey.DESCRIBE_TRANSACTIONS:
                return self.coordinator(form.transactional_ids[0])
            case _:
                return self.coordinator(form.transactional_id)

    def producer(self, transactional_id: str, protocol: Protocol) -> WireProducer:
        return WireProducer(self, transactional_id, protocol).initialise()

    # -- results -----------------------------------------------------------------------------------

    def markers(self, topic: str, index: int = 0) -> list[tuple[bool, int, int]]:
        """(commit, producer epoch, coordinator epoch) of every marker in a partition."""
        broker = self.leader(topic, index)
        assert broker is not None
        partition = broker.partitions.get(topic, index)
        assert partition is not None
        return [
            (entry.marker.commit, entry.producer_epoch, entry.marker.coordinator_epoch)
            for entry in partition.entries()
            if entry.marker is not None
        ]

    def open_transactions(self) -> list[str]:
        """Partitions with an open transaction, and ids that are not complete."""
        found = []
        for broker in self.living():
            for name, partition in broker.partitions.by_name.items():
                if partition.last_stable_offset < partition.log_end_offset:
                    found.append(str(name))
            for coordinator in broker.transactions.coordinators():
                found += coordinator.state.open
        return found
