"""`fencepost serve --brokers N` as a child of this program, which it never outlives.

The child holds the read end of a pipe, the lifeline. Its write end is in this process alone, so the
kernel closes it when this process ends, however it ends, and the cluster stops. A forked process
gives up its copy; no thread can fork while a cluster is being started.

Standard output is a pipe that all processes of the cluster have open. The line "fencepost is ready
at ..." comes through it, and its end means that the last of them is gone. Standard error is the
log.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.cluster.parent.broker_child import child_environment

READY: Final = b"fencepost is ready at "
REASON: Final = "fencepost: "
"""How the line begins in which a command says why it failed."""

STOP_SECONDS: Final = 60.0
"""Longer than the parent waits for brokers that close many partitions."""

_KILLED_SECONDS: Final = 10.0
_MAX_LOG_BYTES: Final = 1 << 20


class ClusterProcess:
    """The parent process of one cluster, with its brokers."""

    def __init__(self, arguments: Sequence[str], log: str) -> None:
        """Starts the process; `log` is the file for its standard error, which is appended to."""
        self._log = log
        self._said = b""
        self._has_ended = False
        with _starting:
            lifeline, self._lifeline = os.pipe()
            try:
                self._process: Final = self._spawn(arguments, lifeline)
            except BaseException:
                os.close(self._lifeline)
                raise
            finally:
                os.close(lifeline)
            assert self._process.stdout is not None, "it is a pipe"
            self._output: Final = self._process.stdout.fileno()
            _children.add(self)

    def _spawn(self, arguments: Sequence[str], lifeline: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fencepost", "serve", *arguments]
        with open(self._log, "ab") as errors:
            return subprocess.Popen(
                [*command, "--lifeline", str(lifeline)],
                pass_fds=(lifeline,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the program, which stops the cluster.
                env=child_environment(),
            )

    @property
    def pid(self) -> int:
        """The id of the parent process of the cluster."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the parent process of the cluster is there."""
        return self._process.poll() is None

    def wait_until_ready(self, seconds: float) -> str:
        """Returns the addresses of the brokers; raises with the reason if the start fails."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not self._read(deadline):
                raise FencepostError(
                    f"The cluster was not ready within {seconds:g} s. Its log:\n{self.log_text()}"
                )
            if self._has_ended:
                self._raise_failure()
        line = self._said.partition(b"\n")[0]
        return line.removeprefix(READY).strip().decode()

    def stop(self) -> None:
        """Stops the cluster cleanly, and returns when its last process is gone."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._process.send_signal(number)
        if not self._wait_for_end(STOP_SECONDS):
            self.kill()
        self._release()

    def kill(self) -> None:
        """Kills the parent process; the kernel kills the brokers with it."""
        self._process.kill()
        self._wait_for_end(_KILLED_SECONDS)
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLED_SECONDS)
        if self in _children:
            _children.discard(self)
            os.close(self._lifeline)
            assert self._process.stdout is not None, "it is a pipe"
            self._process.stdout.close()

    def replace_descriptors(self, nothing: int) -> None:
        """In a forked process: points the copied descriptors to `nothing`."""
        for descriptor in (self._lifeline, self._output):
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)

    # -- output -----------------------------------------------------------------------------------

    def _read(self, deadline: float) -> bool:
        """Reads what the cluster prints, or its end; false if nothing comes before the deadline."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
        some = os.read(self._output, 4096)
        self._said += some
        self._has_ended = not some
        return True

    def _wait_for_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_ended:
            if not self._read(deadline):
                return False
        return True

    def log_text(self) -> str:
        """What the cluster has logged; of a long log the last megabyte."""
        try:
            with open(self._log, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _MAX_LOG_BYTES))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def reason(self) -> str:
        """Why the cluster has ended by itself: its last error message, or its exit code."""
        lines = self.log_text().splitlines()
        last = [line for line in lines if " CRITICAL " in line or line.startswith(REASON)]
        code = self._process.returncode
        return last[-1].removeprefix(REASON) if last else f"exit code {code}"

    def _raise_failure(self) -> None:
        code = self._process.wait()
        log = self.log_text()
        for line in reversed(log.splitlines()):
            if line.startswith(REASON):
                raise ConfigError(line.removeprefix(REASON))
        raise FencepostError(f"The cluster did not start (exit code {code}). Its log:\n{log}")


_children: Final[set[ClusterProcess]] = set()
_starting: Final = threading.RLock()
"""Held while descriptors exist that `_children` does not know yet, and during a fork."""


def _after_fork_in_child() -> None:
    _starting.release()
    if _children:
        nothing = os.open(os.devnull, os.O_RDWR)
        for child in _children:
            child.replace_descriptors(nothing)
        _children.clear()
        os.close(nothing)


os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_after_fork_in_child,
)
