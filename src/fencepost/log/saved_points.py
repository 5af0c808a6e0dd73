"""The saved point of a log: where recovery begins after the process was killed.

Every few megabytes, and when the log is closed, the partition saves its producers together with the
state of the active segment (`records/saved_point.py`). Before that, the entries that the index
files lack are added to them. None of it is synced: it is valid only while the page cache has all
that was written. So after a power loss the file is removed before anything else, and only after
a kill recovery begins there.

The point describes a prefix of the log, and a log only grows at its end. The exceptions:

- a torn tail is cut off above the point, or the point does not fit and is removed first;
- compaction and retention replace or remove only sealed segments, and a point in a sealed segment
  is used for the producers alone, as a snapshot at that offset would be;
- a folder that is deleted or set aside keeps its point; the topic id in it is another one;
- `fencepost repair` removes the point together with the index files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log.segment.segment import Segment
from fencepost.records.saved_point import (
    FILE_NAME,
    SavedPoint,
    SavedProducer,
    decode_point,
    encode_point,
)

_LOGGER: Final = logging.getLogger(__name__)


class SavedPoints:
    """The file with the saved point of one log."""

    __slots__ = ("_disk", "_path", "found", "offset")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE_NAME}"
        self.found: SavedPoint | None = None
        """The point of an earlier process, until recovery has used it."""
        self.offset: int | None = None
        """The offset of the point in the file; None if there is none."""

    def load(self) -> None:
        """Reads the file, if there is a usable one."""
        try:
            self.found = decode_point(self._disk.read_file(self._path))
        except FileNotFoundError:
            return
        if self.found is not None:
            self.offset = self.found.segment.offset
        else:
            _LOGGER.warning("%s is damaged; more of the log is read", self._path)

    def remove(self) -> None:
        """Removes the file."""
        self.found = self.offset = None
        self._disk.remove(self._path)

    def save(self, segment: Segment, topic_id: bytes, producers: Iterable[SavedProducer]) -> None:
        """Saves the end of the active segment; a failure only costs time."""
        if segment.damage or segment.wrong_epochs:
            return  # The next start has to look at them again.
        try:
            saved = segment.save()
            data = encode_point(saved, topic_id, producers)
            self._disk.write_file(self._path, data, sync=False)
        except (OSError, StorageError) as problem:
            _LOGGER.warning("%s was not saved; the next open reads more: %s", self._path, problem)
            return
        self.offset = saved.offset
