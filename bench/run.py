"""Lets the sides take turns at each load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import Load, Round, Scale, Values
from bench.sides import Side


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
    result = Result(load, scale, {side.name: [] for side in sides})
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder, ExitStack() as stack:
        sessions: dict[Side, Round] = {}
        for side in sides:
            progress(f"{side.title} gets ready")
            opened = load.session(side, scale, Path(folder) / side.name)
            _guarded(result, side, lambda: sessions.update({side: stack.enter_context(opened)}))  # noqa: B023
        for number in range(load.warmups + scale.of(load.rounds, load.quick_rounds)):
            # Who begins changes from round to round.
            order = list(sessions) if number % 2 == 0 else list(reversed(sessions))
            for side in order:
                if side.name not in result.failures:
                    progress(f"{side.title}, {_round_name(load, number)}")
                    _run_round(result, load, side, sessions[side], number)
    return result


def _round_name(load: Load, number: int) -> str:
    return "warming up" if number < load.warmups else f"round {number - load.warmups + 1}"


def _run_round(result: Result, load: Load, side: Side, run: Round, number: int) -> None:
    def one() -> None:
        values = run(number)
        if number >= load.warmups:
            result.rounds[side.name].append(values)

    _guarded(result, side, one)
    # What this round left to be written back must not slow the next one down.
    os.sync()


def _guarded(result: Result, side: Side, step: Callable[[], None]) -> None:
    """A side that fails is reported as such, and the others go on."""
    try:
        step()
    except Exception as failure:  # noqa: BLE001 - whatever it was, the other side still counts.
        result.failures[side.name] = f"{type(failure).__name__}: {failure}"
