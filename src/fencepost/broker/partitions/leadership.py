"""Which partition a request is for, or why this broker cannot serve it: one rule for all handlers.

    open here                                       the partition
    unknown to the metadata                         UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID
                                                    for an id without a topic
    led by this broker, but the disk refuses        KAFKA_STORAGE_ERROR
    led by another broker, or not open yet          NOT_LEADER_OR_FOLLOWER

All but the second are retriable, and clients refresh their metadata first. A replica compares the
leader epoch of the request with that of the metadata, as the leader does: FENCED_LEADER_EPOCH if
the client's is older, UNKNOWN_LEADER_EPOCH if it is newer.

A request that continues after a wait may find its partition closed: `gone` tells why. From certain
versions on, the replies of Produce and Fetch name the leader that the metadata has (KIP-951).
"""

from __future__ import annotations

from typing import NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.broker.context import Services
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.partition.partition import Partition

NO_EPOCH = -1


def find(
    services: Services, topic: str, index: int, leader_epoch: int = NO_EPOCH
) -> Partition | ErrorCode:
    """The partition, if it is open here and has the leader epoch of the request; else the error."""
    partition = services.partitions.get(topic, index)
    if partition is None:
        return why_not(services, topic, index, leader_epoch)
    return partition.check_leader_epoch(leader_epoch) or partition


def why_not(services: Services, topic: str, index: int, leader_epoch: int = NO_EPOCH) -> ErrorCode:
    """The error for a partition that is not open here."""
    state = services.metadata.partition(topic, index)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node_id = services.config.node_id
    if state.leader == node_id and TopicPartition(topic, index) in services.partitions.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if node_id in state.replicas and leader_epoch not in (NO_EPOCH, state.leader_epoch):
        is_older = leader_epoch < state.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def gone(partition: Partition, *, by_id: bool = False) -> ErrorCode:
    """The error for a partition that was closed while a request waited."""
    assert partition.closed, f"{partition} is open"
    if partition.is_moved:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class CurrentLeader(NamedTuple):
    """The leader of a partition, for a client that asked another broker."""

    leader_id: int
    leader_epoch: int


def current_leader(metadata: MetadataState, topic: str, index: int) -> CurrentLeader:
    """The leader that the metadata has; -1 and -1 if the partition is gone."""
    state = metadata.partition(topic, index)
    return CurrentLeader(NO_NODE, NO_EPOCH) if state is None else CurrentLeader(*state[:2])


class LeaderAddress(NamedTuple):
    """Where clients find a leader."""

    node_id: int
    host: str
    port: int
    rack: str | None


def address_of(metadata: MetadataState, node_id: int, listener: str) -> LeaderAddress | None:
    """The address of a broker for the clients of a listener; None if it is dead or unknown."""
    endpoint = metadata.endpoint(node_id, listener)
    if endpoint is None:
        return None
    return LeaderAddress(node_id, endpoint.host, endpoint.port, metadata.brokers[node_id].rack)
