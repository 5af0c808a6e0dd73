"""Sends a small request to a broker every few milliseconds, from a separate process.

    python -m bench.pinger 127.0.0.1:9092 PID    # at the end of its input: waits in ms as JSON

A busy loop of the broker delays the pings. They are sent when they are due, even if earlier ones
are unanswered: otherwise a stall of a second would count as one slow ping among many.

On a shared machine a ping also waits for other programs. So the pinger also records the processor
time of the broker's loop during each wait, if the system reports it. That does not include waits
for a disk.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import encode_request
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from tools.processes import die_with_the_parent

INTERVAL_SECONDS: Final = 0.005
PATIENCE_SECONDS: Final = 120.0
LEAD_SECONDS: Final = 0.2
"""Pings before and after the operation: a stall at its very end must not be missed."""
READY: Final = "ready"


class Pings:
    """The waits of the pings in milliseconds; complete when the pinger has ended."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.busy: list[float] = []
        """The processor time that the broker's loop used during each wait."""

    @property
    def worst(self) -> float:
        return max(self.waits)

    @property
    def p99(self) -> float:
        return sorted(self.waits)[int(len(self.waits) * 0.99)]

    @property
    def busiest(self) -> float:
        return max(self.busy)


@contextmanager
def pinging(address: str, pid: int) -> Iterator[Pings]:
    """Pings while the block runs."""
    pings = Pings()
    command = [sys.executable, "-m", "bench.pinger", address, str(pid)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        preexec_fn=die_with_the_parent,  # noqa: PLW1509 - nothing in it but one system call.
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline().strip() == READY, "the pinger did not start"
            time.sleep(LEAD_SECONDS)
            yield pings
            time.sleep(LEAD_SECONDS)
            process.stdin.close()
            pings.waits, pings.busy = json.loads(process.stdout.read())
        finally:
            process.kill()


def ping(address: str, pid: int, is_over: TextIO) -> tuple[list[float], list[float]]:
    """Pings until `is_over` is readable or ends."""
    host, _, port = address.rpartition(":")
    request = b"".join(
        encode_request(
            ApiKey.API_VERSIONS,
            3,
            1,
            "pinger",
            ApiVersionsRequest(client_software_name="p", client_software_version="1"),
        )
    )
    waits: list[float] = []
    busy: list[float] = []
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        reply_bytes = 4 + int.from_bytes(_read(connection, 4), "big")
        _read(connection, reply_bytes - 4)
        print(READY, flush=True)
        unanswered: deque[tuple[float, float]] = deque()
        received = 0
        due = time.perf_counter()
        while True:
            left = max(0.0, due - time.perf_counter())
            ready = select.select([connection.fileno(), is_over.fileno()], [], [], left)[0]
            if connection.fileno() in ready:
                received += len(connection.recv(1 << 16))
                now, used = time.perf_counter(), processor_seconds(pid)
                while received >= reply_bytes:
                    received -= reply_bytes
                    was_due, used_before = unanswered.popleft()
                    waits.append((now - was_due) * 1000)
                    busy.append((used - used_before) * 1000)
            if is_over.fileno() in ready:
                if not unanswered:
                    return waits, busy
            elif time.perf_counter() >= due:
                unanswered.append((due, processor_seconds(pid)))
                connection.sendall(request)
                due += INTERVAL_SECONDS


def processor_seconds(pid: int) -> float:
    """Processor time of the broker's first thread, which runs its loop; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except OSError:
        return 0.0


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        data += part
    return data


if __name__ == "__main__":
    print(json.dumps(ping(sys.argv[1], int(sys.argv[2]), sys.stdin)))
