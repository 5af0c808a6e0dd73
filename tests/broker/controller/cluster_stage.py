"""The controller of several brokers: brokers are stand-ins that finish when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from fencepost.base.errors import ErrorCode
from fencepost.broker.controller.controller import Controller
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.identity import load_identity
from fencepost.coordinator.metadata.events import RegisterBroker
from fencepost.coordinator.metadata.state import Endpoint
from tests.broker.controller.topics_stage import StageRuntime, StubFlusher, StubNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.controller.controller import Outcome
    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.coordinator.metadata.state import PartitionState
    from fencepost.simulation.disk import UnsyncedDisk


class Timer:
    """A timer that the test runs; one that was cancelled is gone."""

    def __init__(
        self, runtime: ClusterRuntime, delay_ms: float, callback: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self.delay_ms = delay_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None
        if self in self._runtime.timers:
            self._runtime.timers.remove(self)

    def __call__(self) -> None:
        if self.callback is not None:
            self.callback()


class ClusterRuntime(StageRuntime):
    """Timers can be cancelled, as deadlines are.

    A request that is answered in the turn in which it came sets no deadline. On a slow machine it
    takes several turns, sets one, and cancels it.
    """

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Any:
        timer = Timer(self, delay_ms, callback)
        super().call_later(delay_ms, timer)
        return timer


class HeldFollower(MetadataFollower):
    """Stands for all brokers; while `is_held` is set, they carry out nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.held: list[Callable[[], None]] = []
        self.carried_out: list[Effect] = []

    def carry_out(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        self.carried_out += effects
        if self.is_held:
            self.held.append(done)
        else:
            done()

    def finish(self) -> None:
        """The brokers carry out everything."""
        held, self.held = self.held, []
        for done in held:
            done()


class ClusterStage(StubNode):
    """A controller that opens no partition, for brokers that the test registers."""

    follower: HeldFollower

    def __init__(
        self,
        *broker_ids: int,
        settings: Mapping[str, str] | None = None,
        disk: UnsyncedDisk | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        super().__init__(settings, disk=disk, authorizer=authorizer)
        self.broker_ids = broker_ids
        self.config = BrokerConfig(self.config.static, broker_count=len(broker_ids))
        self.follower = HeldFollower()
        self.metadata = self.follower.state
        background: Any = self.background
        flusher: Any = StubFlusher()
        self.log = MetadataLog(
            self.runtime, self.layout, self.store, background, flusher, self.follower
        )
        self.controller = Controller(
            self.runtime,
            self.config,
            self.randomness,
            self.layout,
            self.log,
            self.follower,
            broker_ids=broker_ids,
        )

    def new_runtime(self) -> Any:
        return ClusterRuntime(self.disk, fsync=self.partitions.fsync)

    def start(self, *, host: str = "localhost", port: int = 9092) -> Self:
        """Loads the metadata log and registers all brokers."""
        self.load()
        for node_id in self.broker_ids:
            self.register(node_id, host, port + node_id - 1)
        return self

    def load(self) -> Self:
        """Loads the metadata log; no broker runs yet."""
        self.layout.load()
        load_identity(self.disk, self.config.data, self.config.node_id, self.randomness)
        self.controller.load()
        return self

    def register(
        self, node_id: int, host: str = "localhost", port: int = 9092, *, fenced: bool = False
    ) -> ErrorCode:
        event = RegisterBroker(
            node_id,
            epoch=-1,
            incarnation_id=bytes([node_id]) * 16,
            endpoints=(Endpoint("PLAINTEXT", host, port),),
            fenced=fenced,
        )
        return self.done(lambda answer: self.controller.register_broker(event, answer))

    def done(self, request: Callable[[Callable[[ErrorCode], None]], object]) -> ErrorCode:
        """The result of a request that is done in this turn."""
        heard: list[ErrorCode] = []
        request(heard.append)
        (error,) = heard
        return error

    def assign(self, name: str, *replicas: Sequence[int]) -> Outcome:
        """Creates a topic with these replicas for its partitions."""
        (outcome,) = self.create(NewTopic(name, assignments=list(enumerate(replicas))))
        assert outcome.error is ErrorCode.NONE, outcome.message
        return outcome

    def state_of(self, topic: str, index: int = 0) -> PartitionState:
        found = self.metadata.partition(topic, index)
        assert found is not None, f"{topic}-{index} does not exist"
        return found

    def leaders(self, topic: str) -> list[int]:
        return [partition.leader for partition in self.metadata.topics[topic].partitions]

    def served_by(self, *broker_ids: int, clean: bool = True) -> ClusterStage:
        """The next start on the same directory, with these brokers."""
        self.stop(clean=clean)
        return ClusterStage(*broker_ids, settings=self.config.static, disk=self.disk)
