"""When the compiled path is worth its start.

A fresh Python worker pays about two seconds for numba with a warm cache. Spark keeps its workers,
so a stream of large batches pays once; a stream of small ones never does.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Final

_MODULE: Final = "fencepost.records.columns"

COLD_ROWS: Final = 20_000
"""Rows that make the start of numba worthwhile: the plain path takes about a tenth of a second for
them."""

WARM_ROWS: Final = 100
"""Below this the plain path is faster, even where the compiled one is loaded."""


def compiled_columns(rows: int, expected: int = 0) -> ModuleType | None:
    """`records.columns` if it is worthwhile for so many rows, and there is a numba; None otherwise.

    `expected` is how many rows will come in all: they come in portions, none of which would be
    worth a start.
    """
    is_warm = _MODULE in sys.modules
    if (rows < WARM_ROWS) if is_warm else (max(rows, expected) < COLD_ROWS):
        return None
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module(_MODULE)


@cache
def spare_the_collector() -> None:
    """Takes what is loaded by now out of the garbage collector's sight; for a task that ends, and once in a process.

    Spark lets its workers collect after every task, and that goes through all that numba, Arrow and
    we have loaded, just when the driver needs a processor to end the batch. Two workers that write
    a gigabyte took 1.44 s of processor time with this, and 1.72 s without.
    """
    gc.collect()
    gc.freeze()
