"""A form in one version: the input of the generators in `reading.py` and `writing.py`.

Layout of a struct (big-endian): the fields of the version in order, then, in flexible versions, the
tagged ones: a count, and for each its number, its size and its bytes, ascending by number.

    kind          in old versions                   in flexible versions
    string        int16 length (-1: null), UTF-8    uvarint length + 1 (0: null), UTF-8
    bytes,records int32 length (-1: null)           uvarint length + 1 (0: null)
    []T           int32 count (-1: null)            uvarint count + 1 (0: null)
    struct        its fields; if nullable, first an int8: -1 for null, else 1 (KIP-893)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from fencepost.wire.schema import (
    FIXED,
    UNSET,
    Field,
    is_flexible,
    struct_class,
    version_range,
    versions_of,
)

_KEPT_RUNS: Final = 256


class Runs(dict[int, Callable[..., Any]]):
    """A method of `struct.Struct` for n equal fixed items; those of short runs are kept."""

    def __init__(self, code: str, method: str) -> None:
        self._code = code
        self._method = method

    def __missing__(self, count: int) -> Callable[..., Any]:
        # "16s" repeated is the only code that cannot carry a count in front.
        body = self._code * count if len(self._code) > 1 else f"{count}{self._code}"
        made: Callable[..., Any] = getattr(struct.Struct(">" + body), self._method)
        if count <= _KEPT_RUNS:
            self[count] = made
        return made


class Source:
    """The lines of a generated function, and the names that they use."""

    def __init__(self, plan: Plan, scope: dict[str, Any]) -> None:
        self.plan = plan
        self.title = f"{plan.form.__name__} v{plan.version}"
        self.lines: list[str] = []
        self.depth = 2
        self.counter = 0
        self.pending: list[tuple[str, str]] = []
        """Fixed values that wait for their neighbours: struct codes and expressions."""
        self.scope = scope

    def _emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _name(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"


class Place(NamedTuple):
    """A field in one version."""

    field: Field
    name: str
    kind: str
    """`bytes`, `string`, a fixed kind, or `struct`; for an array, the kind of its items."""
    is_array: bool
    struct: type[Any] | None
    nullable: bool
    present: bool
    tag: int | None
    compact: bool

    @property
    def is_fixed(self) -> bool:
        """Whether the value has a fixed size."""
        return not self.is_array and self.kind in FIXED

    @property
    def prefix(self) -> str:
        """The struct code of the length, count or null mark before a value."""
        if not self.is_array and self.kind == "struct":
            return "b"
        if self.compact:
            return "B"
        return "h" if self.kind == "string" and not self.is_array else "i"


class Plan(NamedTuple):
    """A struct in one version of its message."""

    form: type[Any]
    flexible: bool
    version: int
    places: tuple[Place, ...]

    @property
    def ordered(self) -> Iterable[Place]:
        """The fields of this version that have no tag, in order."""
        return (p for p in self.places if p.present and p.tag is None)

    @property
    def tagged(self) -> list[Place]:
        """The tagged fields of this version, by tag."""
        found = [p for p in self.places if p.present and p.tag is not None]
        return sorted(found, key=lambda p: p.tag or 0)

    def inner(self, place: Place) -> Plan:
        """The plan of the struct in a field."""
        assert place.struct is not None, place
        return _plan(place.struct, self.version, self.flexible)


def plan_of(form: type[Any], version: int) -> Plan:
    """The plan of a message in one of its versions."""
    assert version in versions_of(form), f"{form.__name__} has no version {version}"
    return _plan(form, version, is_flexible(form, version))


def _plan(form: type[Any], version: int, flexible: bool) -> Plan:
    places = tuple(_place(form, f, version, flexible) for f in form.form_fields)
    return Plan(form, flexible, version, places)


def _place(form: type[Any], f: Field, version: int, flexible: bool) -> Place:
    tagged = f.tag is not None and version in version_range(f.tagged or f.versions)
    assert flexible or not tagged, f"{form.__name__}.{f.name} has a tag in version {version}"
    return Place(
        field=f,
        name=f.name,
        kind="struct" if f.is_struct else f.item_kind,
        is_array=f.is_array,
        struct=struct_class(form, f.item_kind) if f.is_struct else None,
        nullable=f.nullable is not None and version in version_range(f.nullable),
        present=version in version_range(f.versions),
        tag=f.tag if tagged else None,
        compact=flexible and f.compact,
    )


def smallest_size(plan: Plan) -> int:
    """The minimum size of a struct, to check counts against."""
    size = sum(_smallest_place(plan, place) for place in plan.ordered)
    return size + plan.flexible


def _smallest_place(plan: Plan, place: Place) -> int:
    if place.is_fixed:
        return struct.calcsize(">" + FIXED[place.kind])
    if place.kind == "struct" and not place.is_array and not place.nullable:
        return smallest_size(plan.inner(place))
    return struct.calcsize(">" + place.prefix)


def item_size(plan: Plan, place: Place) -> int:
    """The minimum size of an array item, at least 1, so that a count always costs bytes."""
    if place.kind in FIXED:
        return struct.calcsize(">" + FIXED[place.kind])
    if place.kind == "struct":
        return max(1, smallest_size(plan.inner(place)))
    item = place._replace(is_array=False)
    return struct.calcsize(">" + item.prefix)


def holds_records(plan: Plan) -> bool:
    """Whether the message has a `records` field at any depth."""
    return any(
        p.kind == "records" or (p.kind == "struct" and holds_records(plan.inner(p)))
        for p in plan.places
        if p.present
    )


def default_of(form: type[Any], f: Field) -> Any:
    """The value of an absent field; arrays and structs are new objects each time."""
    value = f.default_value()
    if value is not UNSET:
        return value
    return [] if f.is_array else struct_class(form, f.kind)()
