"""DescribeAcls (29): v1-3

Behaviour: refuses, as a Kafka broker without an authorizer does.
Versions:  v2 flexible; v3 resources of type USER.
Errors:    SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.wire.forms.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    """Serves one request; see above."""
    refused = refuse_acls(context, "DESCRIBE")
    return DescribeAclsResponse(error_code=refused.error, error_message=refused.message)
