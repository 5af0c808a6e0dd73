"""What the user asks: which topics and tables, which keys, and what the pipeline should do.

`Asked` is the question as it is written, in the command and in Python alike; `Question` is what it
means.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

from fencepost.base.failures import ConfigError
from fencepost.base.options import suggest
from fencepost.spark.auditing.keys import (
    WHOLE,
    KeyExpression,
    parse_column,
    parse_field,
    parse_key,
)

EVERY: Final = "every"
ONE: Final = "one"
ALL_OR_NONE: Final = "all-or-none"
ANY: Final = "any"

EXPECTATIONS: Final = {
    EVERY: "each input has its outputs in every output topic",
    ONE: "each input has its outputs in one of the output topics",
    ALL_OR_NONE: "an input has its outputs in every output topic, or none at all (a filter)",
    ANY: "an input may lack any output; it must not have too many",
}
PARTITION: Final = "partition"
NO_ORDER: Final = "none"
ORDERS: Final = (PARTITION, NO_ORDER)
MAX_TOPICS: Final = 60
"""The topics in which an input has no output are bits of one number."""
MAX_PER_INPUT: Final = 1_000_000


class Asked(TypedDict, total=False):
    """A question as the user writes it: the options of the command, under their names in Python."""

    input: str | Sequence[str]
    output: str | Sequence[str]
    input_table: str | Sequence[str]
    table: str | Sequence[str]
    postgres: str | None
    key: str
    input_key: str | None
    output_key: str | None
    table_key: str | None
    compare: str | Sequence[str]
    expect: str
    per_input: int
    distinct: bool
    counts_per_key: bool
    order: str
    group: str | None
    until_ms: int | None
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Side:
    """What the pipeline reads, or what it writes."""

    topics: tuple[str, ...]
    tables: tuple[str, ...]
    key: KeyExpression
    """The key of records."""
    table_key: KeyExpression | None
    """The key of rows."""
    fields: tuple[str, ...] = ()
    """What is compared beside the key: fields of values, and columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """Topics, then tables."""
        return self.topics + self.tables

    @property
    def keys(self) -> tuple[str, ...]:
        """The expressions that are used, in words."""
        used = [str(self.key)] if self.topics else []
        used += [str(self.table_key)] if self.tables else []
        return tuple(dict.fromkeys(used))

    def key_at(self, *, is_table: bool) -> KeyExpression:
        """Where a record, or a row, has its key."""
        if not is_table:
            return self.key
        assert self.table_key is not None
        return self.table_key

    def fields_at(self, *, is_table: bool) -> tuple[KeyExpression, ...]:
        """Where a record, or a row, has what is compared beside the key."""
        return tuple(parse_field(field, is_table=is_table) for field in self.fields)


@dataclass(frozen=True, slots=True)
class Question:
    """The pipeline as the user describes it."""

    input: Side
    output: Side
    postgres: str | None = None
    """The connection string of the database that has the tables."""
    expect: str = EVERY
    per_input: int = 1
    """How many outputs an input has in an output topic or table."""
    distinct: bool = False
    """Whether inputs with equal keys count as one: the pipeline removes duplicates."""
    counts_per_key: bool = False
    """Whether equal counts are enough for the verdict where several outputs have the same key."""
    order: str = PARTITION
    group: str | None = None
    until_ms: int | None = None
    """All inputs that are older have been processed."""
    grace_ms: int = 0

    def __post_init__(self) -> None:
        for kind, here, there in (
            ("records", self.input.topics, self.output.topics),
            ("rows", self.input.tables, self.output.tables),
        ):
            if both := sorted(set(here) & set(there)):
                raise ConfigError(
                    f"{both[0]} is an input and an output: its {kind} cannot be told apart. Give "
                    f"the pipeline a separate output {'topic' if kind == 'records' else 'table'}"
                )
        _require_one_of("expect", self.expect, EXPECTATIONS)
        _require_one_of("order", self.order, ORDERS)
        if not 1 <= self.per_input <= MAX_PER_INPUT:
            raise ConfigError(
                f"per_input must be from 1 to {MAX_PER_INPUT:,}, not {self.per_input}"
            )
        if self.group is not None and self.until_ms is not None:
            raise ConfigError(
                "group and until both say which inputs have been processed: give one of them"
            )
        if self.group is not None and self.input.tables:
            raise ConfigError(
                f"the offsets of a group say nothing of the rows of {self.input.tables[0]}: leave "
                "group out"
            )
        if self.grace_ms < 0:
            raise ConfigError("grace must not be negative")

    @property
    def waits(self) -> bool:
        """Whether the audit gives the pipeline time to catch up."""
        return self.group is None and self.until_ms is None and self.grace_ms > 0

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics."""
        return self.input.topics + self.output.topics

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables."""
        return self.input.tables + self.output.tables

    @property
    def compares(self) -> bool:
        """Whether more than the keys is compared."""
        return bool(self.input.fields)

    @property
    def compared(self) -> str:
        """What says which outputs belong to an input, in words."""
        here, there = self.input.keys, self.output.keys
        if here == there and len(here) == 1:
            return here[0]
        return f"{' or '.join(here)} of inputs and {' or '.join(there)} of outputs"

    @property
    def not_compared(self) -> str:
        """What of the records the audit does not look at, as a sentence."""
        if self.compares:
            if WHOLE in self.input.fields:
                return "Also compared: all contents."
            return f"Also compared: {', '.join(self.input.fields)}; nothing else."
        if self.tables:
            whole = all(WHOLE in key for side in (self.input, self.output) for key in side.keys)
            return "Whole rows were compared." if whole else "Nothing else was compared."
        keys = (self.input.key, self.output.key)
        if all(key == KeyExpression("value") for key in keys):
            return "Keys and headers were not compared."
        rest = "The rest of the values was" if any(key.column == "value" for key in keys) else ""
        return f"{rest or 'Values were'} not compared."

    def side(self, *, is_input: bool) -> Side:
        """The inputs, or the outputs."""
        return self.input if is_input else self.output

    def slot_of(self, name: str, *, is_table: bool = False) -> int:
        """Which set of outputs a topic or table belongs to; -1 for inputs."""
        if name in (self.input.tables if is_table else self.input.topics):
            return -1
        if self.expect == ONE:
            return 0
        if is_table:
            return len(self.output.topics) + self.output.tables.index(name)
        return self.output.topics.index(name)

    @property
    def output_slots(self) -> int:
        """How many sets of outputs an input has: with `one`, all topics and tables are one set."""
        return 1 if self.expect == ONE else len(self.output.names)


def read_question(**asked: Unpack[Asked]) -> Question:
    """Reads what the user wrote; ConfigError names the wrong part and what to write instead."""
    fields: dict[str, Any] = dict(asked)
    known = list(Asked.__annotations__)
    for name in fields:
        if name not in known:
            raise ConfigError(f"an audit has no argument {name!r}{suggest(name, known)}")
    key = fields.pop("key", "key")
    keys = {side: parse_key(fields.pop(f"{side}_key", None) or key) for side in ("input", "output")}
    inputs = _names("input", fields.pop("input", ()), fields.pop("input_table", ()))
    outputs = _names("output", fields.pop("output", ()), fields.pop("table", ()))
    tables = inputs[1] + outputs[1]
    column = _table_key(fields.pop("table_key", None), tables)
    if tables and not fields.get("postgres"):
        raise ConfigError(f"say with postgres which database has the table {tables[0]}")
    pairs = [_pair(each) for each in _listed(fields.pop("compare", ()))]
    here, there = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    return Question(
        Side(*inputs, keys["input"], column, here),
        Side(*outputs, keys["output"], column, there),
        **fields,
    )


def _table_key(text: str | None, tables: tuple[str, ...]) -> KeyExpression | None:
    if text is None and tables:
        raise ConfigError(
            f"say with table_key which column of {tables[0]} has the key: COLUMN, or COLUMN:FIELD "
            f"of a JSON column, or {WHOLE} for the whole row"
        )
    return None if text is None else parse_column(text)


def _pair(text: str) -> tuple[str, str]:
    """`amount`, or `amount=paid` where inputs and outputs have different names."""
    here, _, there = text.partition("=")
    pair = here, there or here
    for field in pair:
        parse_field(field, is_table=False)
    return pair


def _listed(given: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given))


def _names(
    side: str, topics: str | Sequence[str], tables: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = _listed(topics), _listed(tables)
    names = found[0] + found[1]
    if not names or not all(names):
        raise ConfigError(f"name at least one {side} topic, or a table of PostgreSQL")
    if len(names) > MAX_TOPICS:
        raise ConfigError(
            f"an audit takes up to {MAX_TOPICS} {side} topics and tables, not {len(names)}"
        )
    return found


def _require_one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        hint = suggest(value, list(known))
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")
