"""The lock on a data directory: `.lock`, held by the process that uses it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil

from fencepost.base.failures import ConfigError


class DirectoryLock:
    """Keeps a second process out; the kernel releases it when the process dies."""

    def __init__(self, folder: str, *, advice: str = "Choose another one with --data.") -> None:
        """Raises ConfigError, with `advice`, if the directory cannot be used."""
        path = os.path.join(folder, ".lock")
        self._folder = os.path.abspath(folder)
        self._made: list[str] = []
        try:
            self._make(self._folder)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            self._remove_made()
            reason = "it is a file" if isinstance(problem, FileExistsError) else problem.strerror
            raise ConfigError(
                f"The data directory {folder} cannot be used: {reason}. {advice}"
            ) from problem
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise ConfigError(
                f"The data directory {folder} is in use by another broker"
                + (f" (process {holder})" if holder else "")
                + ". Stop it, or choose another directory with --data."
            ) from problem
        # Only the message for a second process needs the number; the disk may be full.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode("ascii"), 0)

    def _make(self, folder: str) -> None:
        """Creates a folder and its parents, and remembers those that it created itself."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if parent != folder:
            self._make(parent)
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        else:
            self._made.append(folder)

    @property
    def descriptor(self) -> int:
        """The file descriptor; a process that inherits a copy keeps the lock."""
        return self._descriptor

    def release(self) -> None:
        """Releases the lock."""
        os.close(self._descriptor)

    def release_unused(self) -> None:
        """Releases the lock after a failed start, and removes the directory if it created it."""
        self._remove_made()
        self.release()

    def _remove_made(self) -> None:
        for folder in reversed(self._made):
            if folder == self._folder:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # Another process has put a file there.
                    os.rmdir(folder)


def refuse_used(folder: str) -> None:
    """Raises ConfigError if a broker uses the directory, or there is none; changes nothing."""
    if not os.path.isdir(folder):
        raise ConfigError(f"{folder} is not a directory.")
    try:
        descriptor = os.open(os.path.join(folder, ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # It was never used.
    except OSError as problem:
        raise ConfigError(f"{folder} cannot be read: {problem.strerror}.") from problem
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        raise ConfigError(
            f"{folder} is in use by a broker. Stop the broker first: it changes these files."
        ) from problem
    finally:
        os.close(descriptor)
