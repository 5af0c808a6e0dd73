"""What a load is: a name, what it measures, and a session per side that answers round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.sides import Side

Values = Mapping[str, float]
"""The numbers of one round, by the name of their measure."""
Round = Callable[[int], Values]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: `quick` for a look, otherwise for the record."""

    quick: bool
    rounds: int | None = None
    """How many of each load, where somebody wants another number than the load itself."""

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


Session = Callable[[Side, Scale, Path], AbstractContextManager[Round]]
"""Gets a side ready for rounds; the folder is its own, and is deleted afterwards."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a load, and what we want it to be."""

    name: str
    unit: str
    better: Literal["more", "less"]
    ratio: float | None = None
    """What ours divided by theirs should reach (more), or stay under (less)."""
    limit: float | None = None
    """What ours should reach, or stay under, whatever the others do."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of some measures of a load, a line per side."""

    name: str
    """Of its file, without the ending."""
    title: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, str], ...]
    """Where a measure stands on the x axis, and its name."""


@dataclass(frozen=True, slots=True)
class Load:
    """One thing to measure."""

    name: str
    title: str
    measures: tuple[Measure, ...]
    session: Session
    rounds: int = 5
    quick_rounds: int = 3
    warmup_seconds: int = 20
    quick_warmup_seconds: int = 8
    """How long each side runs rounds that are not counted, one at least; 0 for none at all.

    Virtual machines compile what runs often, so that Apache Kafka needs some seconds under load to
    show what it can do.
    """
    room_bytes: int = 0
    """What a round writes, where it is so much that the memory for it should be at hand."""
    quick_note: str = ""
    """What the title promises and a quick run does not do."""
    plots: tuple[Plot, ...] = ()
    only_ours: bool = False
    """Whether nothing but fencepost is asked, because the question makes no sense elsewhere."""
    quick_only_ours: bool = False
    """The same in a quick run only, because the other side takes too long."""
    compares_builds: bool = False
    """Whether fencepost's side `interpreted` takes part where it is wanted."""
    in_quick: bool = True
    """Whether a quick run has it when it was not asked for by name."""

    def rounds_at(self, scale: Scale) -> int:
        return scale.rounds or scale.of(self.rounds, self.quick_rounds)

    def title_at(self, scale: Scale) -> str:
        return (
            f"{self.title} (quick: {self.quick_note})"
            if scale.quick and self.quick_note
            else self.title
        )
