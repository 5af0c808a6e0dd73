"""The exceptions of fencepost.

An error that a client causes is an `ErrorCode` in a reply, never an exception. A bug is a failed
`assert`, so the broker refuses to run under `python -O`. All other failures are here.
"""

from __future__ import annotations


class FencepostError(Exception):
    """The base of all exceptions that fencepost raises on purpose."""


class WireError(FencepostError):
    """A peer violated the protocol: its connection is closed."""


class StorageError(FencepostError):
    """A disk operation failed. Nothing was applied; the client gets KAFKA_STORAGE_ERROR."""


class CorruptError(StorageError):
    """Bytes on the disk differ from those that were written."""


class DamagedError(CorruptError):
    """Requested records are in a damaged range of the file; records around it can be read."""


class SyncError(StorageError):
    """The disk did not confirm a sync.

    What the disk holds is unknown, and a second sync would hide that: the process ends.
    """


class ConfigError(FencepostError):
    """A setting that cannot be used; the message says why and which values are accepted."""
