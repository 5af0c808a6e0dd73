"""Lets the sides take turns at each load."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.load import Load, Round, Scale, Values
from bench.sides import FENCEPOST, Side

FIRST_WARMUP: Final = 1000
"""Rounds that warm up have numbers of their own, because rounds name their topics by them."""


@dataclass(slots=True)
class Result:
    """The rounds of a load by side; a side that failed has its sentence instead."""

    load: Load
    scale: Scale
    rounds: dict[str, list[Values]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_load(
    load: Load, sides: Sequence[Side], scale: Scale, progress: Callable[[str], None]
) -> Result:
    """All rounds of one load on all sides, in turns."""
    sides = taking_part(load, sides, scale)
    result = Result(load, scale, {side.name: [] for side in sides})
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder, ExitStack() as stack:
        sessions: dict[Side, Round] = {}
        for side in sides:
            progress(f"{side.title} gets ready")
            opened = load.session(side, scale, Path(folder) / side.name)
            _guarded(result, side, lambda: sessions.update({side: stack.enter_context(opened)}))  # noqa: B023
        for side, run in sessions.items():
            progress(f"{side.title} warms up")
            _guarded(result, side, lambda: _warm_up(load, scale, run))  # noqa: B023
        for number in range(load.rounds_at(scale)):
            # Who begins changes from round to round.
            order = list(sessions) if number % 2 == 0 else list(reversed(sessions))
            for side in order:
                progress(f"{side.title}, round {number + 1}")
                if side.name not in result.failures:
                    one = lambda: result.rounds[side.name].append(_run(sessions[side], number))  # noqa: B023, E731
                    _guarded(result, side, one)
    return result


def taking_part(load: Load, sides: Sequence[Side], scale: Scale) -> list[Side]:
    """The sides that this load asks."""
    alone = load.only_ours or (scale.quick and load.quick_only_ours)
    return [side for side in sides if side is FENCEPOST or not alone]


def steps(load: Load, sides: Sequence[Side], scale: Scale) -> int:
    """How often `run_load` tells of its progress."""
    return len(taking_part(load, sides, scale)) * (2 + load.rounds_at(scale))


def _warm_up(load: Load, scale: Scale, run: Round) -> None:
    seconds = scale.of(load.warmup_seconds, load.quick_warmup_seconds)
    started = time.monotonic()
    number = FIRST_WARMUP
    while time.monotonic() - started < seconds:
        _run(run, number)
        number += 1


def _run(run: Round, number: int) -> Values:
    values = run(number)
    # What this round left to be written back must not slow the next one down.
    os.sync()
    return values


def _guarded(result: Result, side: Side, step: Callable[[], None]) -> None:
    """A side that fails is reported as such, and the others go on."""
    try:
        step()
    except Exception as failure:  # noqa: BLE001 - whatever it was, the other side still counts.
        result.failures[side.name] = f"{type(failure).__name__}: {failure}"
