"""The brokers that are measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from tools.apache_kafka import VERSION, ApacheKafka, UnavailableError, compile_java
from tools.fencepost_process import FencepostProcess
from tools.processes import ServerProcess, free_port

KAFKA_HEAP: Final = "1g"
"""What Kafka's own start script gives it."""


class Broker(Protocol):
    """A running broker."""

    bootstrap_servers: str
    process: ServerProcess

    def stop(self, seconds: float = ...) -> int: ...
    def kill(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Side:
    """A broker that can be started, again and again, over folders that it is given."""

    def __init__(self, name: str, title: str, start: Callable[[Path, int, bool], Broker]) -> None:
        self.name = name
        self.title = title
        self._start = start
        self._shared: Broker | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, data: Path, *, wait: bool = True) -> Broker:
        """Starts it over that folder; without `wait` it is not ready yet, and only its process exists."""
        return self._start(data, free_port(), wait)

    def shared(self, warm_up: Callable[[Broker], None]) -> Broker:
        """The one broker for all loads that do not need one of their own, warmed up when it was started."""
        if self._shared is None or not self._shared.process.is_alive:
            self.close()
            self._folder = tempfile.TemporaryDirectory(prefix="fencepost-bench-")
            self._shared = self.start(Path(self._folder.name) / "data")
            warm_up(self._shared)
        return self._shared

    def close(self) -> None:
        """Stops the shared broker, if there is one, and deletes what it wrote."""
        if self._shared is not None:
            self._shared.stop()
        if self._folder is not None:
            self._folder.cleanup()
        self._shared = self._folder = None


def _start_fencepost(data: Path, port: int, wait: bool) -> Broker:
    return FencepostProcess(data, listen=f"127.0.0.1:{port}", wait=wait)


def _start_kafka(data: Path, port: int, wait: bool) -> Broker:
    return ApacheKafka(data, heap=KAFKA_HEAP, port=port, wait=wait)


FENCEPOST: Final = Side("fencepost", "fencepost", _start_fencepost)
KAFKA: Final = Side("kafka", f"Apache Kafka {VERSION}", _start_kafka)


def available(names: list[str], say: Callable[[str], None]) -> list[Side]:
    """The wanted sides that can be had here; the others are left out with a word."""
    sides = []
    for side in (FENCEPOST, KAFKA):
        if side.name not in names:
            continue
        try:
            if side is KAFKA:
                compile_java()
        except UnavailableError as reason:
            say(f"left out: {reason}")
        else:
            sides.append(side)
    return sides
