"""Partitions and segments in log folders: Kafka's own layout, which is ours too.

    <data directory>/<topic>-<partition>/<base offset, 20 digits>.log

A path is a data directory, or the folder of one partition. Folders that a broker is about to
delete (`....-delete`) or has put aside (`....-stray`, `....-future`) are left out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition

_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_FOLDER: Final = re.compile(r"(.+)-(\d+)")


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of one partition and the base offsets of its segments, in order."""

    place: TopicPartition
    path: str
    base_offsets: tuple[int, ...]

    def segment(self, base_offset: int) -> str:
        """The file of a segment."""
        return self.file(base_offset, "log")

    def file(self, base_offset: int, suffix: str) -> str:
        """A file that belongs to a segment."""
        return os.path.join(self.path, f"{base_offset:020}.{suffix}")


def find_folders(paths: list[str]) -> list[LogFolder]:
    """The partitions below these paths; ConfigError if there are none, or one twice."""
    found: dict[TopicPartition, LogFolder] = {}
    for path in paths:
        for folder in _folders_of(path):
            if folder.place in found:
                raise ConfigError(
                    f"path has {folder.place} twice, as {found[folder.place].path} and as "
                    f"{folder.path}: read the copies of different brokers one by one"
                )
            found[folder.place] = folder
    if not found:
        raise ConfigError(
            f"there is no partition below {', '.join(paths)}: path must be a data directory with "
            "folders such as refunds-0, or one of these folders"
        )
    return [found[place] for place in sorted(found)]


def _folders_of(path: str) -> list[LogFolder]:
    path = path.removeprefix("file://").rstrip("/") or "/"
    try:
        names = sorted(os.listdir(path))
    except OSError as problem:
        raise ConfigError(
            f"path {path} cannot be read: {problem.strerror}. It must be a folder that the driver "
            "and every executor can read"
        ) from problem
    own = _log_folder(path, names)
    if own is not None:
        return [own]
    found = []
    for name in names:
        child = os.path.join(path, name)
        if _FOLDER.fullmatch(name) and os.path.isdir(child):
            folder = _log_folder(child, os.listdir(child))
            if folder is not None:
                found.append(folder)
    return found


def _log_folder(path: str, names: list[str]) -> LogFolder | None:
    matched = _FOLDER.fullmatch(os.path.basename(path))
    segments = sorted(int(found[1]) for found in map(_SEGMENT.fullmatch, names) if found)
    if matched is None or not segments:
        return None
    return LogFolder(TopicPartition(matched[1], int(matched[2])), path, tuple(segments))
