"""DescribeQuorum (55): v0-2

Behaviour: the quorum of the metadata log, which is this broker: it is the leader and the only
           voter. As in Kafka, the request names __cluster_metadata-0 and nothing else; any other
           choice of partitions is refused as a whole.
Versions:  v1 when a replica last fetched and was last caught up; v2 messages, directory ids (zero:
           the voters of this quorum are fixed) and the addresses of the voters.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CLUSTER_METADATA_TOPIC
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.wire.forms.describe_quorum import (
    DescribedPartition,
    DescribedTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
)


def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return DescribeQuorumResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Not authorized to describe the cluster.",
        )
    asked = [
        (topic.topic_name, [p.partition_index for p in topic.partitions])
        for topic in request.topics
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, [0])]:
        return _unknown(request)
    described = DescribedTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[_quorum(context)])
    return DescribeQuorumResponse(topics=[described], nodes=[_voter(context)])


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    topics = [
        DescribedTopic(
            topic_name=topic.topic_name,
            partitions=[
                DescribedPartition(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=f"Only {CLUSTER_METADATA_TOPIC}-0 has a quorum.",
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(topics=topics)


def _quorum(context: Context) -> DescribedPartition:
    services = context.services
    metadata = services.partitions.get(CLUSTER_METADATA_TOPIC, 0)
    assert metadata is not None, "the metadata log is open as long as anybody is served"
    now_ms = services.runtime.clock.now_ms()
    return DescribedPartition(
        leader_id=services.follower.controller_id,
        leader_epoch=metadata.leader_epoch,
        high_watermark=metadata.high_watermark,
        current_voters=[
            ReplicaState(
                replica_id=services.follower.controller_id,
                log_end_offset=metadata.log_end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
    )


def _voter(context: Context) -> Node:
    controller_id = context.services.follower.controller_id
    endpoint = context.services.metadata.endpoint(controller_id, context.listener)
    listeners = []
    if endpoint is not None:
        listeners = [Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port)]
    return Node(node_id=controller_id, listeners=listeners)
