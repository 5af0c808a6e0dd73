"""DeleteAcls (31): v1-3

Behaviour: removes the ACLs that match a filter, in one batch, and lists them. Answers when no
           broker still decides by them.
Versions:  v2 flexible; v3 user resources.
Errors:    SECURITY_DISABLED (there is no authorizer), CLUSTER_AUTHORIZATION_FAILED,
           INVALID_REQUEST, POLICY_VIOLATION (more than 10,000, or filters that find more than
           100,000), NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import refuse_acls
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.acl.changes import Removed, Sent
from fencepost.coordinator.acl.rules import Rule
from fencepost.wire.forms.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse | Parked:
    """Serves one request; see above."""
    if refused := refuse_acls(context, "ALTER"):
        return DeleteAclsResponse(filter_results=[_result(refused)] * len(request.filters))
    parked = Parked()

    def done(removed: Removed) -> None:
        gone = dict.fromkeys(
            rule for result in removed.results if isinstance(result, list) for rule in result
        )
        for rule in map(str, gone):
            context.services.audit.changed(context, "acl_deleted", f"removed {rule}", rule=rule)
        parked.answer(
            DeleteAclsResponse(filter_results=[_result(each) for each in removed.results])
        )

    context.services.controller.delete_acls([_read(each) for each in request.filters], done)
    return parked


def _read(asked: DeleteAclsFilter) -> Sent:
    return Sent(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _result(result: list[Rule] | Refusal) -> DeleteAclsFilterResult:
    if isinstance(result, Refusal):
        return DeleteAclsFilterResult(error_code=result.error, error_message=result.message)
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in result
        ],
    )
