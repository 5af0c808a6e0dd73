"""What the caller may see of transactional ids; there is no single request for that."""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.client.admin import describe_transactions
from fencepost.client.calls import AnyBroker, Core, call_one
from fencepost.client.failures import ClientError, Refused
from fencepost.client.steps import Steps
from fencepost.client.survey.asking import Missing
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.describe_acls import DescribeAclsRequest

_ANY: Final = 1
"""The value of a filter of DescribeAcls that matches everything, and the pattern type `any`."""
_TRANSACTIONAL_ID: Final = 5
DENY: Final = 2
LITERAL: Final = 3


class Acl(NamedTuple):
    """One rule about transactional ids."""

    name: str
    pattern_type: int
    permission: int


def may_describe(core: Core, transactional_id: str) -> Steps[bool | None]:
    """Whether the caller may describe this id, which need not exist; None without an answer."""
    try:
        yield from describe_transactions(core, [transactional_id])
    except Refused as problem:
        is_denied = (
            problem.api == API[ApiKey.DESCRIBE_TRANSACTIONS].name
            and problem.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
        return False if is_denied else None
    except ClientError:
        return None
    return True


def transactional_id_acls(core: Core) -> Steps[list[Acl] | Missing]:
    """Returns all rules about transactional ids; Missing with SECURITY_DISABLED if none apply."""
    request = DescribeAclsRequest(
        resource_type_filter=_TRANSACTIONAL_ID,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    reply = yield from call_one(
        core, AnyBroker(), ApiKey.DESCRIBE_ACLS, request, lambda _: (0, None)
    )
    form = reply.form
    if form.error_code:
        return Missing(form.error_message or "", form.error_code)
    return [
        Acl(resource.resource_name, resource.pattern_type, acl.permission_type)
        for resource in form.resources
        for acl in resource.acls
    ]
