"""AlterConfigs (33): v0-2

Behaviour: replaces all settings of a resource by those of the request, as older clients do.
           Levels of loggers cannot be changed with it.
Versions:  v2 flexible.
Errors:    as IncrementalAlterConfigs.
"""

from __future__ import annotations

from fencepost.broker.context import Context
from fencepost.broker.settings.changes import Checked, Resource, alter, check_replacement
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.wire.forms.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(request: AlterConfigsRequest, context: Context) -> Parked:
    """Serves one request; see above."""
    return alter(request, context, _check, AlterConfigsResponse, AlterConfigsResourceResponse)


def _check(
    metadata: MetadataState,
    config: BrokerConfig,
    resource: Resource,
    configs: list[AlterableConfig],
) -> Checked:
    return check_replacement(
        metadata, config, resource, [(each.name, each.value) for each in configs]
    )
