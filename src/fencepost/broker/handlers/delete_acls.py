"""DeleteAcls (31): v1-3

Behaviour: deletes nothing; refuses each filter as a Kafka broker without an authorizer does.
Versions:  v2 flexible; v3 resources of type USER.
Errors:    SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.wire.forms.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    """Serves one request; see above."""
    refused = refuse_acls(context, "ALTER")
    result = DeleteAclsFilterResult(error_code=refused.error, error_message=refused.message)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))
