"""The class of a setting: a typed attribute with Kafka's name, a default and a check.

A table of settings is a class (`broker/settings/tables.py`). Each attribute is a `Setting`; its
Kafka name is the attribute name with dots for underscores. An object with values keeps them in its
`__dict__` under the same name, so reading one costs no more than any attribute, and mypy knows its
type.

Numbers and booleans are parsed by `base/options.py`; a list is split at commas.
"""

from __future__ import annotations

import contextlib
import ipaddress
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
N = TypeVar("N", int, int | None)
S = TypeVar("S", str, str | None)
W = TypeVar("W", tuple[str, ...], tuple[str, ...] | None)

Check = Callable[[Any], str | None]
"""Returns what a value must be, as the end of the sentence "... must be"; None if it is valid."""


class Kind(Enum):
    """Kafka's types of settings, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9
    """A string that is never shown."""


class Update(Enum):
    """Whether a broker setting can change at run time, and for which brokers (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Setting(Generic[T]):
    """One setting of a table."""

    __slots__ = (
        "attribute",
        "check",
        "counts_replicas",
        "default",
        "doc",
        "kind",
        "name",
        "synonyms",
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
        self.counts_replicas = False
        self.synonyms: tuple[str, ...] = ()
        """For a topic setting: the broker settings that are its default, the strongest first."""
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
        # An object with values has the attribute in its __dict__, which Python looks up first.
        return self if instance is None else self.default

    def parse(self, text: str) -> T:
        """Parses a text; ConfigError says what the value must be."""
        value = _PARSERS[self.kind](self.name, text)
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise must_be(self.name, problem, text)
        return value  # type: ignore[no-any-return]

    def warn_of(self, text: str) -> str | None:
        """A warning for a value that has no effect; None for the default."""
        if self.why_no_effect is None or self.parse(text) == self.default:
            return None
        return f"{self.name} has no effect: {self.why_no_effect}"

    def show(self, value: T | None) -> str | None:
        """Formats a value as Kafka's tools print it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def settings_of(table: type) -> Iterator[Setting[Any]]:
    """All settings of a table, in declaration order."""
    for cls in reversed(table.__mro__):
        for value in vars(cls).values():
            if isinstance(value, Setting):
                yield value


# -- declarations
# ------------------------------------------------------------------------------------------------


def flag(
    default: bool, doc: str, *, update: Update = Update.READ_ONLY, why_differs: str | None = None
) -> Setting[bool]:
    """A boolean."""
    return Setting(Kind.BOOLEAN, default, doc, None, update, why_differs)


def integer(
    default: N,
    doc: str,
    check: Check | None = None,
    *,
    kind: Kind = Kind.INT,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[N]:
    """An integer of 16, 32 or 64 bits, by its kind; None where another setting is the fallback."""
    return Setting(kind, default, doc, check, update, why_differs)


def number(
    default: float, doc: str, check: Check | None = None, *, update: Update = Update.READ_ONLY
) -> Setting[float]:
    """A floating-point number."""
    return Setting(Kind.DOUBLE, default, doc, check, update, None)


def text(
    default: S,
    doc: str,
    check: Check | None = None,
    *,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[S]:
    """A string, or one of a few words."""
    return Setting(Kind.STRING, default, doc, check, update, why_differs)


def password(doc: str, *, update: Update = Update.READ_ONLY) -> Setting[str | None]:
    """A secret, which no description shows."""
    return Setting(Kind.PASSWORD, None, doc, None, update, None)


def words(
    default: W,
    doc: str,
    check: Check | None = None,
    *,
    update: Update = Update.READ_ONLY,
    why_differs: str | None = None,
) -> Setting[W]:
    """A comma-separated list."""
    return Setting(Kind.LIST, default, doc, check, update, why_differs)


def without_effect(setting: Setting[T]) -> Setting[T]:
    """Marks a setting that is checked, stored and described as in Kafka but has no effect."""
    setting.why_no_effect = setting.doc
    setting.doc = f"No effect: {setting.doc}."
    return setting


def replica_count(setting: Setting[int]) -> Setting[int]:
    """Marks a number of replicas: any value is accepted, up to one per broker has an effect."""
    setting.counts_replicas = True
    return setting


def inherited(setting: Setting[T], *broker: Setting[Any]) -> Setting[T]:
    """Marks a topic setting whose default is the first of these broker settings with a value."""
    setting.synonyms = tuple(each.name for each in broker)
    return setting


def like(broker: Setting[T]) -> Setting[T]:
    """A topic setting with the type, doc, check and default of a broker setting."""
    copied = Setting(broker.kind, broker.default, broker.doc, broker.check, Update.READ_ONLY, None)
    copied.why_no_effect = broker.why_no_effect
    return inherited(copied, broker)


# -- checks
# -------------------------------------------------------------------------------------------------


def at_least(low: float) -> Check:
    """Rejects smaller numbers."""
    return lambda value: None if value >= low else f"at least {low}"


def between(low: float, high: float) -> Check:
    """Rejects numbers outside the bounds, which are allowed themselves."""
    return lambda value: None if low <= value <= high else f"between {low} and {high}"


def one_of(*allowed: str) -> Check:
    """Rejects any other word; case matters, as in Kafka."""
    return lambda value: None if value in allowed else f"one of {', '.join(allowed)}"


def only(word: str) -> Check:
    """Rejects any other word."""
    return lambda value: None if value == word else word


def each_of(*allowed: str) -> Check:
    """Rejects a list with any other word."""
    return lambda value: None if set(value) <= set(allowed) else f"a list of {', '.join(allowed)}"


def not_zero(value: int) -> str | None:
    """Rejects 0, which would delete everything; a negative number means never."""
    return None if value else "-1, or at least 1"


def gzip_level(value: int) -> str | None:
    """Rejects levels that gzip does not have, and 0 (no compression); -1 is the codec's default."""
    return None if value == -1 or 1 <= value <= 9 else "-1, or between 1 and 9"


def replicas(value: tuple[str, ...]) -> str | None:
    """Rejects anything but a list of partition:broker, or * for all."""
    if value == ("*",) or all(_REPLICA.fullmatch(word) for word in value):
        return None
    return "*, or a list of partition:broker"


STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def standard_authorizer(value: str) -> str | None:
    """Rejects any other class: there are no plugins."""
    return None if value in ("", STANDARD_AUTHORIZER) else f"{STANDARD_AUTHORIZER}, or empty"


def split_principals(value: str) -> tuple[str, ...]:
    """The principals of a list with semicolons: a distinguished name has commas."""
    return tuple(each.strip() for each in value.split(";") if each.strip())


def principals(value: str) -> str | None:
    """Rejects anything but a list of Type:name."""
    if all(all(each.partition(":")) for each in split_principals(value)):
        return None
    return "principals with semicolons between them, such as User:admin;User:ops"


# -- parsing
# ---------------------------------------------------------------------------------------------

_REPLICA: Final = re.compile(r"([0-9]+:[0-9]+)?")


def _whole_up_to(most: int) -> Callable[[str, str], int]:
    return lambda name, given: parse_whole(name, given, least=-most - 1, most=most)


def _parse_list(name: str, given: str) -> tuple[str, ...]:
    trimmed = given.strip()
    return tuple(each.strip() for each in trimmed.split(",")) if trimmed else ()


_PARSERS: Final[dict[Kind, Callable[[str, str], Any]]] = {
    Kind.BOOLEAN: parse_boolean,
    Kind.STRING: lambda name, given: given.strip(),
    Kind.PASSWORD: lambda name, given: given,
    Kind.SHORT: _whole_up_to(INT16_MAX),
    Kind.INT: _whole_up_to(INT32_MAX),
    Kind.LONG: _whole_up_to(INT64_MAX),
    Kind.DOUBLE: parse_fraction,
    Kind.LIST: _parse_list,
}


def parse_overrides(value: str) -> dict[str, int]:
    """Connections by address, as sockets spell it: `127.0.0.1:200,[::1]:5`; or ValueError."""
    found = {}
    for entry in filter(None, (each.strip() for each in value.split(","))):
        text, _, count = entry.rpartition(":")
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
        found[str(getattr(address, "ipv4_mapped", None) or address)] = int(count)
    return found


def overrides(value: str) -> str | None:
    """Rejects names, which no client would match, and counts that are none."""
    with contextlib.suppress(ValueError):
        if all(count >= 0 for count in parse_overrides(value).values()):
            return None
    return "IP addresses with numbers, such as 127.0.0.1:200,[::1]:5; names are not looked up"
