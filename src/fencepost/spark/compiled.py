"""When to load the compiled loops.

Loading numba costs a new Python worker about two seconds, even with a warm cache. Spark reuses its
workers, so a stream of large batches pays once; a stream of small ones never does.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Final

_MODULE: Final = "fencepost.records.columns"

COLD_ROWS: Final = 20_000
"""From this many rows on numba is loaded: the plain path needs about 0.1 s for them."""

WARM_ROWS: Final = 100
"""Below this the plain path is faster, even if numba is loaded."""

_frozen_modules = 0
"""How many modules were loaded at the last freeze."""


def compiled_columns(rows: int, expected: int = 0) -> ModuleType | None:
    """`records.columns` if it pays for this many rows and numba is installed; None otherwise.

    `expected` is the number of rows in total: they come in portions, none of which would justify
    loading numba.
    """
    is_warm = _MODULE in sys.modules
    if (rows < WARM_ROWS) if is_warm else (max(rows, expected) < COLD_ROWS):
        return None
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module(_MODULE)


def freeze_loaded_objects() -> None:
    """Freezes all objects loaded so far (`gc.freeze`), at the end of a task that loaded modules.

    Spark's workers run the garbage collector after every task. It would walk everything that Spark,
    Arrow, numba and fencepost loaded, just when the driver needs the processor to end the batch:
    100,000 objects, which takes a hundred times as long as reading one record. A later task
    freezes again only if it has loaded more modules. Frozen garbage is never freed, so the number
    of times must not grow with the number of tasks.
    """
    global _frozen_modules
    loaded = len(sys.modules)
    if loaded > _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = loaded
