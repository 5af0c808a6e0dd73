"""Finds and kills processes by session.

A Spark driver starts a JVM, which starts executors, which start Python workers. Some of them create
their own process groups, but all stay in the session of the first process. So the session finds
everything that a killed driver leaves behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

GONE_SECONDS: Final = 5


def list_processes() -> dict[int, str]:
    """Returns the command line of every visible process."""
    if not Path("/proc/self/cmdline").exists():
        return _list_by_ps()
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _list_by_ps() -> dict[int, str]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,command="], capture_output=True, text=True, check=True
    )
    lines = (line.split(None, 1) for line in listing.stdout.splitlines())
    return {int(parts[0]): parts[1] for parts in lines if len(parts) == 2}


def members(session: int) -> dict[int, str]:
    """Returns the live processes of a session.

    A zombie process has no command line, and is left out.
    """
    found = {}
    for pid, command in list_processes().items():
        with contextlib.suppress(OSError):
            if command and os.getsid(pid) == session:
                found[pid] = command
    return found


def kill(pid: int) -> None:
    """Sends SIGKILL to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kills all processes of a session and waits for them to end."""
    deadline = time.monotonic() + GONE_SECONDS
    while (family := members(session)) and time.monotonic() < deadline:
        for pid in family:
            kill(pid)
        time.sleep(0.01)
