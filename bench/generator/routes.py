"""Which broker gets which requests of a producer.

With one broker, everything goes over the first connection. In a cluster, EndTxn and
AddPartitionsToTxn go to the producer's coordinator, and Produce to the leader of the partition.
Both are looked up once, before the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.generator.engine import Address, Connection, Connections
from bench.generator.job import Job
from fencepost.client.blocking import Cluster
from fencepost.client.routes import CoordinatorKey, CoordinatorKind


@dataclass(frozen=True, slots=True)
class Route:
    """The connections of one producer."""

    connections: Connections
    coordinator: Connection
    leaders: tuple[Connection, ...]
    """By partition."""
    partitions: tuple[int, ...]
    """The partitions that the producer writes to, in turn."""


def find_routes(cluster: Cluster, job: Job, first: Sequence[Connection]) -> list[Route]:
    """The route of each producer, which begins with one connection to the first address."""
    if not job.is_cluster:
        return [_route_to_one(job, connection) for connection in first]
    nodes: dict[int, Address] = dict(cluster.describe_cluster().brokers)
    topic = cluster.find_topic(job.topic)
    assert topic is not None
    leaders = {one.index: one.leader for one in topic.partitions}
    routes = []
    for number, connection in enumerate(first):
        key = CoordinatorKey(CoordinatorKind.TRANSACTION, job.transactional_id(number))
        coordinator = cluster.find_coordinator(key)
        wanted = partitions_for(job, coordinator, leaders)
        connections = {job.addresses[0]: connection}
        for node in {coordinator, *(leaders[one] for one in range(job.partitions))}:
            address = nodes[node]
            if address not in connections:
                connections[address] = Connection(address)
        routes.append(
            Route(
                connections,
                connections[nodes[coordinator]],
                tuple(connections[nodes[leaders[one]]] for one in range(job.partitions)),
                wanted,
            )
        )
    return routes


def partitions_for(job: Job, coordinator: int, leaders: dict[int, int]) -> tuple[int, ...]:
    """The partitions that a producer with this coordinator writes to."""
    wanted = tuple(
        partition
        for partition, leader in sorted(leaders.items())
        if job.placement == "any" or (leader == coordinator) == (job.placement == "local")
    )
    assert wanted, f"broker {coordinator} finds no {job.placement} partition"
    return wanted


def _route_to_one(job: Job, connection: Connection) -> Route:
    return Route(
        {job.addresses[0]: connection},
        connection,
        (connection,) * job.partitions,
        tuple(range(job.partitions)),
    )
