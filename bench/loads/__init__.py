"""The loads, in the order in which they run."""

from __future__ import annotations

from typing import Final

from bench.load import Load
from bench.loads import consume, memory, produce, restart, start, transactions

LOADS: Final[tuple[Load, ...]] = (
    *produce.LOADS,
    consume.LOAD,
    *transactions.LOADS,
    start.LOAD,
    memory.LOAD,
    restart.LOAD,
)
