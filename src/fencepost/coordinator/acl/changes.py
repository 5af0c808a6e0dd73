"""Requests to add and to remove rules: checked first, then the records of one batch.

What a client sent is checked here and nowhere else, also for the numbers of filters: an unknown
number is refused, never read as "any".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.base.refusal import Refusal
from fencepost.coordinator.acl.filters import Filter, matching
from fencepost.coordinator.acl.rules import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    why_no_client_is_at,
)
from fencepost.coordinator.acl.state import AclState
from fencepost.records.metadata_log import AccessControlEntryRecord, RemoveAccessControlEntryRecord

MAX_CHANGES: Final = 10_000
"""Rules that one request may add or remove: they are one batch. The limit is Kafka's."""

MAX_FOUND: Final = 100_000
"""Rules that the filters of one request may find, one that several find counted for each: the reply
lists them all, and a thousand filters for everything would fill the memory."""

E = TypeVar("E", bound=IntEnum)


class Sent(NamedTuple):
    """A rule or a filter as a client sent it, with numbers that may be anything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


class Created(NamedTuple):
    """The records of a request to add rules, and the refusal of each rule, or None."""

    records: tuple[AccessControlEntryRecord, ...]
    refusals: list[Refusal | None]


class Removed(NamedTuple):
    """The records of a request to remove rules, and for each filter its rules or its refusal."""

    records: tuple[RemoveAccessControlEntryRecord, ...]
    results: list[list[Rule] | Refusal]


def decide_create(state: AclState, sent: Sequence[Sent], draw_id: Callable[[], bytes]) -> Created:
    """Adds the rules that are valid; one that exists is left as it is, and is no error.

    `draw_id` returns an id that was never used.
    """
    refusals: list[Refusal | None] = []
    new: dict[Rule, AccessControlEntryRecord] = {}
    for each in sent:
        rule = check_rule(each)
        if isinstance(rule, Refusal):
            refusals.append(rule)
            continue
        refusals.append(None)
        if rule not in state.ids and rule not in new:
            new[rule] = record_of(draw_id(), rule)
    if len(new) > MAX_CHANGES:
        return Created((), [_too_many(len(new))] * len(sent))
    return Created(tuple(new.values()), refusals)


def decide_delete(state: AclState, sent: Sequence[Sent]) -> Removed:
    """Removes the rules that match; one that several filters match is in the result of each."""
    results: list[list[Rule] | Refusal] = []
    ids: dict[bytes, None] = {}
    count = 0
    for each in sent:
        wanted = check_filter(each)
        if isinstance(wanted, Refusal):
            results.append(wanted)
            continue
        found = list(matching(state, wanted))
        count += len(found)
        if count > MAX_FOUND:
            return Removed((), [_FOUND_TOO_MANY] * len(sent))
        ids.update(dict.fromkeys(rule_id for rule_id, _ in found))
        results.append([rule for _, rule in found])
    if len(ids) > MAX_CHANGES:
        return Removed((), [_too_many(len(ids))] * len(sent))
    records = tuple(RemoveAccessControlEntryRecord(id=rule_id) for rule_id in ids)
    return Removed(records, results)


_FOUND_TOO_MANY: Final = Refusal(
    ErrorCode.POLICY_VIOLATION,
    f"The filters of the request match more than {MAX_FOUND:,} ACLs; send fewer at a time.",
)


def _too_many(count: int) -> Refusal:
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"The request changes {count:,} ACLs; one request may change {MAX_CHANGES:,}.",
    )


# -- what clients send
# ------------------------------------------------------------------------------------------------


def check_rule(sent: Sent) -> Rule | Refusal:
    """A rule from a request, or why it cannot be added."""
    resource_type = _word(ResourceType, sent.resource_type)
    pattern_type = _word(PatternType, sent.pattern_type)
    operation = _word(Operation, sent.operation)
    permission = _word(Permission, sent.permission)
    name, principal, host = sent.resource_name or "", sent.principal or "", sent.host or ""
    if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        return _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        return _invalid("Invalid empty resource name")
    if resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return _invalid(f"Invalid resourceType {resource_type.name}")
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return _invalid(f"Invalid patternType {pattern_type.name}")
    if operation in (Operation.UNKNOWN, Operation.ANY):
        return _invalid(f"Invalid operation {operation.name}")
    if permission not in (Permission.DENY, Permission.ALLOW):
        return _invalid(f"Invalid permissionType {permission.name}")
    kind, colon, user = principal.partition(":")
    if not (kind and colon and user):
        return _invalid(f"A principal is a type and a name, like User:alice, not {principal!r}")
    why = why_no_client_is_at(host)
    if why is not None:
        return _invalid(why)
    return Rule(resource_type, name, pattern_type, principal, host, operation, permission)


def check_filter(sent: Sent) -> Filter | Refusal:
    """A filter from a request, or why it cannot be used."""
    resource_type = _word(ResourceType, sent.resource_type)
    pattern_type = _word(PatternType, sent.pattern_type)
    if not (resource_type and pattern_type):
        return _invalid("Unknown patternFilter.")
    operation = _word(Operation, sent.operation)
    permission = _word(Permission, sent.permission)
    if not (operation and permission):
        return _invalid("Unknown entryFilter.")
    return Filter(
        resource_type,
        sent.resource_name,
        pattern_type,
        sent.principal,
        sent.host,
        operation,
        permission,
    )


def _word(words: type[E], number: int) -> E:
    """The word of a number; UNKNOWN (0) for a number that Kafka has not given a meaning."""
    try:
        return words(number)
    except ValueError:
        return words(0)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)


# -- records
# ------------------------------------------------------------------------------------------------


def record_of(rule_id: bytes, rule: Rule) -> AccessControlEntryRecord:
    """The record that adds a rule."""
    return AccessControlEntryRecord(
        id=rule_id,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def rule_of(record: AccessControlEntryRecord) -> Rule:
    """The rule of a record; WireError for one with words that this version does not know."""
    try:
        return Rule(
            ResourceType(record.resource_type),
            record.resource_name,
            PatternType(record.pattern_type),
            record.principal,
            record.host,
            Operation(record.operation),
            Permission(record.permission_type),
        )
    except ValueError as problem:
        raise WireError(f"an ACL of a newer version: {problem}") from None
