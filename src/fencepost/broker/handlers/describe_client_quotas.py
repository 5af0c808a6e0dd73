"""DescribeClientQuotas (48): v0-1

Behaviour: returns nothing, as this broker has no quotas; checks the filter as Kafka does.
Versions:  v1 flexible.
Errors:    INVALID_REQUEST, UNSUPPORTED_VERSION (an unknown type of entity),
           CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.wire.forms.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context

ENTITY_TYPES: Final = ("user", "client-id", "ip")
EXACT, DEFAULT, SPECIFIED = range(3)


def handle(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE_CONFIGS", CLUSTER, CLUSTER_NAME):
        refused: Refusal | None = Refusal(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Not authorized to describe quotas."
        )
    else:
        refused = _refuse_filter(request.components)
    if refused is None:
        return DescribeClientQuotasResponse(error_message=None, entries=[])
    return DescribeClientQuotasResponse(
        error_code=refused.error, error_message=refused.message, entries=None
    )


def _refuse_filter(components: list[ComponentData]) -> Refusal | None:
    types: set[str] = set()
    for component in components:
        if refused := _refuse_component(component):
            return refused
        if component.entity_type in types:
            return _refuse(f"{component.entity_type} is listed twice.")
        types.add(component.entity_type)
    if "ip" in types and len(types) > 1:
        return _refuse("An address has quotas of its own: it goes with no user or client id.")
    return None


def _refuse_component(component: ComponentData) -> Refusal | None:
    if not component.entity_type:
        return _refuse("A type of entity is empty.")
    if component.entity_type not in ENTITY_TYPES:
        return Refusal(
            ErrorCode.UNSUPPORTED_VERSION, f"Unknown entity type {component.entity_type!r}."
        )
    if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        return _refuse(f"Unknown match type {component.match_type}.")
    if (component.match_type == EXACT) == (component.match is None):
        return _refuse("A name belongs to match type 0, and to no other.")
    return None


def _refuse(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
