"""DescribeUserScramCredentials (50): v0

Behaviour: lists the users with their mechanisms and iterations, all of them or those named; never
           a salt or a key.
Versions:  one.
Errors:    RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Not authorized to describe the cluster.",
        )
    known = context.services.metadata.users
    # No names at all mean every user, as in Kafka.
    named = Counter(user.name for user in request.users or ()) or Counter(sorted(known))
    response = DescribeUserScramCredentialsResponse(error_message=None)
    steps = fill(response.results, named.items(), partial(_describe, context))
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _describe(context: Context, named: tuple[str, int]) -> DescribeUserScramCredentialsResult:
    user, count = named
    if count > 1:
        return _refuse(user, ErrorCode.DUPLICATE_RESOURCE, f"User {user!r} is named twice.")
    credentials = context.services.metadata.users.get(user)
    if credentials is None:
        return _refuse(user, ErrorCode.RESOURCE_NOT_FOUND, f"User {user!r} has no credentials.")
    return DescribeUserScramCredentialsResult(
        user=user,
        error_message=None,
        credential_infos=[
            CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in sorted(credentials.items())
        ],
    )


def _refuse(user: str, error: ErrorCode, message: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=error, error_message=message)
