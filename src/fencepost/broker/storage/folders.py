"""The folders of partitions: their owners, and the names of those that are set aside or deleted."""

from __future__ import annotations

from typing import Final

from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition, topic_id_text
from fencepost.base.seams import Disk
from fencepost.records.text_files import decode_partition_metadata, encode_partition_metadata

PARTITION_METADATA: Final = "partition.metadata"
MAX_NAME_BYTES: Final = 255
"""The longest file name on all common file systems; topic names are ASCII."""
STRAY: Final = "-stray"
DELETED: Final = "-delete"


class Folders:
    """The folders in one data directory."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._deleted = 0

    def path(self, name: TopicPartition) -> str:
        """The path of a partition's folder."""
        return f"{self._folder}/{name}"

    def exists(self, name: TopicPartition) -> bool:
        """Whether a partition has a folder."""
        try:
            self._disk.list_dir(self.path(name))  # Cached: opening the log needs the names.
        except FileNotFoundError:
            return False
        return True

    def owner_of(self, folder: str, expected: bytes = ZERO_TOPIC_ID) -> bytes | None:
        """The topic id in a folder; None without a readable one."""
        try:
            self._disk.list_dir(folder)  # Cached: opening the log needs the names.
            data = self._disk.read_file(f"{folder}/{PARTITION_METADATA}")
            # It nearly always matches, which saves decoding.
            if data == encode_partition_metadata(expected):
                return expected
            return decode_partition_metadata(data)
        except (FileNotFoundError, ValueError):
            return None

    def create(self, folder: str, topic_id: bytes, *, sync: bool) -> None:
        """Creates a folder, or completes it, with the topic id in it."""
        marker = f"{folder}/{PARTITION_METADATA}"
        content = encode_partition_metadata(topic_id)
        if sync or self._disk.exists(folder):
            self._disk.make_dir(folder)
            self._disk.write_file(marker, content, sync=sync)
            return
        # In a new folder a torn file counts as absent, and a rename would double the cost of a
        # first write.
        self._disk.make_dir(folder)
        file = self._disk.open(marker, create=True)
        try:
            file.append((content,))
        finally:
            file.close()

    def set_aside(self, folder: str, topic_id: bytes | None) -> str:
        """Renames a folder that is kept and never served; returns its new path."""
        mark = "" if topic_id is None else f".{topic_id_text(topic_id)}"
        stray, number = _beside(folder, f"{mark}{STRAY}"), 1
        while self._disk.exists(stray):
            number += 1
            stray = _beside(folder, f"{mark}.{number}{STRAY}")
        self._disk.rename(folder, stray)
        return stray

    def mark_deleted(self, folder: str) -> str:
        """Renames a folder whose files are to be removed; returns its new path."""
        while True:
            self._deleted += 1
            doomed = _beside(folder, f".{self._deleted}{DELETED}")
            if not self._disk.exists(doomed):
                break
        self._disk.rename(folder, doomed)
        return doomed


def _beside(folder: str, suffix: str) -> str:
    """The folder's path with a suffix; a name that becomes too long is shortened."""
    parent, _, name = folder.rpartition("/")
    return f"{parent}/{name[: MAX_NAME_BYTES - len(suffix)]}{suffix}"
