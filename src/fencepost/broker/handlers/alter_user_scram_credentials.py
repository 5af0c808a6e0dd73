"""AlterUserScramCredentials (51): v0

Behaviour: sets and removes the SCRAM credentials of users, in one batch of the metadata log. The
           client has salted the password; the broker keeps the two keys that follow from it. A user
           with a mistake is refused, the others are changed. Sessions of the user live on until
           they authenticate again.
Versions:  one.
Errors:    RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL,
           UNSUPPORTED_SASL_MECHANISM, CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER,
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.users import Removal, Upsertion, UserChange, UserOutcome
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

_UNAUTHORIZED = Refusal(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Not authorized to alter the cluster."
)


def handle(
    request: AlterUserScramCredentialsRequest, context: Context
) -> AlterUserScramCredentialsResponse | Parked:
    """Serves one request; see above."""
    changes = _changes(request)
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        users = dict.fromkeys(change.user for change in changes)
        return _respond(UserOutcome(user, _UNAUTHORIZED) for user in users)
    parked = Parked()
    context.services.controller.alter_users(
        changes, lambda outcomes: parked.answer(_respond(outcomes))
    )
    return parked


def _changes(request: AlterUserScramCredentialsRequest) -> Sequence[UserChange]:
    return [
        *(Removal(each.name, each.mechanism) for each in request.deletions),
        *(
            Upsertion(
                each.name,
                each.mechanism,
                bytes(each.salt),
                bytes(each.salted_password),
                each.iterations,
            )
            for each in request.upsertions
        ),
    ]


def _respond(outcomes: Iterable[UserOutcome]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.NONE if refusal is None else refusal.error,
                error_message=None if refusal is None else refusal.message,
            )
            for user, refusal in outcomes
        ]
    )
