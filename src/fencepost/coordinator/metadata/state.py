"""The state of the metadata log, and its lookups. Only `apply.py` changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fencepost.base.ids import INTERNAL_TOPICS, NO_NODE
from fencepost.base.scram import Credential
from fencepost.base.topic_names import collision_key
from fencepost.coordinator.acl.state import AclState

NO_SETTINGS: Mapping[str, str] = {}


class Endpoint(NamedTuple):
    """The address of a broker for the clients of one of its listeners."""

    name: str
    """The name of the listener."""
    host: str
    port: int
    security_protocol: int = 0
    """Kafka's number of the listener's protocol; 0 is PLAINTEXT."""


class Broker(NamedTuple):
    """A registered broker."""

    node_id: int
    epoch: int
    """The offset of its registration, so every restart has a larger one."""
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    """Dead, or not ready yet."""
    in_controlled_shutdown: bool = False
    """About to stop; it stays so until it registers again."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address for the clients of a listener; None if it has no listener of this name."""
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return endpoint
        return None

    @property
    def is_suspended(self) -> bool:
        """Killed, but its process has not ended: it is about to stop, and has no address."""
        return self.in_controlled_shutdown and not self.fenced and not self.endpoints


class PartitionState(NamedTuple):
    """One partition: its replicas, its leader and their epochs."""

    leader: int
    """-1 if no replica is alive, or if the last leader is suspended."""
    leader_epoch: int
    """Grows when a leader is set."""
    partition_epoch: int
    """Grows with every change."""
    replicas: tuple[int, ...]
    """The brokers that may lead it, the preferred leader first."""
    isr: tuple[int, ...]
    """The live replicas, in their order; without a leader, the last one that was in sync."""


class Topic:
    """A topic and its partitions, by index."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: list[PartitionState] = []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topic):
            return NotImplemented
        return (self.name, self.topic_id, self.partitions) == (
            other.name,
            other.topic_id,
            other.partitions,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Topic({self.name}, {len(self.partitions)} partitions, id {self.topic_id.hex()})"

    @property
    def is_internal(self) -> bool:
        """Whether the broker itself uses the topic."""
        return self.name in INTERNAL_TOPICS


class MetadataState:
    """The cluster as the metadata log describes it."""

    __slots__ = (
        "acls",
        "brokers",
        "features",
        "leader_counts",
        "names_by_collision_key",
        "next_producer_id",
        "settings",
        "topics",
        "topics_by_id",
        "users",
        "version",
    )

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}
        self.settings: dict[tuple[int, str], dict[str, str]] = {}
        """By type and name of the resource."""
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.acls = AclState()
        self.users: dict[str, dict[int, Credential]] = {}
        """The users of SCRAM: their credentials by the number of the mechanism, never none."""
        self.names_by_collision_key: dict[str, list[str]] = {}
        """An index over `topics`: names that differ only in '.' and '_' share an entry."""
        self.leader_counts: dict[int, int] = {}
        """An index over `topics`: the number of partitions that each broker leads; those without a
        leader count for -1."""
        self.version = 0
        """Grows with every record; caches of derived data compare it."""

    def __eq__(self, other: object) -> bool:
        """Equal if two logs lead to the same state, whatever their length."""
        if not isinstance(other, MetadataState):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in (
                "brokers",
                "topics",
                "settings",
                "features",
                "next_producer_id",
                "users",
                "acls",
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"MetadataState({len(self.brokers)} brokers, {len(self.topics)} topics, "
            f"producer ids from {self.next_producer_id})"
        )

    # -- topics

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic id."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> bytes | None:
        """The id of a topic name."""
        topic = self.topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_count(self, name: str) -> int:
        """The number of partitions of a topic; 0 if there is no such topic."""
        topic = self.topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def partition(self, name: str, index: int) -> PartitionState | None:
        """One partition; None if there is no such topic or index."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def leader(self, name: str, index: int) -> int:
        """The leader of a partition; -1 if it has none."""
        partition = self.partition(name, index)
        return NO_NODE if partition is None else partition.leader

    def led_by(self, node_id: int) -> Iterator[tuple[Topic, int, PartitionState]]:
        """Every partition that a node leads, with its topic and index."""
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == node_id:
                    yield topic, index, partition

    def colliding_name(self, name: str) -> str | None:
        """Another topic that has the same name in metrics."""
        for other in self.names_by_collision_key.get(collision_key(name), ()):
            if other != name:
                return other
        return None

    # -- brokers and settings

    def live_brokers(self) -> list[Broker]:
        """Brokers that are not fenced, by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]

    def active_nodes(self) -> frozenset[int]:
        """The brokers that may lead: alive, and not about to stop."""
        return frozenset(
            broker.node_id
            for broker in self.brokers.values()
            if not broker.fenced and not broker.in_controlled_shutdown
        )

    def suspended_nodes(self) -> frozenset[int]:
        """The brokers that were killed and whose processes have not ended."""
        return frozenset(each.node_id for each in self.brokers.values() if each.is_suspended)

    def has_address(self, node_id: int) -> bool:
        """Whether clients can reach a broker; False if it is fenced, suspended or unknown."""
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced and bool(broker.endpoints)

    def endpoint(self, node_id: int, listener: str) -> Endpoint | None:
        """The address of a broker for the clients of a listener; None without one."""
        broker = self.brokers.get(node_id)
        return None if broker is None or broker.fenced else broker.endpoint(listener)

    def settings_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings that were set for a topic or broker."""
        return self.settings.get((resource_type, name), NO_SETTINGS)
