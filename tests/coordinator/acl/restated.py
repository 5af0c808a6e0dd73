"""The rule of Kafka's authorizer, restated as plainly as possible: a scan over all rules."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.coordinator.acl.decide import Policy, Question
from fencepost.coordinator.acl.rules import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)

IMPLY_DESCRIBE = (
    Operation.DESCRIBE,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
)
IMPLY_DESCRIBE_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)


def is_attached(rule: Rule, resource_type: ResourceType, name: str) -> bool:
    if rule.resource_type is not resource_type:
        return False
    if rule.pattern_type is PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, "*")


def fits(rule: Rule, question: Question) -> bool:
    if rule.principal not in (question.principal, "User:*"):
        return False
    if rule.host not in (question.host, "*"):
        return False
    if rule.operation in (Operation.ALL, question.operation):
        return True
    if rule.permission is not Permission.ALLOW:
        return False
    if question.operation is Operation.DESCRIBE:
        return rule.operation in IMPLY_DESCRIBE
    if question.operation is Operation.DESCRIBE_CONFIGS:
        return rule.operation in IMPLY_DESCRIBE_CONFIGS
    return False


def is_allowed(rules: Iterable[Rule], policy: Policy, question: Question) -> bool:
    if question.principal in policy.super_users:
        return True
    attached = [
        rule for rule in rules if is_attached(rule, question.resource_type, question.resource_name)
    ]
    if not attached:
        return policy.allow_without_rules
    fitting = [rule for rule in attached if fits(rule, question)]
    if any(rule.permission is Permission.DENY for rule in fitting):
        return False
    return bool(fitting)


def is_allowed_somewhere(
    rules: Iterable[Rule],
    policy: Policy,
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
) -> bool:
    """By Kafka's own steps, which ask for a name of their own first."""
    rules = list(rules)
    probe = Question(principal, host, operation, resource_type, "hardcode")
    if is_allowed(rules, policy, probe):
        return True
    fitting = [
        rule
        for rule in rules
        if rule.resource_type is resource_type
        and rule.principal in (principal, "User:*")
        and rule.host in (host, "*")
        and rule.operation in (operation, Operation.ALL)
    ]
    denying = [rule for rule in fitting if rule.permission is Permission.DENY]
    if any(
        rule.resource_name == "*" and rule.pattern_type is PatternType.LITERAL for rule in denying
    ):
        return False

    def is_covered(rule: Rule) -> bool:
        if rule.pattern_type is PatternType.LITERAL and rule.resource_name == "*":
            return False
        return any(
            rule.resource_name.startswith(deny.resource_name)
            if deny.pattern_type is PatternType.PREFIXED
            else (
                rule.pattern_type is PatternType.LITERAL
                and rule.resource_name == deny.resource_name
            )
            for deny in denying
        )

    return any(rule.permission is Permission.ALLOW and not is_covered(rule) for rule in fitting)
