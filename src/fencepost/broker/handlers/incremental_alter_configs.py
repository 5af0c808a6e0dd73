"""IncrementalAlterConfigs (44): v0-1

Behaviour: sets (0), deletes (1), or for lists appends (2) and subtracts (3) single settings of topics and brokers; each
           resource is changed as a whole or refused with a sentence. Open logs use the new settings from the
           moment the answer is given.
Versions:  v1 flexible.
Errors:    INVALID_CONFIG, INVALID_REQUEST (a resource or a setting twice, a value missing, a broker setting that
           cannot be changed now, a kind of resource without settings), UNKNOWN_TOPIC_OR_PARTITION,
           INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER,
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.broker.altering import Change, Resource, alter, check_changes
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from fencepost.broker.altering import Answers
    from fencepost.broker.context import Context


def handle(request: IncrementalAlterConfigsRequest, context: Context) -> Parked:
    resources = [Resource(each.resource_type, each.resource_name) for each in request.resources]
    checked = [
        check_changes(
            context.node,
            resource,
            [Change(c.name, c.config_operation, c.value) for c in asked.configs],
        )
        for resource, asked in zip(resources, request.resources, strict=True)
    ]
    parked = Parked()

    def altered(answers: Answers) -> None:
        parked.answer(
            IncrementalAlterConfigsResponse(
                responses=[
                    AlterConfigsResourceResponse(
                        error_code=error,
                        error_message=message,
                        resource_type=resource.kind,
                        resource_name=resource.name,
                    )
                    for resource, (error, message) in zip(resources, answers, strict=True)
                ]
            )
        )

    alter(context, resources, checked, altered, validate_only=request.validate_only)
    return parked
