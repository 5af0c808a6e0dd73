"""128 bits of each key.

Two keys are taken for equal if their hashes are. With 128 bits and a billion records the chance of
one collision is about one in 10^21. The hash is pandas' SipHash of 64 bits, twice. Its seed is
drawn once per audit, so nobody can prepare keys that collide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def hashes_of(keys: pa.Array, seed: int) -> Hashes:
    """One row of two numbers per key; those of null keys mean nothing."""
    from pandas.util import hash_array

    values = keys.to_numpy(zero_copy_only=False)
    # SipHash takes a key of 16 bytes.
    halves = (f"{seed:016x}", f"{seed ^ 1:016x}")
    return np.column_stack([hash_array(values, hash_key=half, categorize=False) for half in halves])
