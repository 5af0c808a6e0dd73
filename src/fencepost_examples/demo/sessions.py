"""Finds and kills processes by session.

A Spark driver starts a JVM, which starts executors, which start Python workers. Some of them create
their own process groups, but all stay in the session of the first process. So the session finds
everything that a killed driver leaves behind. The brokers of a cluster have sessions of their own,
and end with the process that started them; unless they are paused. So they are found by their
parent, while it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
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
    """Returns the live processes of a session, and all that they have started.

    A zombie process has no command line, and is left out.
    """
    commands = {pid: command for pid, command in list_processes().items() if command}
    found = {pid for pid in commands if _session_of(pid) == session}
    if found:
        found |= _descendants(found, commands)
    return {pid: commands[pid] for pid in sorted(found)}


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def _descendants(ancestors: Collection[int], candidates: Collection[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents(candidates).items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    new = list(ancestors)
    while new:
        for child in children.get(new.pop(), ()):
            if child not in found:
                found.add(child)
                new.append(child)
    return found


def _parents(pids: Collection[int]) -> dict[int, int]:
    if not Path("/proc/self/stat").exists():
        return _parents_by_ps()
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            # The name of the program, in brackets, may contain anything.
            rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
            found[pid] = int(rest.split()[1])
    return found


def _parents_by_ps() -> dict[int, int]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    lines = (line.split() for line in listing.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent in lines}


def kill(pid: int) -> None:
    """Sends SIGKILL to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kills all processes of a session and what they have started, and waits for them to end."""
    deadline = time.monotonic() + GONE_SECONDS
    # A process whose ancestor is dead is not found again, so all that were found are waited for.
    family: set[int] = set()
    while time.monotonic() < deadline:
        family |= members(session).keys()
        family &= {pid for pid, command in list_processes().items() if command}
        if not family:
            return
        for pid in family:
            kill(pid)
        time.sleep(0.01)
