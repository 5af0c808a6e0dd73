"""DescribeCluster (60): v0-2

Behaviour: the id of the cluster, its controller and its brokers. This is a broker endpoint (1); a
           request for a controller endpoint (2) is refused.
Versions:  v1 the endpoint type (KIP-919); v2 fenced brokers, on request.
Errors:    MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import NOT_REQUESTED, cluster_operations
from fencepost.broker.context import Context
from fencepost.wire.forms.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2


def handle(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    """Serves one request; see above."""
    if request.endpoint_type == CONTROLLERS:
        return _refused(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "This is a broker endpoint, not a controller endpoint.",
        )
    if request.endpoint_type != BROKERS:
        return _refused(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unknown endpoint type {request.endpoint_type}.",
        )
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    follower = context.services.follower
    return DescribeClusterResponse(
        error_message=None,
        cluster_id=follower.cluster_id,
        controller_id=follower.controller_id,
        brokers=_describe_brokers(request, context),
        cluster_authorized_operations=operations,
    )


def _refused(error: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=error, error_message=message)


def _describe_brokers(
    request: DescribeClusterRequest, context: Context
) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(
            broker_id=node_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for node_id, broker in sorted(context.services.metadata.brokers.items())
        if (endpoint := broker.endpoint(context.listener)) is not None
        and (request.include_fenced_brokers or not broker.fenced)
    ]
