"""DescribeUserScramCredentials (50): v0

Behaviour: finds no user, as this broker has no authentication.
Versions:  one.
Errors:    RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections import Counter

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.wire.forms.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Not authorized to describe the cluster.",
        )
    named = Counter(user.name for user in request.users or ())
    results = [_describe(user, count) for user, count in named.items()]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _describe(user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        error, message = ErrorCode.DUPLICATE_RESOURCE, f"User {user!r} is named twice."
    else:
        error, message = ErrorCode.RESOURCE_NOT_FOUND, f"User {user!r} has no credentials."
    return DescribeUserScramCredentialsResult(user=user, error_code=error, error_message=message)
