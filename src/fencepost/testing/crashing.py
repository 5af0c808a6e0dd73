"""A disk that can be cut off, so that a broker inside a program crashes as if it were killed.

After `cut_off` every call fails and changes nothing: what the broker still does has no effect. What
was appended before is there, as after `kill -9`: the page cache belongs to the system.

A directory that is deleted with the broker is not meant to survive a loss of power: without `syncs`
nothing waits for the device, which is most of the time that a start takes on a slow one.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fencepost.base.failures import FencepostError

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer, Disk, File, Space

T = TypeVar("T")


class Crash(BaseException):
    """Ends whatever the broker is doing. No handler of failures may stop it."""


class BrokerCrashed(FencepostError):  # noqa: N818 - it reads as the event that it is
    """The broker crashed, as the test wanted, before it had done what was asked of it."""


class CrashableDisk:
    """Passes every call on until it is cut off."""

    def __init__(self, disk: Disk, *, syncs: bool = True) -> None:
        self._disk = disk
        self._syncs = syncs
        self._is_cut_off = False
        self._open: set[CrashableFile] = set()

    def cut_off(self) -> None:
        """From now on every call fails."""
        self._is_cut_off = True

    def close_all(self) -> None:
        """Closes the files that the broker has left open."""
        for file in list(self._open):
            with contextlib.suppress(OSError):
                file.close()

    def do(self, call: Callable[[], T]) -> T:
        """Makes a call, unless the disk is cut off."""
        if self._is_cut_off:
            raise OSError(errno.EIO, "the broker has crashed, as a test wanted")
        return call()

    def sync(self, call: Callable[[], None]) -> None:
        """Makes a call that waits for the device, if this disk does."""
        self.do(call if self._syncs else _nothing)

    def forget(self, file: CrashableFile) -> None:
        """The file is closed."""
        self._open.discard(file)

    def open(self, path: str, *, create: bool = False) -> File:
        file = CrashableFile(self, self.do(lambda: self._disk.open(path, create=create)))
        self._open.add(file)
        return file

    def exists(self, path: str) -> bool:
        return self.do(lambda: self._disk.exists(path))

    def size(self, path: str) -> int:
        return self.do(lambda: self._disk.size(path))

    def list_dir(self, path: str) -> list[str]:
        return self.do(lambda: self._disk.list_dir(path))

    def make_dir(self, path: str) -> None:
        self.do(lambda: self._disk.make_dir(path))

    def remove(self, path: str) -> None:
        self.do(lambda: self._disk.remove(path))

    def remove_tree(self, path: str) -> None:
        self.do(lambda: self._disk.remove_tree(path))

    def rename(self, old: str, new: str) -> None:
        self.do(lambda: self._disk.rename(old, new))

    def sync_dir(self, path: str) -> None:
        self.sync(lambda: self._disk.sync_dir(path))

    def read_file(self, path: str) -> bytes:
        return self.do(lambda: self._disk.read_file(path))

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        self.do(lambda: self._disk.write_file(path, data, sync=sync and self._syncs))

    def sync_all(self, path: str) -> bool:
        return self.do(lambda: self._disk.sync_all(path) if self._syncs else True)

    def space(self, path: str) -> Space:
        return self.do(lambda: self._disk.space(path))

    def session(self) -> str:
        return self.do(self._disk.session)


def _nothing() -> None:
    pass


class CrashableFile:
    """One open file."""

    __slots__ = ("_disk", "_file")

    def __init__(self, disk: CrashableDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def append(self, chunks: Sequence[Buffer]) -> int:
        return self._disk.do(lambda: self._file.append(chunks))

    def read(self, position: int, count: int) -> bytes:
        return self._disk.do(lambda: self._file.read(position, count))

    def view(self, position: int, count: int) -> Buffer:
        return self._disk.do(lambda: self._file.view(position, count))

    def size(self) -> int:
        return self._disk.do(self._file.size)

    def truncate(self, size: int) -> None:
        self._disk.do(lambda: self._file.truncate(size))

    def sync(self) -> None:
        self._disk.sync(self._file.sync)

    def close(self) -> None:
        self._disk.forget(self)
        self._file.close()
