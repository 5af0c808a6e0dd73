"""All rules of a cluster, indexed for the decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.acl.rules import (
    ALL_NAMES,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    canonical_host,
)


class Entry:
    """A rule in the index, with what a decision needs of it."""

    __slots__ = ("host", "is_deny", "operations", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule: Final = rule
        self.host: Final = canonical_host(rule.host)
        self.operations: Final[frozenset[Operation]] = rule.operations()
        self.is_deny: Final = rule.permission is Permission.DENY


Asker = tuple[str, str]
"""A principal and a host; each of a rule's may be the one that stands for all."""
Attached = dict[Asker, list[Entry]]
"""The rules on one pattern, by whom they are about: a list of ten thousand addresses costs a
decision no more than one."""


Kind = tuple[str, Operation, Permission]
"""A principal, and what is allowed or denied to it."""


class _OfType:
    """The rules about one type of resource."""

    __slots__ = ("by_kind", "lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Attached] = {}
        self.prefixed: dict[str, Attached] = {}
        self.lengths: dict[int, int] = {}
        """How many prefixes have each length."""
        self.by_kind: dict[Kind, dict[Rule, Entry]] = {}

    def add(self, rule: Rule) -> None:
        entry = Entry(rule)
        is_prefix = rule.pattern_type is PatternType.PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        attached = patterns.get(rule.resource_name)
        if attached is None:
            attached = patterns[rule.resource_name] = {}
            if is_prefix:
                length = len(rule.resource_name)
                self.lengths[length] = self.lengths.get(length, 0) + 1
        attached.setdefault((rule.principal, entry.host), []).append(entry)
        kind = (rule.principal, rule.operation, rule.permission)
        self.by_kind.setdefault(kind, {})[rule] = entry

    def remove(self, rule: Rule) -> None:
        is_prefix = rule.pattern_type is PatternType.PREFIXED
        patterns = self.prefixed if is_prefix else self.literal
        attached = patterns[rule.resource_name]
        asker = (rule.principal, canonical_host(rule.host))
        left = [entry for entry in attached[asker] if entry.rule != rule]
        if left:
            attached[asker] = left
        else:
            del attached[asker]
        if not attached:
            del patterns[rule.resource_name]
            if is_prefix:
                length = len(rule.resource_name)
                self.lengths[length] -= 1
                if self.lengths[length] == 0:
                    del self.lengths[length]
        kind = (rule.principal, rule.operation, rule.permission)
        alike = self.by_kind[kind]
        del alike[rule]
        if not alike:
            del self.by_kind[kind]


class AclState:
    """The rules, by their ids; only records of the metadata log change them."""

    __slots__ = ("_types", "ids", "rules", "version")

    def __init__(self) -> None:
        self.rules: Final[dict[bytes, Rule]] = {}
        self.ids: Final[dict[Rule, bytes]] = {}
        """An index over `rules`: there are never two with the same content."""
        self.version = 0
        """Grows with every change; caches of decisions compare it."""
        self._types: Final[dict[ResourceType, _OfType]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AclState) and self.rules == other.rules

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AclState({len(self.rules)} rules)"

    def add(self, rule_id: bytes, rule: Rule) -> None:
        """Adds a rule."""
        assert rule_id not in self.rules, "the id of a rule is new"
        assert rule not in self.ids, "a rule is added once"
        self.rules[rule_id] = rule
        self.ids[rule] = rule_id
        self._types.setdefault(rule.resource_type, _OfType()).add(rule)
        self.version += 1

    def remove(self, rule_id: bytes) -> None:
        """Removes a rule."""
        rule = self.rules.pop(rule_id)
        del self.ids[rule]
        of_type = self._types[rule.resource_type]
        of_type.remove(rule)
        if not of_type.by_kind:
            del self._types[rule.resource_type]
        self.version += 1

    def attached(self, resource_type: ResourceType, name: str) -> Iterator[Attached]:
        """The rules on each pattern that matches a resource."""
        of_type = self._types.get(resource_type)
        if of_type is None:
            return
        literal = of_type.literal
        if name in literal:
            yield literal[name]
        if name != ALL_NAMES and ALL_NAMES in literal:
            yield literal[ALL_NAMES]
        prefixed = of_type.prefixed
        longest = len(name)
        for length in of_type.lengths:
            if length <= longest:
                found = prefixed.get(name[:length])
                if found is not None:
                    yield found

    def entries_of(
        self,
        resource_type: ResourceType,
        principal: str,
        operation: Operation,
        permission: Permission,
    ) -> Iterable[Entry]:
        """The rules that allow or deny one principal exactly this operation, on any name."""
        of_type = self._types.get(resource_type)
        if of_type is None:
            return ()
        return of_type.by_kind.get((principal, operation, permission), {}).values()
