"""The data directory: whose it is, what is in it, and whether it was closed cleanly.

.lock                               held by the one process that uses the directory
meta.properties                     Kafka's: cluster id, node id, directory id; and our format version
.kafka_cleanshutdown                there only after a clean stop, as Kafka leaves it
recovery-point-offset-checkpoint    Kafka's: up to where each log is known to be on the disk
log-start-offset-checkpoint         Kafka's: where each log begins after DeleteRecords
<topic>-<partition>/                the logs
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil

from fencepost.base.failures import ConfigError


class DirectoryLock:
    """Keeps a second process out.

    The kernel lets go of it when the holder dies, however it dies.
    """

    def __init__(self, folder: str) -> None:
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
                f"The data directory {folder} cannot be used: {reason}. "
                "Choose another one with --data."
            ) from problem
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise ConfigError(
                f"The data directory {folder} is in use by another fencepost"
                + (f" (process {holder})" if holder else "")
                + ". Stop it, or choose another directory with --data."
            ) from problem
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode("ascii"), 0)

    def _make(self, folder: str) -> None:
        """Creates a folder and those around it, and remembers which: whoever creates one is told so by the system."""
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
        """Whoever has a copy of it, as a forked process does, keeps the lock."""
        return self._descriptor

    def release(self) -> None:
        os.close(self._descriptor)

    def release_unused(self) -> None:
        """Lets go after a start that failed.

        A directory that this start has created goes too; others stay as they are.
        """
        self._remove_made()
        self.release()

    def _remove_made(self) -> None:
        for folder in reversed(self._made):
            if folder == self._folder:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with contextlib.suppress(
                    OSError
                ):  # Somebody else has put something there meanwhile.
                    os.rmdir(folder)


def refuse_used(folder: str) -> None:
    """ConfigError when a broker uses the directory, or when it is none; nothing is changed."""
    if not os.path.isdir(folder):
        raise ConfigError(f"{folder} is not a directory.")
    try:
        descriptor = os.open(os.path.join(folder, ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # Nobody has ever used it.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        raise ConfigError(
            f"{folder} is in use by a broker. Stop it first: its files change while they are read."
        ) from problem
    finally:
        os.close(descriptor)
