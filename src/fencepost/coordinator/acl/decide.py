"""The decision; `coordinator/acl/__init__.py` has the rule in words."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from fencepost.coordinator.acl.rules import (
    ALL_HOSTS,
    ALL_NAMES,
    EVERYONE,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    canonical_host,
)
from fencepost.coordinator.acl.state import AclState


class Policy(NamedTuple):
    """What the settings of a broker add to the rules."""

    super_users: frozenset[str] = frozenset()
    allow_without_rules: bool = False
    """allow.everyone.if.no.acl.found"""


class Question(NamedTuple):
    """May this principal, from this host, perform the operation on the resource?"""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    resource_name: str


class Why(Enum):
    """What has decided."""

    SUPER_USER = "the principal is a super user"
    RULE = "a rule"
    NO_RULES = "no rule is attached to the resource (allow.everyone.if.no.acl.found)"
    NONE_FITS = "no rule that is attached to the resource fits"


class Verdict(NamedTuple):
    """The answer, and why."""

    is_allowed: bool
    why: Why
    rule: Rule | None = None

    def __str__(self) -> str:
        word = "allowed" if self.is_allowed else "denied"
        return f"{word}: {self.why.value if self.rule is None else self.rule}"


_PROBE: Final = "hardcode"
"""The name that `decide_by_type` asks about first, as Kafka does."""


def decide(state: AclState, policy: Policy, question: Question) -> Verdict:
    """Answers a question, with the rule that decided."""
    principal, host, operation, resource_type, name = question
    if principal in policy.super_users:
        return Verdict(True, Why.SUPER_USER)
    host = canonical_host(host)
    askers = tuple((who, at) for who in (principal, EVERYONE) for at in (host, ALL_HOSTS))
    allowing: Rule | None = None
    is_attached = False
    for attached in state.attached(resource_type, name):
        is_attached = True
        for asker in askers:
            for entry in attached.get(asker, ()):
                if operation in entry.operations:
                    if entry.is_deny:
                        return Verdict(False, Why.RULE, entry.rule)
                    allowing = entry.rule
    if allowing is not None:
        return Verdict(True, Why.RULE, allowing)
    if not is_attached:
        return Verdict(policy.allow_without_rules, Why.NO_RULES)
    return Verdict(False, Why.NONE_FITS)


def decide_by_type(
    state: AclState,
    policy: Policy,
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
) -> bool:
    """Whether the principal may perform an operation on some resource of a type, existing or not.

    It may if a rule allows the operation and no rule that denies it covers all that is allowed.
    Unlike in `decide`, nothing is implied.
    """
    probe = Question(principal, host, operation, resource_type, _PROBE)
    if decide(state, policy, probe).is_allowed:
        return True
    asked = (resource_type, principal, canonical_host(host), operation)
    denied_names: set[str] = set()
    denied_prefixes: set[str] = set()
    for rule in _relevant(state, *asked, Permission.DENY):
        is_prefix = rule.pattern_type is PatternType.PREFIXED
        (denied_prefixes if is_prefix else denied_names).add(rule.resource_name)
    if ALL_NAMES in denied_names:
        return False
    return any(
        not _is_covered(rule, denied_names, denied_prefixes)
        for rule in _relevant(state, *asked, Permission.ALLOW)
    )


def _relevant(
    state: AclState,
    resource_type: ResourceType,
    principal: str,
    host: str,
    operation: Operation,
    permission: Permission,
) -> Iterator[Rule]:
    for who in dict.fromkeys((principal, EVERYONE)):
        for named in dict.fromkeys((operation, Operation.ALL)):
            for entry in state.entries_of(resource_type, who, named, permission):
                if entry.host in (host, ALL_HOSTS):
                    yield entry.rule


def _is_covered(rule: Rule, denied_names: set[str], denied_prefixes: set[str]) -> bool:
    """Whether everything that a rule allows is denied by one literal or one prefix."""
    name = rule.resource_name
    if rule.pattern_type is PatternType.LITERAL:
        if name == ALL_NAMES:
            return False
        if name in denied_names:
            return True
    return any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))
