"""The brokers that are measured."""

from __future__ import annotations

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

    def start(self, data: Path, *, wait: bool = True) -> Broker:
        """Starts it over that folder; without `wait` it is not ready yet, and only its process exists."""
        return self._start(data, free_port(), wait)


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
