"""What a setting is: a typed attribute that knows Kafka's name for it, its default and which values will do.

A table of settings is a class (`broker/settings/tables.py`): each attribute is a `Setting`, and its
Kafka name is the attribute's with dots for underscores. An object with values keeps them in its
`__dict__` under the same attribute, so reading one costs what any attribute costs, and mypy knows
its type.

Numbers and booleans are parsed by `base/options.py`; a list is split at commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, Generic, TypeVar, overload

from fencepost.base.options import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    must_be,
    parse_boolean,
    parse_fraction,
    parse_whole,
)

T = TypeVar("T")

Check = Callable[[Any], str | None]
"""Why a value will not do, as the end of the sentence "... must be"; None when it will."""


class Kind(Enum):
    """Kafka's types of settings; the value is the number by which DescribeConfigs names the type."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Update(Enum):
    """Whether a broker setting may be changed while the broker runs, and for whom (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Setting(Generic[T]):
    """One line of a table of settings."""

    __slots__ = (
        "attribute",
        "check",
        "default",
        "doc",
        "kind",
        "most",
        "name",
        "update",
        "why_differs",
        "why_no_effect",
    )

    def __init__(
        self,
        kind: Kind,
        default: T,
        doc: str,
        check: Check | None,
        update: Update,
        why_differs: str | None,
    ) -> None:
        self.kind = kind
        self.default = default
        self.doc = doc
        self.check = check
        self.update = update
        self.why_differs = why_differs
        self.why_no_effect: str | None = None
        self.most: T | None = None
        self.attribute = ""
        self.name = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = attribute.replace("_", ".")

    def __repr__(self) -> str:
        return f"Setting({self.name}, default {self.show(self.default)})"

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Setting[T] | T:
        # An object with values has this attribute in its own __dict__, which Python asks first.
        return self if instance is None else self.default

    def parse(self, text: str) -> T:
        """The value that a text stands for; ConfigError with the reason when it stands for none."""
        value = _PARSERS[self.kind](self.name, text)
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise must_be(self.name, problem, text)
        return value  # type: ignore[no-any-return]

    def warn_of(self, text: str) -> str | None:
        """A sentence for whoever counts on a value that is only shown."""
        if self.why_no_effect is None or self.parse(text) == self.default:
            return None
        return f"{self.name} has no effect: {self.why_no_effect}"

    def show(self, value: T | None) -> str | None:
        """A value as Kafka's tools print it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def settings_of(table: type) -> Iterator[Setting[Any]]:
    """Every setting that a table declares, in the order of its lines."""
    for cls in reversed(table.__mro__):
        for value in vars(cls).values():
            if isinstance(value, Setting):
                yield value


# -- declaring
# ------------------------------------------------------------------------------------------------


def flag(
    default: bool, doc: str, *, update: Update = Update.READ_ONLY, why_differs: str | None = None
) -> Setting[bool]:
    """A switch: true or false."""
    return Setting(Kind.BOOLEAN, default, doc, None, update, why_differs)


def integer(
    default: int,
    doc: str,
    check: Check | None = None,
    *,
    kind: Kind = Kind.INT,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[int]:
    """A whole number of 16, 32 or 64 bits, by its kind."""
    return Setting(kind, default, doc, check, update, why_differs)


def optional_integer(
    doc: str,
    check: Check | None = None,
    *,
    kind: Kind = Kind.INT,
    update: Update = Update.READ_ONLY,
) -> Setting[int | None]:
    """A whole number that has no default, because another setting stands behind it."""
    return Setting(kind, None, doc, check, update, None)


def number(
    default: float, doc: str, check: Check | None = None, *, update: Update = Update.READ_ONLY
) -> Setting[float]:
    """A number with a fraction."""
    return Setting(Kind.DOUBLE, default, doc, check, update, None)


def text(
    default: str,
    doc: str,
    check: Check | None = None,
    *,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[str]:
    """Any text, or one of a few words."""
    return Setting(Kind.STRING, default, doc, check, update, why_differs)


def optional_text(doc: str) -> Setting[str | None]:
    """A text that may be absent."""
    return Setting(Kind.STRING, None, doc, None, Update.READ_ONLY, None)


def words(
    default: tuple[str, ...],
    doc: str,
    check: Check | None = None,
    *,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[tuple[str, ...]]:
    """A list of words between commas."""
    return Setting(Kind.LIST, default, doc, check, update, why_differs)


def optional_words(doc: str) -> Setting[tuple[str, ...] | None]:
    """A list that may be absent."""
    return Setting(Kind.LIST, None, doc, None, Update.READ_ONLY, None)


def without_effect(setting: Setting[T]) -> Setting[T]:
    """One that is checked, kept and shown as in Kafka, and changes nothing here; its doc says why."""
    setting.why_no_effect = setting.doc
    setting.doc = f"Shown, without effect: {setting.doc}."
    return setting


def at_most_effective(most: T, setting: Setting[T]) -> Setting[T]:
    """One that takes and shows any value that Kafka takes, and acts as if it were no more than `most`."""
    setting.most = most
    return setting


# -- checking
# -------------------------------------------------------------------------------------------------


def at_least(low: float) -> Check:
    """Refuses smaller numbers."""
    return lambda value: None if value >= low else f"at least {low}"


def between(low: float, high: float) -> Check:
    """Refuses numbers outside of the bounds, which belong to it."""
    return lambda value: None if low <= value <= high else f"between {low} and {high}"


def one_of(*allowed: str) -> Check:
    """Refuses any other word; upper and lower case differ, as in Kafka."""
    return lambda value: None if value in allowed else f"one of {', '.join(allowed)}"


def each_of(*allowed: str) -> Check:
    """Refuses a list with any other word in it."""
    return lambda value: None if set(value) <= set(allowed) else f"a list of {', '.join(allowed)}"


def not_zero(value: int) -> str | None:
    """Refuses 0, at which nothing would be kept; whatever is below means never."""
    return None if value else "-1, or at least 1"


def gzip_level(value: int) -> str | None:
    """Refuses 0, which would not compress, with all that is out of bounds; -1 leaves it to the codec."""
    return None if value == -1 or 1 <= value <= 9 else "-1, or between 1 and 9"


def replicas(value: tuple[str, ...]) -> str | None:
    """Refuses what is not a list of partition:broker, or * for all of them."""
    if value == ("*",) or all(_REPLICA.fullmatch(word) for word in value):
        return None
    return "*, or a list of partition:broker"


# -- reading texts
# ---------------------------------------------------------------------------------------------

_REPLICA: Final = re.compile(r"([0-9]+:[0-9]+)?")
_COMMA: Final = re.compile(r"\s*,\s*")


def _whole_up_to(most: int) -> Callable[[str, str], int]:
    return lambda name, given: parse_whole(name, given, least=-most - 1, most=most)


def _parse_list(name: str, given: str) -> tuple[str, ...]:
    trimmed = given.strip()
    return tuple(_COMMA.split(trimmed)) if trimmed else ()


_PARSERS: Final[dict[Kind, Callable[[str, str], Any]]] = {
    Kind.BOOLEAN: parse_boolean,
    Kind.STRING: lambda name, given: given.strip(),
    Kind.SHORT: _whole_up_to(INT16_MAX),
    Kind.INT: _whole_up_to(INT32_MAX),
    Kind.LONG: _whole_up_to(INT64_MAX),
    Kind.DOUBLE: parse_fraction,
    Kind.LIST: _parse_list,
}
