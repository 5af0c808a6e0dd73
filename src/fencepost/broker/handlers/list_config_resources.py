"""ListConfigResources (74): v0-1

Behaviour: the names of everything that has settings: all topics, and brokers (once for their
           settings, once for their loggers). Groups and client metrics have none: the tools
           `kafka-configs.sh` and `kafka-client-metrics.sh` ask for them and list nothing.
Versions:  v0 lists client metrics only; v1 the types that are named, or all for an empty list
           (KIP-1142).
Errors:    UNSUPPORTED_VERSION (an unknown type of resource), CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.settings.changes import LOGGER_RESOURCE
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from fencepost.wire.forms.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TYPES: Final = (
    TOPIC_RESOURCE,
    BROKER_RESOURCE,
    LOGGER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
)


def handle(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE_CONFIGS", CLUSTER, CLUSTER_NAME):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    types = set(request.resource_types) or set(TYPES)
    if context.api_version == 0:
        types = {CLIENT_METRICS_RESOURCE}
    if not types <= set(TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    state = context.services.metadata
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(types)
            for name in _names_of(kind, state)
        ]
    )


def _names_of(kind: int, state: MetadataState) -> list[str]:
    if kind == TOPIC_RESOURCE:
        return sorted(state.topics)
    if kind in (BROKER_RESOURCE, LOGGER_RESOURCE):
        return [str(broker.node_id) for broker in state.live_brokers()]
    return []
