"""One client per process and cluster.

Spark reuses its Python workers from batch to batch, so an open connection saves the handshake and
the search for leaders in every batch but the first. A client belongs to the process that created
it: workers are forked.
"""

from __future__ import annotations

import os
from typing import Final

from fencepost.client.blocking import Cluster
from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.client.options import ClientOptions
from fencepost.spark.failures import RowRefused

_clusters: Final[dict[tuple[int, ClientOptions], Cluster]] = {}


def cluster_of(options: ClientOptions) -> Cluster:
    """The client of this process for these options."""
    key = (os.getpid(), options)
    found = _clusters.get(key)
    if found is None:
        found = _clusters[key] = Cluster(options)
    return found


def close_clusters() -> None:
    """Closes the clients of this process; in a program they end with it."""
    for key in [key for key in _clusters if key[0] == os.getpid()]:
        _clusters.pop(key).close()


def cluster_id_of(options: ClientOptions) -> str:
    """The id of the cluster, as it was known last; empty if it has none."""
    cluster = cluster_of(options)
    known = cluster.core.routes.cluster_id
    return known or cluster.describe_cluster().cluster_id or ""


def partition_count(options: ClientOptions, topic: str) -> int:
    """How many partitions a topic has; RowRefused when there is no such topic."""
    try:
        view = cluster_of(options).metadata([topic])
    except UnknownTopicOrPartition:
        raise RowRefused(
            f"the cluster has no topic {topic!r}: create it, or correct topic= of the sink or the "
            'topic column. To try things out, create_topics={"partitions": 4} makes the sink '
            "create the topics that it is given by name"
        ) from None
    return len(view.topics[topic].partitions)
