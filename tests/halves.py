"""Long matrices are divided between two runs of the same tests.

`make test` runs on the interpreted broker, and `make test-compiled` runs the broker's tests again
on the compiled one. Each takes half of the samples of a long matrix: both run every test, and
together they run every sample. The Makefile says which half a run takes (`FENCEPOST_HALF`), and
pytest's header repeats it. `FENCEPOST_EVERY_CALL=1` runs everything in either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

EVERY_CALL: Final = bool(os.environ.get("FENCEPOST_EVERY_CALL"))
HALF: Final = int(os.environ.get("FENCEPOST_HALF", "1"))
"""1 or 2."""

Sample = TypeVar("Sample")


def half_of(samples: Sequence[Sample], *variation: str) -> Sequence[Sample]:
    """Every second sample.

    The names of a variation decide where it begins: what one variation of a test leaves out,
    another takes in the same run.
    """
    if EVERY_CALL:
        return samples
    turn = sum("".join(variation).encode()) + HALF - 1
    return samples[turn % 2 :: 2]


def examples(count: int) -> int:
    """How many random examples a run draws: half of them, because the other run draws its own."""
    return count if EVERY_CALL else count // 2


def described() -> str:
    """What this run takes, for pytest's header."""
    return "long matrices: " + ("all samples" if EVERY_CALL else f"half {HALF} of 2")
