"""CreateAcls (30): v1-3

Behaviour: adds the ACLs that are valid, in one batch, and refuses the others. One that exists is no
           error. Answers when every broker decides by them.
Versions:  v2 flexible; v3 user resources.
Errors:    SECURITY_DISABLED (there is no authorizer), CLUSTER_AUTHORIZATION_FAILED,
           INVALID_REQUEST, POLICY_VIOLATION (more than 10,000), NOT_CONTROLLER,
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.acl.changes import Created, Sent, rule_of
from fencepost.wire.forms.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse | Parked:
    """Serves one request; see above."""
    if refused := refuse_acls(context, "ALTER"):
        return CreateAclsResponse(results=[_result(refused)] * len(request.creations))
    parked = Parked()

    def done(created: Created) -> None:
        for record in created.records:
            rule = str(rule_of(record))
            context.services.audit.changed(context, "acl_created", f"added {rule}", rule=rule)
        parked.answer(CreateAclsResponse(results=[_result(each) for each in created.refusals]))

    context.services.controller.create_acls([_read(each) for each in request.creations], done)
    return parked


def _read(creation: AclCreation) -> Sent:
    return Sent(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _result(refusal: Refusal | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult(error_code=ErrorCode.NONE, error_message=None)
    return AclCreationResult(error_code=refusal.error, error_message=refusal.message)
