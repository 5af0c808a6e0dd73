"""The clock, randomness and disk of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import shutil
import sys
import weakref
from collections.abc import Sequence
from time import time_ns

from fencepost.base.mapping import Mapping
from fencepost.base.seams import Buffer, Space

_MAX_CHUNKS_PER_WRITE = 1024  # IOV_MAX on Linux and macOS.
_SMALL_FILE_BYTES = 64 * 1024
_LARGE_READ_BYTES = 16 * 1024 * 1024


_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class SystemClock:
    """The wall clock."""

    def now_ms(self) -> int:
        return time_ns() // 1_000_000


def now_us() -> int:
    """The wall clock in microseconds, for traces."""
    return time_ns() // 1_000


class SystemRandomness:
    """The random source of the operating system."""

    def bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)


class SystemFile:
    """An unbuffered file: once `append` returns, the bytes survive kill -9 of the process."""

    __slots__ = ("_descriptor", "_last_view")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last_view: tuple[int, int, weakref.ref[Mapping]] | None = None

    def append(self, chunks: Sequence[Buffer]) -> int:
        if len(chunks) == 1:
            chunk = chunks[0]
            size = len(chunk)
            written = os.write(self._descriptor, chunk)
            if written < size:
                self._append_rest(memoryview(chunk).cast("B")[written:])
            return size
        total = 0
        for start in range(0, len(chunks), _MAX_CHUNKS_PER_WRITE):
            total += self._append_some(chunks[start : start + _MAX_CHUNKS_PER_WRITE])
        return total

    def _append_some(self, chunks: Sequence[Buffer]) -> int:
        size = sum(len(chunk) for chunk in chunks)
        written = os.writev(self._descriptor, chunks)
        if written != size:
            self._append_rest(memoryview(b"".join(chunks))[written:])
        return size

    def _append_rest(self, rest: memoryview) -> None:
        # A write is short at two gigabytes, after a signal, and when the disk is nearly full.
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def read(self, position: int, count: int) -> bytes:
        data = os.pread(self._descriptor, count, position)
        if len(data) == count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < count:
            data = os.pread(self._descriptor, count - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def view(self, position: int, count: int) -> Buffer:
        # A mapping costs page table entries; a copy costs time and memory. Consumers at the end of
        # the same partition read the same bytes and share a mapping.
        last = self._last_view
        if last is not None and last[0] == position and last[1] == count:
            shared = last[2]()
            if shared is not None:
                return memoryview(shared)[position % mmap.ALLOCATIONGRANULARITY :]
        if Mapping.alive >= Mapping.limit:
            return self.read(position, count)
        # A mapping begins at a page boundary.
        lead = position % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = Mapping(
                self._descriptor, lead + count, access=mmap.ACCESS_READ, offset=position - lead
            )
        except OSError:  # No descriptor or mapping is left; a copy needs neither.
            return self.read(position, count)
        self._last_view = (position, count, weakref.ref(mapping))
        return memoryview(mapping)[lead:]

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor) if hasattr(os, "fdatasync") else os.fsync(self._descriptor)

    def close(self) -> None:
        # The system reuses the number for the next file: a stale SystemFile must not reach it.
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class SystemDisk:
    """The file system of the machine."""

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except OSError:  # It exists, or a parent does not.
            os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return
        for name in names:
            try:
                os.unlink(f"{path}/{name}")
            except FileNotFoundError:
                continue
            except (IsADirectoryError, PermissionError):  # unlink of a folder: Linux, macOS.
                shutil.rmtree(f"{path}/{name}")
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_file(self, path: str) -> bytes:
        # Without Python's file objects: a start reads tens of thousands of small files.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, _SMALL_FILE_BYTES)
            if len(data) < _SMALL_FILE_BYTES:
                return data
            parts = [data]
            while data := os.read(descriptor, _LARGE_READ_BYTES):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if sync:
            self.sync_dir(os.path.dirname(path))

    def sync_all(self, path: str) -> bool:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None or not _syncfs_reports_errors():
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)
        return True

    def space(self, path: str) -> Space:
        usage = shutil.disk_usage(path)
        return Space(usage.total, usage.free)

    def session(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return _macos_boot_session()


class ReadOnlySystemDisk(SystemDisk):
    """The same, for reading files that this user may not write."""

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        assert not create, "nothing is created on a disk that is only read"
        return SystemFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def return_freed_memory() -> None:
    """Returns free heap memory to the system; about 10 ms per 100 MB, which block allocation.

    The C library keeps freed memory: 256 MB of replies in pieces of 60 KB stay resident after the
    last one is gone. glibc has a call to release it; on other C libraries nothing happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # Another C library than glibc.
            ctypes.CDLL(None).malloc_trim(0)


def _macos_boot_session() -> str:
    """The boot id of macOS (untested); without it a start assumes a power loss."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, AttributeError):
            sysctl = ctypes.CDLL(None).sysctlbyname
            size = ctypes.c_size_t(64)
            answer = ctypes.create_string_buffer(size.value)
            none = ctypes.c_size_t(0)
            if sysctl(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, none) == 0:
                return answer.value.decode("ascii", "replace")
    return ""


def _syncfs_reports_errors() -> bool:
    """Whether syncfs reports write errors: Linux before 5.8 always returns success."""
    release = os.uname().release.split(".")
    try:
        return (int(release[0]), int(release[1])) >= (5, 8)
    except (ValueError, IndexError):
        return False
