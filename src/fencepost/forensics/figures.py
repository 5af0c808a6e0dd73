"""A value together with how far it can be trusted.

    exact       the source states it
    estimated   derived: two clocks were compared, or offsets counted that may hold markers
    unknown     it cannot be known here; the value is None, and `source` says why

JSON has all four fields; a table shows an estimate with `~` and an unknown value as `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Certainty(Enum):
    """How far a value can be trusted."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value, how sure it is, its source (a request or a file), and whose clock it is."""

    value: Any
    certainty: Certainty
    source: str
    clock: str | None = None
    """Whose clock a moment or duration comes from: `coordinator`, `client`, `broker`, `here`, or
    two of them such as `coordinator, here`; None for what is not a time."""

    def __post_init__(self) -> None:
        assert (self.value is None) == (self.certainty is Certainty.UNKNOWN), self

    def as_json(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {
            "value": self.value,
            "certainty": self.certainty.value,
            "source": self.source,
            "clock": self.clock,
        }


def exact(value: Any, source: str, clock: str | None = None) -> Figure:
    """Returns a value that its source states."""
    return Figure(value, Certainty.EXACT, source, clock)


def estimated(value: Any, source: str, clock: str | None = None) -> Figure:
    """Returns a derived value."""
    return Figure(value, Certainty.ESTIMATED, source, clock)


def unknown(reason: str) -> Figure:
    """Returns the absence of a value, with the reason."""
    return Figure(None, Certainty.UNKNOWN, reason)
