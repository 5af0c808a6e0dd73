"""A cluster without a broker: decide, encode, decode, apply, and the resulting log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.metadata.apply import apply, load
from fencepost.coordinator.metadata.decide import decide_create_topic
from fencepost.coordinator.metadata.effects import effects_of
from fencepost.coordinator.metadata.events import CreateTopic, RegisterBroker
from fencepost.coordinator.metadata.registry import decide_register_broker
from fencepost.coordinator.metadata.state import Endpoint, MetadataState
from fencepost.records.entry import Entry
from fencepost.records.metadata_log import decode_record, encode_record

if TYPE_CHECKING:
    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.coordinator.metadata.events import Decision

FEATURES = {"metadata.version": 29, "transaction.version": 2}


@dataclass
class Cluster:
    """The controller's half of a broker."""

    state: MetadataState = field(default_factory=MetadataState)
    log: list[bytes] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    """What the last decision means for a broker that reads its records from the log."""
    topics_made: int = 0

    def take(self, decision: Decision) -> Decision:
        """Append and apply a decision, as the broker does."""
        batch = [encode_record(record) for record in decision.records]
        self.log += batch
        records = [decode_record(data) for data in batch]
        self.effects = effects_of(self.state, records)
        for record in records:
            apply(self.state, record)
        return decision

    def register(self, node_id: int = 1, port: int = 9092) -> Decision:
        event = RegisterBroker(
            node_id,
            len(self.log),
            bytes([node_id]) * 16,
            (Endpoint("PLAINTEXT", "localhost", port),),
            features=FEATURES,
        )
        return self.take(decide_register_broker(self.state, event))

    def create(
        self, name: str, partition_count: int = 1, settings: dict[str, str] | None = None
    ) -> Decision:
        decision = decide_create_topic(
            self.state,
            CreateTopic(name, self.new_topic_id(), partition_count, settings=settings or {}),
        )
        assert decision.error is ErrorCode.NONE, decision.message
        return self.take(decision)

    def new_topic_id(self) -> bytes:
        self.topics_made += 1
        return self.topics_made.to_bytes(16, "big")

    def reloaded(self) -> MetadataState:
        """The state after a restart."""
        state = MetadataState()
        load(state, entries(self.log))
        return state


def entries(log: list[bytes]) -> list[Entry]:
    return [Entry(offset, -1, -1, False, None, value) for offset, value in enumerate(log)]


def one_broker() -> Cluster:
    cluster = Cluster()
    cluster.register()
    return cluster
