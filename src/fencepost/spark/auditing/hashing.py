"""128 bits of each key.

Two keys are taken for equal if their hashes are. With 128 bits and a billion records the chance of
one collision is about one in 10^21. All tasks of a job must use the same function: BLAKE2b for
small jobs, because numba takes seconds to load, and MurmurHash3 in compiled loops for large ones.
The seed is drawn once per audit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

HASH_BYTES: Final = 16
COMPILED_RECORDS: Final = 200_000
"""From this many records on, the compiled function pays."""

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Hashing:
    """The hash function of one audit."""

    seed: int
    is_compiled: bool

    def hashes(self, keys: pa.Array) -> Hashes:
        """One row of two numbers per key; those of null keys mean nothing."""
        if self.is_compiled:
            from fencepost.spark.auditing.compiled_hashing import compiled_hashes

            return compiled_hashes(keys, self.seed)
        return _plain_hashes(keys, self.seed)


def _plain_hashes(keys: pa.Array, seed: int) -> Hashes:
    salt = seed.to_bytes(8, "little")
    digests = b"".join(
        hashlib.blake2b(key or b"", digest_size=HASH_BYTES, key=salt).digest()
        for key in keys.to_pylist()
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2)
