"""Broker processes: how the parent starts, signals and reaps them.

A broker is a fresh Python process (exec, never a fork of this one) in its own session, so that
Ctrl-C at the terminal reaches only the parent. It inherits two files: its end of the link to the
parent, and the lock of the data directory, which is held until the last process is gone.

This module imports little: the parent starts its brokers before it imports the rest.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

USER_TICKS: Final = 11
SYSTEM_TICKS: Final = 12
"""Positions of utime and stime in /proc/PID/stat, counted from the state behind the name."""

ENTRY_POINT: Final = "fencepost.cluster.broker.process"


class BrokerChild:
    """One broker process."""

    def __init__(self, broker_id: int, lock: int) -> None:
        """Starts the process; `lock` is the descriptor of the directory lock."""
        self.broker_id: Final = broker_id
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.end: Final = mine
        try:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", ENTRY_POINT, str(theirs.fileno()), str(broker_id)],
                pass_fds=(theirs.fileno(), lock),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=child_environment(),
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def processor_ms(self) -> int | None:
        """The processor time that the process has used; None where the system does not say."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return None  # Not Linux, or it has just ended.
        # The name of the program is in parentheses, and may have some itself.
        fields = status.rpartition(b")")[2].split()
        ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
        return ticks * 1000 // os.sysconf("SC_CLK_TCK")

    def reap(self) -> int | None:
        """The exit code if the process has ended; the kernel then forgets the process."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Waits until the process has ended; None if it takes longer."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()

    def pause(self) -> None:
        """Stops the process with all its threads, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a stopped process go on."""
        self._process.send_signal(signal.SIGCONT)


def child_environment() -> dict[str, str]:
    """The environment of a child: this process's own fencepost comes first, however found."""
    package = str(Path(__file__).resolve().parents[3])
    known = os.environ.get("PYTHONPATH", "")
    paths = [package, *(path for path in known.split(os.pathsep) if path and path != package)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
