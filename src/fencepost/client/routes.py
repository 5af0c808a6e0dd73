"""The client's cached metadata: brokers, leaders and coordinators.

Entries may be stale. Replies update them (`learn_*`); error codes and broken connections remove
them (`forget_*`, `suspect`). `calls.py` decides when to refresh.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.client.options import Endpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fencepost.wire.forms.metadata import MetadataResponse, MetadataResponseTopic


class CoordinatorKind(IntEnum):
    """The key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A group or a transactional id."""

    kind: CoordinatorKind
    name: str

    def __str__(self) -> str:
        return (
            f"{'group' if self.kind is CoordinatorKind.GROUP else 'transactional id'} {self.name!r}"
        )


class Leader(NamedTuple):
    """The leader of a partition, as of the last Metadata."""

    node_id: int
    leader_epoch: int


class TopicRoute(NamedTuple):
    """One topic, as of the last Metadata."""

    name: str
    topic_id: bytes
    error_code: int
    leaders: dict[int, Leader]
    learned_ms: int


NO_LEADER: Final = Leader(NO_NODE, -1)


class Routes:
    """The cache. Brokers have the endpoints that the cluster advertises."""

    def __init__(self, bootstrap: tuple[Endpoint, ...]) -> None:
        assert bootstrap, "a client without a broker to begin with"
        self._bootstrap = bootstrap
        self._suspects: dict[Endpoint, int] = {}
        self._suspicions = 0
        self._coordinators: dict[CoordinatorKey, int] = {}
        self.brokers: dict[int, Endpoint] = {}
        self.topics: dict[str, TopicRoute] = {}
        self.cluster_id: str | None = None
        self.controller_id: int = NO_NODE

    def __repr__(self) -> str:
        return f"<routes to {len(self.brokers)} brokers, {len(self.topics)} topics>"

    # Lookups.

    def any_broker(self) -> Endpoint:
        """Returns a broker without a recent failure, else the one whose failure is oldest."""
        return min(self._candidates(), key=lambda endpoint: self._suspects.get(endpoint, -1))

    def has_other(self, endpoint: Endpoint) -> bool:
        """Whether another broker could be asked instead of this one."""
        return any(each != endpoint for each in self._candidates())

    def _candidates(self) -> dict[Endpoint, None]:
        return dict.fromkeys([*self.brokers.values(), *self._bootstrap])

    def broker(self, node_id: int) -> Endpoint | None:
        """Returns the endpoint of a broker, if known."""
        return self.brokers.get(node_id)

    def coordinator(self, key: CoordinatorKey) -> Endpoint | None:
        """Returns the endpoint of a coordinator, if known."""
        node_id = self._coordinators.get(key)
        return None if node_id is None else self.brokers.get(node_id)

    def coordinator_id(self, key: CoordinatorKey) -> int:
        """Returns the id of the broker that coordinates a key; NO_NODE if unknown."""
        return self._coordinators.get(key, NO_NODE)

    def leader(self, partition: TopicPartition) -> Endpoint | None:
        """Returns the endpoint of a partition's leader, if known."""
        route = self.topics.get(partition.topic)
        if route is None:
            return None
        return self.brokers.get(route.leaders.get(partition.partition, NO_LEADER).node_id)

    def fresh(self, topic: str, now_ms: int, max_age_ms: int) -> bool:
        """Whether a topic's metadata is younger than `max_age_ms`."""
        route = self.topics.get(topic)
        return (
            route is not None and route.error_code == 0 and now_ms - route.learned_ms < max_age_ms
        )

    # Updates.

    def learn_metadata(self, reply: MetadataResponse, now_ms: int) -> None:
        """Applies a Metadata reply. Topics that are not in the reply stay as they were."""
        if reply.brokers:
            # A starting broker may return an empty list, which would leave us without any broker.
            self.brokers = {b.node_id: Endpoint(b.host, b.port) for b in reply.brokers}
        self.cluster_id = reply.cluster_id
        self.controller_id = reply.controller_id
        for topic in reply.topics:
            if topic.name is not None:
                self.topics[topic.name] = _topic_route(topic, now_ms)

    def learn_coordinator(self, key: CoordinatorKey, node_id: int, endpoint: Endpoint) -> None:
        """Applies a FindCoordinator reply."""
        self.brokers[node_id] = endpoint
        self._coordinators[key] = node_id

    # Corrections.

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Removes the metadata of these topics."""
        for topic in topics:
            self.topics.pop(topic, None)

    def forget_coordinator(self, key: CoordinatorKey) -> None:
        """Removes a coordinator that has moved."""
        self._coordinators.pop(key, None)

    def forget_broker(self, node_id: int) -> None:
        """Removes the address of a broker that did not answer."""
        self.brokers.pop(node_id, None)

    def forget_controller(self) -> None:
        """Removes a controller that has moved."""
        self.controller_id = NO_NODE

    def suspect(self, endpoint: Endpoint) -> None:
        """Notes that a broker did not answer: prefer others, and forget what it led."""
        self._suspicions += 1
        self._suspects[endpoint] = self._suspicions
        gone = {node_id for node_id, known in self.brokers.items() if known == endpoint}
        self._coordinators = {
            key: node for key, node in self._coordinators.items() if node not in gone
        }
        self.forget_topics([name for name, route in self.topics.items() if _is_led_by(route, gone)])
        if self.controller_id in gone:
            self.forget_controller()

    def is_suspect(self, endpoint: Endpoint) -> bool:
        """Whether a broker did not answer the last time."""
        return endpoint in self._suspects

    def trust(self, endpoint: Endpoint) -> None:
        """Notes that a broker answered."""
        self._suspects.pop(endpoint, None)


def _topic_route(topic: MetadataResponseTopic, now_ms: int) -> TopicRoute:
    leaders = {
        p.partition_index: NO_LEADER
        if p.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        else Leader(p.leader_id, p.leader_epoch)
        for p in topic.partitions
    }
    assert topic.name is not None
    return TopicRoute(topic.name, topic.topic_id, topic.error_code, leaders, now_ms)


def _is_led_by(route: TopicRoute, nodes: Collection[int]) -> bool:
    return any(leader.node_id in nodes for leader in route.leaders.values())
