r"""Rules in words, as people write and read them: `fencepost acl`, and tests with `security=`.

A resource is written TYPE:NAME (`topic:orders`, `group:readers`, `txn:writer`, `cluster`), and a
prefix with a star at its end (`topic:orders-*`). `topic:*` are all topics. A star that belongs to
the name itself has a backslash (`group:a\*`): Kafka's tools make such rules of what was meant as a
prefix, and they must not look like one.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.options import suggest
from fencepost.coordinator.acl.rules import (
    ALL_HOSTS,
    CLUSTER_NAME,
    SUPPORTED,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    why_no_client_is_at,
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
    """Parses the arguments of `fencepost acl remove`; FencepostError says what to write."""
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


def refuse_without_effect(rule: Rule) -> None:
    """FencepostError for a new rule that no request would ever meet.

    A broker keeps such a rule, as Kafka does. If it denies, its author feels safe.
    """
    kind, _, user = rule.principal.partition(":")
    if kind != "User" and kind.lower() == "user":
        raise FencepostError(f"{rule.principal!r} is nobody: write User:{user}.")
    why = why_no_client_is_at(rule.host)
    if why is not None:
        raise FencepostError(why)
    known = (Operation.ALL, *SUPPORTED[rule.resource_type])
    if rule.operation not in known:
        raise FencepostError(
            f"{resource_words(rule)} has no operation {rule.operation.name.lower()}: there are "
            f"{', '.join(each.name.lower() for each in known)}."
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
    if kind == "CLUSTER" and not name:
        return ResourceType.CLUSTER, CLUSTER_NAME, False
    if not (colon and name):
        raise FencepostError(f"{text!r} names no {word}: write {word}:NAME, or {word}:* for all.")
    if is_pattern and len(name) > 1 and name.endswith("*"):
        return ResourceType[kind], *_read_star(name[:-1])
    return ResourceType[kind], name, False


def resource_words(rule: Rule) -> str:
    """A resource as `read_resource` parses it."""
    word, name = _WORDS[rule.resource_type.name], rule.resource_name
    if rule.pattern_type is PatternType.PREFIXED:
        return f"{word}:{name}{_backslashes(name)}*"
    if rule.resource_type is ResourceType.CLUSTER:
        return word
    if len(name) > 1 and name.endswith("*"):
        return f"{word}:{name[:-1]}{_backslashes(name[:-1])}\\*"
    return f"{word}:{name}"


def _read_star(before: str) -> tuple[str, bool]:
    """The name, and whether it is a prefix, by what is written before the star.

    Backslashes there are doubled, and one more says that the star is the name's own.
    """
    count = len(_backslashes(before))
    name = before[: len(before) - (count + 1) // 2]
    return (f"{name}*", False) if count % 2 else (name, True)


def _backslashes(text: str) -> str:
    """Those at its end."""
    return text[len(text.rstrip("\\")) :]


def words_of(rule: Rule) -> str:
    """A rule in one line."""
    host = "" if rule.host == "*" else f" from {rule.host}"
    return (
        f"{rule.permission.name.lower()} {rule.principal}{host} {rule.operation.name.lower()} "
        f"{resource_words(rule)}"
    )


def read_sentence(text: str) -> Rule:
    """Parses a new rule in one line, as `words_of` writes it; `allow` may be left out."""
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
    rule = read_rule(*words, deny=is_deny, host=host)
    refuse_without_effect(rule)
    return rule
