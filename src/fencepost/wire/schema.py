"""The language in which messages are declared.

    @message(versions="3-13", flexible="9+")
    class ProduceRequest:
        transactional_id: str | None = field("string", nullable="3+", default=None)
        acks: int = field("int16")
        topic_data: list[TopicProduceData] = field("[]TopicProduceData")

A kind is one of the fixed ones (`FIXED`), `string`, `bytes`, `records`, the name of a struct of the
same module, or `[]` and one of these. Version ranges are Kafka's: "3", "3-7", "3+".

A declared class has slots, is built by keywords (every field has a default), compares by value and
prints the fields that differ from their defaults. Declaring must be cheap, because a broker imports
many of these modules: a range stays text and `__init__` is generated on first use.

A tagged struct that is absent is None, and None is written as absent. Kafka's Java client builds a
struct of defaults there, which means the same and costs an object per partition.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, cast, dataclass_transform

from fencepost.base.seams import Buffer

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F")

Records = Buffer | Sequence[Buffer]
"""The values that a `records` field accepts when written; a reader always returns one
memoryview."""

FIXED: Final[Mapping[str, str]] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Kinds of fixed size, each with its code for the struct module."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": None,
}

_OPEN: Final = 32767


FIRST_TAG_OF_OURS: Final = 10_000
"""Tags from here on are fields that fencepost adds to Kafka's messages. Kafka counts from 0."""

OUR_CLIENT: Final = "fencepost"
"""The software name that our client sends with ApiVersions. A broker sends fields of ours to no
other client: a few refuse tags that they do not know, although KIP-482 wants them skipped."""


SECRET_FIELDS: Final = frozenset(
    {"auth_bytes", "salt", "salted_password", "stored_key", "server_key"}
)
"""Fields that no form prints, and no trace has: passwords, and what can replace one."""


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""No value was given, so the default of the kind applies."""


@dataclass(slots=True, eq=False)
class Field:
    """One declared field."""

    kind: str
    versions: str
    nullable: str | None
    tag: int | None
    tagged: str | None
    default: Any
    compact: bool
    name: str = ""

    @property
    def is_array(self) -> bool:
        """Whether the field is an array."""
        return self.kind.startswith("[]")

    @property
    def item_kind(self) -> str:
        """The kind of one item; for a field that is not an array, its kind."""
        return self.kind[2:] if self.is_array else self.kind

    @property
    def is_struct(self) -> bool:
        """Whether the items are structs."""
        kind = self.item_kind
        return kind not in FIXED and kind not in ("string", "bytes", "records")

    def default_value(self) -> Any:
        """The declared default or that of the kind; UNSET if each form needs a new object."""
        if self.default is not UNSET:
            return self.default
        if self.is_array:
            return UNSET
        if self.is_struct:
            return None if self.nullable or self.tag is not None else UNSET
        return _DEFAULTS.get(self.kind, 0)


def field(
    kind: str,
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    tagged_versions: str | None = None,
    default: Any = UNSET,
    compact: bool = True,
) -> Any:
    """Declare a field.

    `compact=False` keeps the old string layout even in flexible versions (client_id).
    """
    return Field(kind, versions, nullable, tag, tagged_versions or versions, default, compact)


class Form:
    """The base class of all declared classes."""

    __slots__ = ()
    form_versions: ClassVar[str | None]
    form_flexible: ClassVar[str]
    form_fields: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        # The first construction generates the real __init__, which replaces this one.
        cls = type(self)
        init = _make_init(cls)
        cls.__init__ = init  # type: ignore[method-assign]
        init(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.form_fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (
            f"{f.name}={'hidden' if f.name in SECRET_FIELDS else repr(value)}"
            for f in self.form_fields
            if (value := getattr(self, f.name, UNSET)) != _plain_default(f)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(kw_only_default=True)
def message(*, versions: str, flexible: str = "none") -> Callable[[type[T]], type[T]]:
    """Declare a message, the outermost struct, which has versions."""

    def declare(cls: type[T]) -> type[T]:
        return _declare(cls, versions, flexible)

    return declare


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a struct within a message, whose versions it shares."""
    return _declare(cls, None, "none")


def _declare(cls: type[T], versions: str | None, flexible: str) -> type[T]:
    fields: list[Field] = []
    namespace: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if isinstance(value, Field):
            value.name = name
            fields.append(value)
        elif name not in ("__dict__", "__weakref__"):
            namespace[name] = value
    namespace["__slots__"] = tuple(f.name for f in fields)
    namespace["form_versions"] = versions
    namespace["form_flexible"] = flexible
    namespace["form_fields"] = tuple(fields)
    return type(cls.__name__, (Form,), namespace)


@cache
def version_range(text: str) -> range:
    """The versions of a range such as "3", "3-7", "3+" or "none"."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), _OPEN + 1)
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def versions_of(form: type[Any]) -> range:
    """The versions of a message."""
    assert form.form_versions is not None, f"{form.__name__} is a part of a message"
    return version_range(form.form_versions)


def is_flexible(form: type[Any], version: int) -> bool:
    """Whether that version of the message has compact lengths and tagged fields (KIP-482)."""
    return version in version_range(form.form_flexible)


def struct_class(owner: type[Any], kind: str) -> type[Any]:
    """The class of a field's kind, in the module of its owner."""
    found = getattr(sys.modules[owner.__module__], kind, None)
    assert isinstance(found, type), f"{owner.__name__}: no {kind}"
    assert issubclass(found, Form), f"{owner.__name__}: {kind} is not declared as a struct"
    return found


def _plain_default(f: Field) -> Any:
    value = f.default_value()
    return [] if value is UNSET and f.is_array else value


def constructor(form: Callable[P, F]) -> Callable[P, F]:
    """A function that makes a form as a call of its class does, in about half the time.

    To call a class, Python makes a dictionary of the arguments, looks up `__new__` and `__init__`,
    and takes the dictionary apart again. This is for the messages of every transaction.
    """
    lines = ["form = new(cls)", *_assignments(form, "form"), "return form"]
    return cast("Callable[P, F]", _generate(form, "make", "", lines))


def _make_init(cls: type[Any]) -> Callable[..., None]:
    """Generate an __init__: one fast call instead of a loop over the fields."""
    return _generate(cls, "__init__", "self, ", _assignments(cls, "self") or ["pass"])


def _assignments(cls: Any, target: str) -> list[str]:
    lines = []
    for f in cls.form_fields:
        value = f.name
        if f.default_value() is UNSET:
            fresh = "[]" if f.is_array else f"c_{f.name}()"
            value = f"{fresh} if {f.name} is UNSET else {f.name}"
        lines.append(f"{target}.{f.name} = {value}")
    return lines


def _generate(cls: Any, name: str, first: str, lines: list[str]) -> Callable[..., Any]:
    """A function whose parameters are the fields.

    Callers name them all the same: they are not keyword-only because Python fills in the defaults
    of such parameters one by one, which takes longer.
    """
    scope: dict[str, Any] = {"UNSET": UNSET, "new": object.__new__, "cls": cls}
    for f in cls.form_fields:
        default = scope[f"d_{f.name}"] = f.default_value()
        if default is UNSET and not f.is_array:
            scope[f"c_{f.name}"] = struct_class(cls, f.kind)
    parameters = ", ".join(f"{f.name}=d_{f.name}" for f in cls.form_fields)
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def {name}({first}{parameters}):\n{body}", scope)  # noqa: S102
    made: Callable[..., Any] = scope[name]
    return made
