"""Processes by the session that they belong to.

A Spark driver starts a Java process, which starts executors, which start Python workers; some of
them found process groups of their own, but all stay in the session of the first. So a session is
what is looked at and killed, and whatever a killed driver leaves behind is found again.
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
    """Every process that we may see, with its command line."""
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
    """The living processes of a session.

    One that has ended and waits to be reaped has no command line.
    """
    found = {}
    for pid, command in list_processes().items():
        with contextlib.suppress(OSError):
            if command and os.getsid(pid) == session:
                found[pid] = command
    return found


def kill(pid: int) -> None:
    """SIGKILL, if it still lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kills every process of a session, and waits until they are gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while (family := members(session)) and time.monotonic() < deadline:
        for pid in family:
            kill(pid)
        time.sleep(0.01)
