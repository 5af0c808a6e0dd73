"""IncrementalAlterConfigs (44): v0-1

Behaviour: sets (0), deletes (1), or for lists appends (2) and subtracts (3) single settings of
           topics and brokers; each resource is changed or refused as a whole. Open logs use the
           new settings when the reply is sent. Levels of loggers (8) change at once and last until
           the process ends.
Versions:  v1 flexible.
Errors:    INVALID_CONFIG, INVALID_REQUEST (a resource or a setting twice, a value missing, a broker
           setting that cannot be changed now, another type of resource),
           UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED,
           CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from fencepost.broker.context import Context
from fencepost.broker.settings.changes import Change, Checked, Resource, alter, check_changes
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(request: IncrementalAlterConfigsRequest, context: Context) -> Parked:
    """Serves one request; see above."""
    return alter(
        request, context, _check, IncrementalAlterConfigsResponse, AlterConfigsResourceResponse
    )


def _check(
    metadata: MetadataState,
    config: BrokerConfig,
    resource: Resource,
    configs: list[AlterableConfig],
) -> Checked:
    changes = [Change(each.name, each.config_operation, each.value) for each in configs]
    return check_changes(metadata, config, resource, changes)
