"""AlterUserScramCredentials (51): v0

Behaviour: sets and removes the SCRAM credentials of users, in one batch of the metadata log. The
           client has salted the password; the broker keeps the two keys that follow from it. A user
           with a mistake is refused, the others are changed. Sessions of the user live on until
           they authenticate again.
Versions:  one.
Errors:    RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL,
           UNSUPPORTED_SASL_MECHANISM, POLICY_VIOLATION (more than 10,000 changes),
           CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.base.scram import BY_NUMBER
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.security.audit import printable
from fencepost.broker.turns import fill, in_turns
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
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        return _refuse_all(request, context)
    changes = _changes(request)
    parked = Parked()

    def done(outcomes: Sequence[UserOutcome]) -> None:
        refused = {outcome.user for outcome in outcomes if outcome.refusal is not None}
        _note([change for change in changes if change.user not in refused], context)
        parked.answer(AlterUserScramCredentialsResponse(results=list(map(_result, outcomes))))

    context.services.controller.alter_users(changes, done)
    return parked


def _refuse_all(
    request: AlterUserScramCredentialsRequest, context: Context
) -> AlterUserScramCredentialsResponse | Parked:
    """Not authorized: the error for each user of the request."""
    response = AlterUserScramCredentialsResponse()
    users = dict.fromkeys(
        [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    )
    steps = fill(response.results, users, lambda user: _result(UserOutcome(user, _UNAUTHORIZED)))
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _note(made: Sequence[UserChange], context: Context) -> None:
    """The audit log: whose credentials were changed, and never what they are."""
    for kind, event, verb in (
        (Upsertion, "user_changed", "set"),
        (Removal, "user_removed", "removed"),
    ):
        names: dict[str, list[str]] = {}
        for change in made:
            if isinstance(change, kind):
                names.setdefault(change.user, []).append(BY_NUMBER[change.mechanism].name)
        for user, mechanisms in names.items():
            name = printable(user)
            what = f"{verb} the password of user {name} for {', '.join(mechanisms)}"
            context.services.audit.changed(context, event, what, user=name, mechanisms=mechanisms)


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


def _result(outcome: UserOutcome) -> AlterUserScramCredentialsResult:
    user, refusal = outcome
    return AlterUserScramCredentialsResult(
        user=user,
        error_code=ErrorCode.NONE if refusal is None else refusal.error,
        error_message=None if refusal is None else refusal.message,
    )
