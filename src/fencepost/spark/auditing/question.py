"""What the user asks: which topics, which keys, and what the pipeline should do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.options import suggest
from fencepost.spark.auditing.keys import KeyExpression, parse_key

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


@dataclass(frozen=True, slots=True)
class Question:
    """The pipeline as the user describes it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_key: KeyExpression
    output_key: KeyExpression
    expect: str = EVERY
    per_input: int = 1
    """How many outputs an input has in an output topic."""
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
        if both := sorted(set(self.inputs) & set(self.outputs)):
            raise ConfigError(
                f"{both[0]} is an input and an output: its records cannot be told apart. Give the "
                "pipeline a separate output topic"
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
        if self.grace_ms < 0:
            raise ConfigError("grace must not be negative")

    @property
    def waits(self) -> bool:
        """Whether the audit gives the pipeline time to catch up."""
        return self.group is None and self.until_ms is None and self.grace_ms > 0

    @property
    def compared(self) -> str:
        """What says which outputs belong to an input, in words."""
        if self.input_key == self.output_key:
            return str(self.input_key)
        return f"{self.input_key} of inputs and {self.output_key} of outputs"

    @property
    def not_compared(self) -> str:
        """What of the records the audit does not look at, as a sentence."""
        keys = (self.input_key, self.output_key)
        if all(key == KeyExpression("value") for key in keys):
            return "Keys and headers were not compared."
        rest = "The rest of the values was" if any(key.column == "value" for key in keys) else ""
        return f"{rest or 'Values were'} not compared."

    def slot_of(self, topic: str) -> int:
        """Which set of outputs a topic belongs to; -1 for inputs."""
        if topic in self.inputs:
            return -1
        return 0 if self.expect == ONE else self.outputs.index(topic)

    @property
    def output_slots(self) -> int:
        """How many sets of outputs an input has: with `one`, all topics are one set."""
        return 1 if self.expect == ONE else len(self.outputs)


def read_question(
    inputs: str | Sequence[str],
    outputs: str | Sequence[str],
    key: str,
    *,
    input_key: str | None = None,
    output_key: str | None = None,
    **expected: Any,
) -> Question:
    """Reads what the user wrote; ConfigError names the wrong part and what to write instead."""
    return Question(
        _topics("input", inputs),
        _topics("output", outputs),
        parse_key(input_key or key),
        parse_key(output_key or key),
        **expected,
    )


def _topics(side: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys([given] if isinstance(given, str) else given))
    if not names or not all(names):
        raise ConfigError(f"name at least one {side} topic")
    if len(names) > MAX_TOPICS:
        raise ConfigError(f"an audit takes up to {MAX_TOPICS} {side} topics, not {len(names)}")
    return names


def _require_one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        hint = suggest(value, list(known))
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}{hint}")
