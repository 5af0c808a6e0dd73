"""DescribeAcls (29): v1-3

Behaviour: the ACLs that match a filter, by resource.
Versions:  v2 flexible; v3 user resources.
Errors:    SECURITY_DISABLED (there is no authorizer), CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST
           (a number without a meaning; Kafka closes the connection, or finds nothing).
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.coordinator.acl.changes import Sent, check_filter
from fencepost.coordinator.acl.filters import matching
from fencepost.coordinator.acl.rules import Rule
from fencepost.wire.forms.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_RESOURCE: Final = slice(0, 3)
"""The type, the name and the pattern type of a rule."""


def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    """Serves one request; see above."""
    if refused := refuse_acls(context, "DESCRIBE"):
        return _refused(refused)
    wanted = check_filter(
        Sent(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
    )
    if isinstance(wanted, Refusal):
        return _refused(wanted)
    found = sorted(rule for _, rule in matching(context.services.metadata.acls, wanted))
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            _describe(list(rules)) for _, rules in groupby(found, lambda rule: rule[_RESOURCE])
        ],
    )


def _refused(refusal: Refusal) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=refusal.error, error_message=refusal.message)


def _describe(rules: list[Rule]) -> DescribeAclsResource:
    """The rules of one resource."""
    first = rules[0]
    return DescribeAclsResource(
        resource_type=first.resource_type,
        resource_name=first.resource_name,
        pattern_type=first.pattern_type,
        acls=[
            AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ],
    )
