"""Which random histories a run tries: always the same ones, and in CI new ones as well.

A red run of the fixed ones means a new bug. The new ones look for old bugs, and each CI run prints
where they begin. FENCEPOST_HISTORIES=500 runs the seeds 0 to 499, and FENCEPOST_HISTORY_SEED=7 one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tests.halves import HALF, half_of

ALWAYS: Final = range(40)
FRESH: Final = 20
"""New seeds of each run, so 40 of `make test` and `make test-compiled` together."""
FRESH_SEEDS: Final = "FENCEPOST_FRESH_SEEDS"
"""The variable with the first of them; without it, there are none."""


def chosen(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The seeds of this run."""
    if seed := environment.get("FENCEPOST_HISTORY_SEED"):
        return [int(seed)]
    if count := environment.get("FENCEPOST_HISTORIES"):
        return list(range(int(count)))
    return [*half_of(ALWAYS), *fresh(environment)]


def fresh(environment: Mapping[str, str] = os.environ) -> range:
    """The new seeds of this run; each half of a CI run has its own."""
    first = environment.get(FRESH_SEEDS)
    if not first:
        return range(0)
    start = int(first) + (HALF - 1) * FRESH
    return range(start, start + FRESH)


def described(environment: Mapping[str, str] = os.environ) -> str:
    """The new seeds, for pytest's header; nothing without any."""
    new = fresh(environment)
    return f"random histories: also the new seeds {new[0]} to {new[-1]}" if new else ""


def replay_command(seed: int) -> str:
    """The command that runs one history again."""
    return (
        f"FENCEPOST_HISTORY_SEED={seed} .venv/bin/python -m pytest "
        "tests/broker/histories/test_histories.py -q -k every_promise"
    )
