"""Rules in words, as people write and read them: `fencepost acl`, and tests with `security=`.

A resource is written TYPE:NAME (`topic:orders`, `group:readers`, `txn:writer`, `cluster`), and a
prefix with a star at its end (`topic:orders-*`). `topic:*` are all topics.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.options import suggest
from fencepost.coordinator.acl.rules import (
    ALL_HOSTS,
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)

_TYPES: Final = {
    "topic": "TOPIC",
    "group": "GROUP",
    "txn": "TRANSACTIONAL_ID",
    "transactional-id": "TRANSACTIONAL_ID",
    "cluster": "CLUSTER",
    "token": "DELEGATION_TOKEN",
    "user": "USER",
}
_WORDS: Final = {
    "TOPIC": "topic",
    "GROUP": "group",
    "TRANSACTIONAL_ID": "txn",
    "CLUSTER": "cluster",
    "DELEGATION_TOKEN": "token",
    "USER": "user",
}


def read_rule(principal: str, operation: str, resource: str, *, deny: bool, host: str) -> Rule:
    """Parses the arguments of `fencepost acl add`; FencepostError says what to write."""
    kind, name, is_prefix = read_resource(resource)
    if not all(principal.partition(":")):
        raise FencepostError(
            f"A principal is a type and a name, such as User:alice, not {principal!r}."
        )
    return Rule(
        kind,
        name,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        principal,
        host,
        read_operation(operation),
        Permission.DENY if deny else Permission.ALLOW,
    )


def read_operation(word: str) -> Operation:
    """Parses an operation, in any case, with hyphens or underscores."""
    known = {each.name.lower(): each for each in Operation if each > Operation.ANY}
    found = known.get(word.lower().replace("-", "_"))
    if found is None:
        raise FencepostError(
            f"There is no operation {word!r}{suggest(word.lower(), known) or '.'} "
            f"Operations are {', '.join(known)}."
        )
    return found


def read_resource(text: str, *, is_pattern: bool = True) -> tuple[ResourceType, str, bool]:
    """The type, the name, and whether the name is a prefix."""
    word, colon, name = text.partition(":")
    kind = _TYPES.get(word.lower())
    if kind is None:
        raise FencepostError(
            f"{text!r} is not a resource: write topic:NAME, group:NAME, txn:ID or cluster."
        )
    if kind == "CLUSTER":
        return ResourceType.CLUSTER, name or CLUSTER_NAME, False
    if not (colon and name):
        raise FencepostError(f"{text!r} names no {word}: write {word}:NAME, or {word}:* for all.")
    if is_pattern and len(name) > 1 and name.endswith("*"):
        return ResourceType[kind], name[:-1], True
    return ResourceType[kind], name, False


def resource_words(rule: Rule) -> str:
    """A resource as `read_resource` parses it."""
    if rule.resource_type is ResourceType.CLUSTER:
        return "cluster"
    star = "*" if rule.pattern_type is PatternType.PREFIXED else ""
    return f"{_WORDS[rule.resource_type.name]}:{rule.resource_name}{star}"


def words_of(rule: Rule) -> str:
    """A rule in one line."""
    host = "" if rule.host == "*" else f" from {rule.host}"
    return (
        f"{rule.permission.name.lower()} {rule.principal}{host} {rule.operation.name.lower()} "
        f"{resource_words(rule)}"
    )


def read_sentence(text: str) -> Rule:
    """Parses a rule in one line, as `words_of` writes it; `allow` may be left out."""
    words = text.split()
    is_deny = words[:1] == ["deny"]
    if words[:1] in (["allow"], ["deny"]):
        words = words[1:]
    host = ALL_HOSTS
    if len(words) > 2 and words[1] == "from":
        host = words[2]
        words = [words[0], *words[3:]]
    if len(words) != 3:
        raise FencepostError(
            f"{text!r} is not an ACL: write PRINCIPAL OPERATION RESOURCE, such as "
            "`User:alice read topic:orders`, with `deny` before it to deny."
        )
    return read_rule(*words, deny=is_deny, host=host)
