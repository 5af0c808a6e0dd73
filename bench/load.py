"""A load: a name, its measures, and a session per side that runs round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.sides import Side

Values = Mapping[str, float]
"""The numbers of one round by measure."""
Round = Callable[[int], Values]


@dataclass(frozen=True, slots=True)
class Scale:
    """The amounts of a run: `quick` for a first impression, otherwise for publication."""

    quick: bool
    rounds: int | None = None
    """The number of repetitions of each load, if it is not the load's own."""

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


Session = Callable[[Side, Scale, Path], AbstractContextManager[Round]]
"""Prepares a side for rounds; the folder is private and deleted afterwards."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a load, and its goal."""

    name: str
    unit: str
    better: Literal["more", "less"]
    ratio: float | None = None
    """The ratio of ours to theirs that should be reached (more) or not exceeded (less)."""
    limit: float | None = None
    """The value that ours should reach or not exceed, whatever the others do."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of some measures of a load, with a line per side."""

    name: str
    """The file name without its suffix."""
    title: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, str], ...]
    """The position of a measure on the x axis, and its label."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load."""

    name: str
    title: str
    measures: tuple[Measure, ...]
    session: Session
    rounds: int = 5
    quick_rounds: int = 3
    warmup_seconds: int = 20
    quick_warmup_seconds: int = 8
    """The time of warm-up rounds per side, at least one round; 0 for none.

    Virtual machines compile code that runs often, so Apache Kafka reaches its speed only after some
    seconds under load.
    """
    room_bytes: int = 0
    """The bytes that a round writes, if they are so many that their memory should be touched
    before."""
    quick_note: str = ""
    """The part of the title that a quick run leaves out."""
    plots: tuple[Plot, ...] = ()
    only_ours: bool = False
    """Whether only fencepost is measured, because the question makes no sense elsewhere."""
    quick_only_ours: bool = False
    """The same for quick runs only, because the other side takes too long."""
    compares_builds: bool = False
    """Whether the side `interpreted` takes part if it is requested."""
    on_kfake: bool = False
    """Whether the side `kfake` takes part: it keeps nothing on disk, and has one broker."""
    in_quick: bool = True
    """Whether a quick run includes it without naming it."""

    def rounds_at(self, scale: Scale) -> int:
        return scale.rounds or scale.of(self.rounds, self.quick_rounds)

    def title_at(self, scale: Scale) -> str:
        return (
            f"{self.title} (quick: {self.quick_note})"
            if scale.quick and self.quick_note
            else self.title
        )
