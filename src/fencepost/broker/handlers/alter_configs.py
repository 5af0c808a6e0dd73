"""AlterConfigs (33): v0-2

Behaviour: the older way to change settings: a resource has those that are named from now on, and no others.
Versions:  v2 flexible.
Errors:    as IncrementalAlterConfigs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.broker.altering import Resource, alter, check_replacement
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from fencepost.broker.altering import Answers
    from fencepost.broker.context import Context


def handle(request: AlterConfigsRequest, context: Context) -> Parked:
    resources = [Resource(each.resource_type, each.resource_name) for each in request.resources]
    checked = [
        check_replacement(context.node, resource, [(c.name, c.value) for c in asked.configs])
        for resource, asked in zip(resources, request.resources, strict=True)
    ]
    parked = Parked()

    def altered(answers: Answers) -> None:
        parked.answer(
            AlterConfigsResponse(
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
