"""ACLs: list, add and remove them.

The numbers are Kafka's; `coordinator.acl.rules` has the words for whoever shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.client.calls import AnyBroker, Controller, Core, call_one, error_code
from fencepost.client.steps import Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_acls import AclCreation, CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest

ANY: Final = 1
"""The number of every kind that matches everything, in filters."""


class Acl(NamedTuple):
    """One ACL."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Matches ACLs; None and `ANY` match everything."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY


def describe_acls(core: Core, wanted: AclFilter = AclFilter()) -> Steps[list[Acl]]:  # noqa: B008
    """Lists the ACLs that match."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    reply = yield from call_one(core, AnyBroker(), ApiKey.DESCRIBE_ACLS, request, error_code)
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in reply.form.resources
        for acl in resource.acls
    ]


def create_acls(core: Core, acls: Sequence[Acl]) -> Steps[None]:
    """Adds ACLs; those that exist are no error. Refused tells the first that a broker refuses."""
    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    request = CreateAclsRequest(creations=creations)
    yield from call_one(core, Controller(), ApiKey.CREATE_ACLS, request, _first_of("results"))


def delete_acls(core: Core, filters: Sequence[AclFilter]) -> Steps[list[Acl]]:
    """Removes the ACLs that match one of the filters, and returns them."""
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.resource_name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in filters
        ]
    )
    reply = yield from call_one(
        core, Controller(), ApiKey.DELETE_ACLS, request, _first_of("filter_results")
    )
    found = [
        Acl(
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for result in reply.form.filter_results
        for acl in result.matching_acls
    ]
    return list(dict.fromkeys(found))


def _first_of(results: str) -> Callable[[Any], tuple[int, str | None]]:
    """Makes a `code_of` for replies with several results: the first error, if there is one."""

    def code_of(form: Any) -> tuple[int, str | None]:
        errors = (error_code(each) for each in getattr(form, results) if each.error_code)
        return next(errors, (ErrorCode.NONE, None))

    return code_of
