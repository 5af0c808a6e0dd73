"""DescribeClientQuotas (48): v0-1

Behaviour: returns nothing, whatever the filter: there are no quotas. `kafka-configs.sh --describe`
           asks for those of users, clients and addresses.
Versions:  v1 flexible.
Errors:    CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.wire.forms.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)


def handle(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    """Serves one request; see above."""
    if context.authorize("DESCRIBE_CONFIGS", CLUSTER, CLUSTER_NAME):
        return DescribeClientQuotasResponse(error_message=None, entries=[])
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        error_message="Not authorized to describe quotas.",
        entries=None,
    )
