"""DescribeLogDirs (35): v1-5

Behaviour: the data directory, the sizes of the requested logs (null: of all), and the free space.
           There is one directory and one replica, so nothing lags and nothing moves.
Versions:  v2 flexible; v3 an error for the whole answer; v4 sizes of the volume; v5 whether the
           directory is cordoned.
Errors:    CLUSTER_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR (the directory cannot be read).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CLUSTER_METADATA_TOPIC
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.partition.partition import Partition
from fencepost.wire.forms.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    services = context.services
    folder = services.config.data
    # As in Kafka, an absolute path: the caller may be in another directory.
    result = DescribeLogDirsResult(log_dir=os.path.abspath(folder))
    try:
        result.total_bytes, result.usable_bytes = services.runtime.disk.space(folder)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])
    by_topic: dict[str, DescribeLogDirsTopic] = {}

    def steps() -> Iterator[None]:
        for partition in _wanted(request, services.partitions):
            yield
            if partition is None or partition.closed:
                continue  # Not here, or deleted or moved since.
            name = partition.name.topic
            if name not in by_topic:
                by_topic[name] = DescribeLogDirsTopic(name=name)
                result.topics.append(by_topic[name])
            by_topic[name].partitions.append(_describe(partition))

    response = DescribeLogDirsResponse(results=[result])
    return in_turns(services.runtime, steps(), response, holds_followers=True)


def _wanted(
    request: DescribeLogDirsRequest, partitions: LocalPartitions
) -> Iterator[Partition | None]:
    """The requested partitions; None for one whose log is not here."""
    if request.topics is None:
        for name, partition in list(partitions.by_name.items()):
            if name.topic != CLUSTER_METADATA_TOPIC:
                yield partition
        return
    for topic in request.topics:
        for index in dict.fromkeys(topic.partitions):
            yield partitions.get(topic.topic, index)


def _describe(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=partition.name.partition, partition_size=partition.log.size_bytes
    )
