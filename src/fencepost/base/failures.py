"""The kinds of failure that are exceptions here (style: four kinds of failure).

What a client may cause is an `ErrorCode` in a reply and never an exception. A bug is an `assert`,
which is why the broker refuses to run under `python -O`. What remains is here.
"""

from __future__ import annotations


class FencepostError(Exception):
    """The root of everything that fencepost raises for a reason it can explain in a sentence."""


class WireError(FencepostError):
    """A peer sent bytes that are not the protocol: its connection is closed."""


class StorageError(FencepostError):
    """The disk said no. Nothing was applied; the partition answers KAFKA_STORAGE_ERROR."""


class CorruptError(StorageError):
    """Bytes on the disk are not what we wrote there."""


class DamagedError(CorruptError):
    """Records that were asked for lie in bytes that fail their check; what lies around them can be read."""


class SyncError(StorageError):
    """The disk did not confirm a sync.

    What it holds is unknown, so nobody may try again: the process ends.
    """


class ConfigError(FencepostError):
    """A setting that cannot be used, with the reason and what would do."""
