"""The measured brokers.

fencepost runs from this checkout's `src`, or from the folder in `FENCEPOST_SRC`, such as a compiled
one. The side `interpreted` always runs from `src`, so that the two can be compared: `--sides
fencepost,interpreted,kafka`. `kfake` is in memory (`kfake.py`); it takes part in the loads that say
so.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from bench.kfake import Kfake, build_kfake
from tools.apache_kafka import ROOT, VERSION, ApacheKafka, UnavailableError, fetch_libs
from tools.fencepost_process import FencepostProcess
from tools.processes import ServerProcess, free_port

KAFKA_HEAP: Final = "1g"
"""The heap of Kafka's own start script."""
KAFKA_DELETES_SOON: Final = {
    "log.segment.delete.delay.ms": "200",
    "log.initial.task.delay.ms": "500",
}
"""Apache Kafka keeps the files of a deleted topic for a minute, so rounds would fill ever more
memory."""
KFAKE_PARTITIONS: Final = 4
"""Of topics that a client creates by their first use; the loads name their number."""
SOURCE_VARIABLE: Final = "FENCEPOST_SRC"


class Broker(Protocol):
    """A running broker."""

    bootstrap_servers: str
    process: ServerProcess
    data: Path

    def stop(self, seconds: float = ...) -> int: ...
    def kill(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Side:
    """A broker that can be started repeatedly, on given folders."""

    def __init__(self, name: str, title: str, start: Callable[[Path, int, bool], Broker]) -> None:
        self.name = name
        self.title = title
        self._start = start
        self._shared: Broker | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, data: Path, *, wait: bool = True) -> Broker:
        """Starts it on that folder; without `wait` it may not be ready yet."""
        return self._start(data, free_port(), wait)

    def shared(self, warm_up: Callable[[Broker], None]) -> Broker:
        """The shared broker for all loads that do not need a fresh one, warmed up at its start."""
        if self._shared is None or not self._shared.process.is_alive:
            self.close()
            self._folder = tempfile.TemporaryDirectory(prefix="fencepost-bench-")
            self._shared = self.start(Path(self._folder.name) / "data")
            warm_up(self._shared)
        return self._shared

    def close(self) -> None:
        """Stops the shared broker, if there is one, and deletes its data."""
        if self._shared is not None:
            self._shared.stop()
        if self._folder is not None:
            self._folder.cleanup()
        self._shared = self._folder = None


def fencepost_python(source: Path | None = None) -> tuple[str, ...]:
    """The interpreter, with that folder or `FENCEPOST_SRC` first on its path."""
    wanted = source or Path(os.environ.get(SOURCE_VARIABLE) or ROOT / "src").resolve()
    if not (wanted / "fencepost").is_dir():
        raise UnavailableError(f"{SOURCE_VARIABLE} is {wanted}, which has no fencepost")
    paths = filter(None, [str(wanted), os.environ.get("PYTHONPATH", "")])
    return "env", f"PYTHONPATH={os.pathsep.join(paths)}", sys.executable


def _start_fencepost(data: Path, port: int, wait: bool) -> Broker:
    python = fencepost_python()
    return FencepostProcess(data, listen=f"127.0.0.1:{port}", python=python, wait=wait)


def _start_interpreted(data: Path, port: int, wait: bool) -> Broker:
    python = fencepost_python(ROOT / "src")
    return FencepostProcess(data, listen=f"127.0.0.1:{port}", python=python, wait=wait)


def _start_kafka(data: Path, port: int, wait: bool) -> Broker:
    return ApacheKafka(data, settings=KAFKA_DELETES_SOON, heap=KAFKA_HEAP, port=port, wait=wait)


def _start_kfake(data: Path, port: int, wait: bool) -> Broker:
    return Kfake(data, port=port, partitions=KFAKE_PARTITIONS, wait=wait)


FENCEPOST: Final = Side("fencepost", "fencepost", _start_fencepost)
INTERPRETED: Final = Side("interpreted", "fencepost (interpreted)", _start_interpreted)
KAFKA: Final = Side("kafka", f"Apache Kafka {VERSION}", _start_kafka)
KFAKE: Final = Side("kfake", "kfake (in memory)", _start_kfake)


def available(names: list[str], say: Callable[[str], None]) -> list[Side]:
    """The requested sides that are available here; the others are skipped with a message."""
    known = {side.name: side for side in (FENCEPOST, KAFKA, INTERPRETED, KFAKE)}
    for name in names:
        if name not in known:
            say(f"skipped: there is no side {name!r}, only {', '.join(known)}")
    sides = []
    for side in known.values():
        if side.name not in names:
            continue
        try:
            if side is KAFKA:
                fetch_libs()
            elif side is FENCEPOST:
                fencepost_python()
            elif side is KFAKE:
                build_kfake()
        except UnavailableError as reason:
            say(f"skipped: {reason}")
        else:
            sides.append(side)
    return sides
