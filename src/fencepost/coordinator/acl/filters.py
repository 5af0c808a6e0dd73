"""Filters: which rules DescribeAcls lists and DeleteAcls removes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencepost.coordinator.acl.rules import (
    ALL_NAMES,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)
from fencepost.coordinator.acl.state import AclState


class Filter(NamedTuple):
    """Matches rules; None and ANY match everything.

    The pattern type MATCH finds the rules that are attached to the resource of this name: those of
    the literal name, of `*` and of each prefix.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, rule: Rule) -> bool:
        """Whether it matches a rule."""
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
            and self._matches_pattern(rule)
        )

    def only(self) -> Rule | None:
        """The one rule that can match a filter with nothing left open; None for other filters."""
        name, principal, host = self.resource_name, self.principal, self.host
        if (
            name is None
            or principal is None
            or host is None
            or self.resource_type is ResourceType.ANY
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.operation is Operation.ANY
            or self.permission is Permission.ANY
        ):
            return None
        return Rule(
            self.resource_type,
            name,
            self.pattern_type,
            principal,
            host,
            self.operation,
            self.permission,
        )

    def _matches_pattern(self, rule: Rule) -> bool:
        name, pattern_type = self.resource_name, self.pattern_type
        if pattern_type not in (PatternType.ANY, PatternType.MATCH, rule.pattern_type):
            return False
        if name is None:
            return True
        if pattern_type is not PatternType.MATCH:
            return name == rule.resource_name
        if rule.pattern_type is PatternType.PREFIXED:
            return name.startswith(rule.resource_name)
        return rule.resource_name in (name, ALL_NAMES)


def matching(state: AclState, wanted: Filter) -> Iterator[tuple[bytes, Rule]]:
    """The rules that a filter matches, with their ids.

    A tool that removes many rules sends a filter for each, which is looked up.
    """
    only = wanted.only()
    if only is not None:
        rule_id = state.ids.get(only)
        return iter(() if rule_id is None else ((rule_id, only),))
    return ((rule_id, rule) for rule_id, rule in state.rules.items() if wanted.matches(rule))
