"""A disk in memory that loses unsynced data and fails on demand.

It keeps two states: the one that the running process sees, and the one that survives a power
loss. `File.sync` moves bytes to the second state, `Disk.sync_dir` names; `crash` discards the
first. In particular:

- unsynced bytes are lost, and an unsynced truncation never happened;
- a file whose name was not synced is lost, even if its bytes were; one whose bytes were not synced
  exists and is empty;
- unsynced renames and deletions are undone.

With randomness, `crash` keeps a random prefix of the bytes appended since the last sync, and of the
changes to a folder's names. This produces torn tails. With `is_in_order=False`, of the sectors that
were written to a file since its last sync any may be missing, also between two that are there (they
read as zeros, or as what was there before), and a truncation may have happened or not. The names in
a folder are always lost from the newest change on: ext4, XFS and Btrfs keep their order in a
journal. POSIX alone would allow more.

A test can also fill the disk, fail the n-th call or a range of calls, or cut the power at the n-th
call: from then on every call raises `PowerLost` until `crash` is called. `kill` ends only the
process: all bytes stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Sequence
from typing import Final

from fencepost.base.seams import Buffer, Randomness, Space

SECTOR_BYTES: Final = 512
"""What a disk writes at once."""


class PowerLost(Exception):  # noqa: N818 - an event, not an error.
    """The power was cut at this call; only the test may handle it."""


class _FailingRange:
    """A range of calls that fail."""

    __slots__ = ("_before", "_count", "_error", "_kinds")

    def __init__(self, before: int, count: int, error: int, kinds: frozenset[str]) -> None:
        self._before = before
        self._count = count
        self._error = error
        self._kinds = kinds

    def error_of(self, kind: str) -> int:
        """Counts a call and returns its error, or 0."""
        if self._kinds and kind not in self._kinds:
            return 0
        if self._before > 0:
            self._before -= 1
            return 0
        self._count -= 1
        return self._error if self._count >= 0 else 0


class _Inode:
    """The bytes of a file, now and at the last sync."""

    __slots__ = ("content", "durable")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""

    def sync(self) -> None:
        self.durable = bytes(self.content)

    sync_all = sync

    def crash(self, randomness: Randomness | None, is_in_order: bool) -> None:
        if randomness is not None and not is_in_order:
            self.durable = self._some_sectors(randomness)
        else:
            self._keep_a_prefix(randomness)
        self.content = bytearray(self.durable)

    def _some_sectors(self, randomness: Randomness) -> bytes:
        old, new = self.durable, bytes(self.content)
        if old == new:
            return old
        shorter, longer = sorted((len(old), len(new)))
        # A file grows by any number of bytes, and shrinks at once.
        size = shorter + _below(randomness, longer - shorter + 1)
        if len(new) < len(old):
            size = (shorter, longer)[_below(randomness, 2)]
        kept = bytearray(size)
        for start in range(0, size, SECTOR_BYTES):
            end = min(size, start + SECTOR_BYTES)
            source = new if _below(randomness, 4) else old
            part = source[start:end]
            if source is new and len(part) < end - start:
                part = old[start:end]
            kept[start : start + len(part)] = part
        return bytes(kept)

    def _keep_a_prefix(self, randomness: Randomness | None) -> None:
        kept = len(self.durable)
        appended = self.content[:kept] == self.durable
        if randomness is not None and appended and len(self.content) > kept:
            kept += int.from_bytes(randomness.bytes(4), "big") % (len(self.content) - kept + 1)
            self.durable = bytes(self.content[:kept])


class _Folder:
    """The names in a folder, now and at the last sync, and every change in between."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Folder] = {}
        self.durable: dict[str, _Inode | _Folder] = {}
        self.journal: list[dict[str, _Inode | _Folder | None]] = []
        """Each change: names with what they mean from then on; None for a name that is gone."""

    def changed(self, *names: str) -> None:
        """Notes one change of these names; a rename changes two at once."""
        self.journal.append({name: self.entries.get(name) for name in names})

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal.clear()

    def sync_all(self) -> None:
        self.sync()
        for entry in self.entries.values():
            entry.sync_all()

    def crash(self, randomness: Randomness | None, is_in_order: bool) -> None:
        if randomness is not None and self.journal:
            kept = self.journal[: _below(randomness, len(self.journal) + 1)]
            for change in kept:
                for name, entry in change.items():
                    if entry is None:
                        self.durable.pop(name, None)
                    else:
                        self.durable[name] = entry
        self.entries = dict(self.durable)
        self.journal.clear()
        for entry in self.entries.values():
            entry.crash(randomness, is_in_order)


def _below(randomness: Randomness, limit: int) -> int:
    return int.from_bytes(randomness.bytes(4), "big") % limit


class UnsyncedFile:
    """An open file of an `UnsyncedDisk`; useless after a crash."""

    __slots__ = ("_disk", "_inode", "_life")

    def __init__(self, disk: UnsyncedDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life

    def _call(self, kind: str) -> None:
        self._disk.call(kind)
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file was closed, or its process has ended")

    def append(self, chunks: Sequence[Buffer]) -> int:
        data = b"".join(chunks)
        try:
            self._call("append")
        except OSError:
            if self._disk.is_short():
                self._inode.content += data[: self._disk.reserve(len(data) // 2)]
            raise
        room = self._disk.reserve(len(data))
        self._inode.content += data[:room]
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    def read(self, position: int, count: int) -> bytes:
        self._call("read")
        return bytes(self._inode.content[position : position + count])

    def view(self, position: int, count: int) -> Buffer:
        return self.read(position, count)

    def size(self) -> int:
        self._call("size")
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._call("truncate")
        content = self._inode.content
        self._disk.give_back(len(content) - size)
        if size <= len(content):
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def sync(self, kind: str = "sync") -> None:
        self._call(kind)
        self._inode.sync()

    def close(self) -> None:
        self._life = -1


class UnsyncedDisk:
    """A `Disk` in memory; see the module's docstring."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self._root = _Folder()
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._failures: dict[int, int] = {}
        self._short_calls: set[int] = set()
        self._late_failures: dict[int, int] = {}
        self._open_failures: dict[int, int] = {}
        self._failing: _FailingRange | None = None
        self.unreadable: dict[str, int] = {}
        """Paths of files that cannot be opened or read, and the error."""
        self._power_lost_at: int | None = None
        self.calls = 0
        """Calls so far, of the disk and its files (closing does not count)."""
        self.opens = 0
        """Calls among them that need a file descriptor."""
        self.kinds: list[str] | None = None
        """If a test sets a list here, the kind of each call is appended to it."""
        self.life = 0
        self._power_losses = 0

    # --- for tests -----------------------------------------------------------------------------

    def crash(self, randomness: Randomness | None = None, *, is_in_order: bool = True) -> None:
        """Simulates a power loss and a reboot; with randomness some unsynced changes survive.

        `is_in_order` is whether each file loses only its newest bytes.
        """
        self._power_losses += 1
        self._root.sync()  # The mount point itself survives.
        self._root.crash(randomness, is_in_order)
        self.kill()
        self._used_bytes = _bytes_below(self._root)

    def kill(self) -> None:
        """Ends the process: files are closed; all bytes and names stay."""
        self.life += 1
        self._power_lost_at = None
        self._open_failures.clear()
        self.heal()

    def fill(self, free_bytes: int = 0) -> None:
        """Leaves `free_bytes` of free space."""
        self._capacity_bytes = self._used_bytes + free_bytes

    def empty(self) -> None:
        """Ends the lack of space."""
        self._capacity_bytes = 1 << 40

    def fail_call(
        self, number: int, error: int = errno.EIO, *, short: bool = False, late: bool = False
    ) -> None:
        """Fails the n-th call from now with an OSError; the next call is number 1.

        With `short` a failing append writes half of its bytes. With `late` a rename or a removal
        fails after it has taken effect, as on a network volume; other calls do not fail.
        """
        if late:
            self._late_failures[self.calls + number] = error
            return
        self._failures[self.calls + number] = error
        if short:
            self._short_calls.add(self.calls + number)

    def heal(self) -> None:
        """Cancels all scheduled failures of calls."""
        self._failures.clear()
        self._late_failures.clear()
        self._failing = None

    def fail_for_a_while(
        self, first: int, count: int, error: int = errno.EIO, *, kinds: Collection[str] = ()
    ) -> None:
        """Fails `count` calls from number `first` on; with `kinds` only calls of these kinds count.

        A kind is the name of a method of `Disk` or `File`; `write_file` counts as its parts, and
        the sync of its temporary file as "sync_new".
        """
        self._failing = _FailingRange(first - 1, count, error, frozenset(kinds))

    def fail_open(self, number: int, error: int = errno.EMFILE) -> None:
        """Fails the n-th call from now that needs a descriptor; the next one is number 1."""
        self._open_failures[self.opens + number] = error

    def lose_power_at(self, number: int) -> None:
        """Cuts the power at the n-th call from now; the next call is number 1."""
        self._power_lost_at = self.calls + number

    # --- for its files -------------------------------------------------------------------------

    def call(self, kind: str) -> None:
        """Counts a call, and raises its scheduled failure."""
        self.calls += 1
        if self.kinds is not None:
            self.kinds.append(kind)
        if self._power_lost_at is not None and self.calls >= self._power_lost_at:
            raise PowerLost(f"at call {self.calls}")
        if error := self._failures.pop(self.calls, 0):
            raise OSError(error, os.strerror(error))
        if self._failing is not None and (error := self._failing.error_of(kind)):
            raise OSError(error, os.strerror(error))

    def _call_open(self, kind: str) -> None:
        self.call(kind)
        self.opens += 1
        if error := self._open_failures.pop(self.opens, 0):
            raise OSError(error, os.strerror(error))

    def _call_took_effect(self) -> None:
        if error := self._late_failures.pop(self.calls, 0):
            raise OSError(error, os.strerror(error))

    def is_short(self) -> bool:
        """Whether the call that just failed writes half of its bytes."""
        return self.calls in self._short_calls

    def reserve(self, count: int) -> int:
        """Reserves space; returns how many of `count` bytes fit."""
        room = max(0, min(count, self._capacity_bytes - self._used_bytes))
        self._used_bytes += room
        return room

    def give_back(self, count: int) -> None:
        """Frees space."""
        self._used_bytes -= count

    # --- Disk ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> UnsyncedFile:
        self._call_open("open")
        folder, name = self._parent(path)
        inode = folder.entries.get(name)
        if inode is None and create:
            inode = folder.entries[name] = _Inode()
            folder.changed(name)
        return UnsyncedFile(self, self._inode(inode, path))

    def exists(self, path: str) -> bool:
        self.call("exists")
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in folder.entries

    def size(self, path: str) -> int:
        self.call("size")
        return len(self._file(path).content)

    def list_dir(self, path: str) -> list[str]:
        self._call_open("list_dir")
        return sorted(self._folder(path).entries)

    def make_dir(self, path: str) -> None:
        self.call("make_dir")
        folder = self._root
        for name in _parts(path):
            entry = folder.entries.get(name)
            if entry is None:
                entry = folder.entries[name] = _Folder()
                folder.changed(name)
            if not isinstance(entry, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
            folder = entry

    def remove(self, path: str) -> None:
        self.call("remove")
        folder, name = self._parent(path)
        if isinstance(folder.entries.get(name), _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        if name in folder.entries:
            self._drop(folder, name)
        self._call_took_effect()

    def remove_tree(self, path: str) -> None:
        self._call_open("remove_tree")
        folder, name = self._parent(path)
        if name in folder.entries:
            self._drop(folder, name)

    def rename(self, old: str, new: str) -> None:
        self.call("rename")
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if old_name not in source.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        moved, replaced = source.entries[old_name], target.entries.get(new_name)
        if isinstance(replaced, _Folder) and not isinstance(moved, _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", new)
        if new_name in target.entries:
            self._used_bytes -= _bytes_of(target.entries[new_name])
        target.entries[new_name] = source.entries.pop(old_name)
        if source is target:
            target.changed(old_name, new_name)
        else:
            target.changed(new_name)
            source.changed(old_name)
        self._call_took_effect()

    def sync_dir(self, path: str) -> None:
        self._call_open("sync_dir")
        self._folder(path).sync()

    def read_file(self, path: str) -> bytes:
        self._call_open("read_file")
        return bytes(self._file(path).content)

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Writes in several steps, as on a real disk; a crash may come after each."""
        temporary = path + ".tmp"
        self._call_open("open")
        folder, name = self._parent(temporary)
        if name in folder.entries:
            self._drop(folder, name)
        inode = folder.entries[name] = _Inode()
        folder.changed(name)
        file = UnsyncedFile(self, inode)
        try:
            file.append((data,))
            if sync:
                file.sync("sync_new")
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        if sync:
            self.sync_dir(path.rpartition("/")[0])

    def sync_all(self, path: str) -> bool:
        self._call_open("sync_all")
        self._root.sync_all()
        return True

    def space(self, path: str) -> Space:
        self.call("space")
        self._folder(path)
        return Space(self._capacity_bytes, self._capacity_bytes - self._used_bytes)

    def session(self) -> str:
        return f"power {self._power_losses}"

    # --- the tree ------------------------------------------------------------------------------

    def _drop(self, folder: _Folder, name: str) -> None:
        self._used_bytes -= _bytes_of(folder.entries.pop(name))
        folder.changed(name)

    def _folder(self, path: str) -> _Folder:
        folder = self._root
        for name in _parts(path):
            entry = folder.entries.get(name)
            if not isinstance(entry, _Folder):
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            folder = entry
        return folder

    def _parent(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        return self._folder(parent), name

    def _file(self, path: str) -> _Inode:
        folder, name = self._parent(path)
        return self._inode(folder.entries.get(name), path)

    def _inode(self, entry: _Inode | _Folder | None, path: str) -> _Inode:
        """The file at a path; its scheduled error, or that of a path without a file."""
        if error := self.unreadable.get(path, 0):
            raise OSError(error, os.strerror(error), path)
        if isinstance(entry, _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return entry


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _bytes_of(entry: _Inode | _Folder) -> int:
    return len(entry.content) if isinstance(entry, _Inode) else _bytes_below(entry)


def _bytes_below(folder: _Folder) -> int:
    return sum(map(_bytes_of, folder.entries.values()))
