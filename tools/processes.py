"""Servers as real processes that never outlive the process that started them.

A server gets its own process group, so that stopping it stops its children too. On Linux the kernel
kills it when its parent dies, for whatever reason; elsewhere `atexit` does what it can.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

STOP_SECONDS: Final = 20.0
"""How long a server may take to stop cleanly before it is killed."""
KEPT_LINES: Final = 400
"""Lines of output that are kept for error messages."""
POLL_SECONDS: Final = 0.005
_PR_SET_PDEATHSIG: Final = 1

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class DiedEarlyError(Exception):
    """A server exited, or was silent for too long, before it was ready."""


def die_with_the_parent() -> None:
    """Called in a child between fork and exec: the kernel will kill it when its parent dies."""
    # Loaded before the fork: between fork and exec nothing may be imported.
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ServerProcess:
    """One server: its output is read continuously, and its end is ensured."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        kept_lines: int | None = KEPT_LINES,
        user: str | None = None,
    ) -> None:
        """`kept_lines` is how much of its output is kept; None keeps all of it.

        Root may name the `user` it runs as.
        """
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self._arrived = threading.Condition()
        self.started_at = time.perf_counter()
        """When it was started, on the monotonic clock."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(os.environ, **(environment or {})),
            cwd=folder,
            start_new_session=True,
            user=user,
            preexec_fn=die_with_the_parent,  # noqa: PLW1509 - nothing in it but one system call.
        )
        atexit.register(self.kill)
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """The last lines of its output."""
        with self._arrived:
            return "".join(self._lines)

    def wait_for_line(self, wanted: Callable[[str], str | None], seconds: float) -> str:
        """The first result of `wanted` that is not None, called for each line in turn."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while True:
                for line in self._lines:
                    if (answer := wanted(line)) is not None:
                        return answer
                if not self._reader.is_alive():
                    break
                if not self._arrived.wait(deadline - time.monotonic()):
                    break
        raise DiedEarlyError(f"pid {self.pid} did not become ready:\n{self.output}")

    def wait_for_port(self, host: str, port: int, seconds: float) -> None:
        """Returns when the address accepts connections and the process is alive."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.is_alive:
            with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
                return
            time.sleep(POLL_SECONDS)
        raise DiedEarlyError(f"pid {self.pid} does not answer on {host}:{port}:\n{self.output}")

    def resident_bytes(self) -> int:
        """The memory that it uses now."""
        if (status := self._status_bytes("VmRSS")) is not None:
            return status
        shown = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True
        )
        return int(shown.stdout) * 1024

    def peak_resident_bytes(self) -> int:
        """The most memory that it has used; the present use if the system does not record it."""
        return self._status_bytes("VmHWM") or self.resident_bytes()

    def _status_bytes(self, name: str) -> int | None:
        """A line of Linux's process status; None on other systems."""
        status = Path(f"/proc/{self.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return int(found[0]) * 1024 if found else None

    def seconds_since_start(self) -> float:
        return time.perf_counter() - self.started_at

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Stops it and returns its exit status; kills it if it does not stop in time."""
        if self.is_alive:
            self._process.terminate()
        self.wait_for_end(seconds)
        return self._process.returncode

    def wait_for_end(self, seconds: float = STOP_SECONDS) -> None:
        """Returns when it has exited by itself; kills it if it does not in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Kills the whole process group, as a crash would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        atexit.unregister(self.kill)

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        for line in stream:
            with self._arrived:
                self._lines.append(line)
                self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free at this moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
