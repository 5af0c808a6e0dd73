"""Runs the loads, with the sides in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.even import touch, write_back
from bench.load import Load, Round, Scale, Values
from bench.sides import INTERPRETED, KAFKA, KFAKE, Side
from tools.apache_kafka import UnavailableError

FIRST_WARMUP: Final = 1000
"""Warm-up rounds have separate numbers, because rounds name their topics by them."""


@dataclass(slots=True)
class Result:
    """The rounds of a load by side; a side that failed has its message instead."""

    load: Load
    scale: Scale
    rounds: dict[str, list[Values]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: str = ""
    """Why the load could not run at all."""
    seconds: float = 0.0
    """The duration of everything."""


def run_load(
    load: Load, sides: Sequence[Side], scale: Scale, progress: Callable[[str], None]
) -> Result:
    """Runs all rounds of one load on all sides, in turns."""
    sides = taking_part(load, sides, scale)
    result = Result(load, scale, {side.name: [] for side in sides})
    started = time.monotonic()
    try:
        _run_rounds(result, sides, progress)
    except UnavailableError as reason:
        result.left_out = str(reason)
    result.seconds = time.monotonic() - started
    return result


def _run_rounds(result: Result, sides: Sequence[Side], progress: Callable[[str], None]) -> None:
    load, scale = result.load, result.scale
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder, ExitStack() as stack:
        sessions: dict[Side, Round] = {}
        for side in sides:
            progress(f"{side.title}: preparing")
            with _guarded(result, side):
                opened = load.session(side, scale, Path(folder) / side.name)
                sessions[side] = stack.enter_context(opened)
        for side, run in sessions.items():
            progress(f"{side.title}: warm-up")
            with _guarded(result, side):
                _warm_up(load, scale, run)
        for number in range(load.rounds_at(scale)):
            # The first side changes from round to round.
            for side in list(sessions) if number % 2 == 0 else list(reversed(sessions)):
                progress(f"{side.title}: round {number + 1}")
                if side.name not in result.failures:
                    with _guarded(result, side):
                        result.rounds[side.name].append(_run(load, sessions[side], number))


def taking_part(load: Load, sides: Sequence[Side], scale: Scale) -> list[Side]:
    """The sides of this load."""
    alone = load.only_ours or (scale.quick and load.quick_only_ours)
    left_out = {KAFKA.name} if alone else set()
    if not load.compares_builds:
        left_out.add(INTERPRETED.name)
    if alone or not load.on_kfake:
        left_out.add(KFAKE.name)
    return [side for side in sides if side.name not in left_out]


def steps(load: Load, sides: Sequence[Side], scale: Scale) -> int:
    """The number of progress reports of `run_load`."""
    return len(taking_part(load, sides, scale)) * (2 + load.rounds_at(scale))


def _warm_up(load: Load, scale: Scale, run: Round) -> None:
    seconds = scale.of(load.warmup_seconds, load.quick_warmup_seconds)
    started = time.monotonic()
    number = FIRST_WARMUP
    while time.monotonic() - started < seconds:
        _run(load, run, number)
        number += 1


def _run(load: Load, run: Round, number: int) -> Values:
    write_back()
    touch(load.room_bytes)
    return run(number)


@contextmanager
def _guarded(result: Result, side: Side) -> Iterator[None]:
    """Reports a side that fails and continues with the others; a missing tool ends the load."""
    try:
        yield
    except UnavailableError:
        raise
    except Exception as failure:  # noqa: BLE001 - whatever it was, the other side still counts.
        result.failures[side.name] = f"{type(failure).__name__}: {failure}"
