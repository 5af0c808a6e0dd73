"""Why there is no ACL to speak of.

An authorizer of a test decides by itself and keeps none either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.operations import CLUSTER, CLUSTER_NAME

if TYPE_CHECKING:
    from fencepost.broker.context import Context

_NO_ACLS: Final = Refusal(
    ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: fencepost keeps no ACLs."
)


def refuse_acls(context: Context, operation: str) -> Refusal:
    """What every request about ACLs is answered with, for who may ask at all."""
    if context.authorize(operation, CLUSTER, CLUSTER_NAME):
        return _NO_ACLS
    return Refusal(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"Not authorized to {operation.lower()} the cluster.",
    )
