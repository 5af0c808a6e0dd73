"""CreateAcls (30): v1-3

Behaviour: creates nothing; refuses each ACL as a Kafka broker without an authorizer does.
Versions:  v2 flexible; v3 resources of type USER.
Errors:    SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.wire.forms.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    """Serves one request; see above."""
    refused = refuse_acls(context, "ALTER")
    result = AclCreationResult(error_code=refused.error, error_message=refused.message)
    return CreateAclsResponse(results=[result] * len(request.creations))
