"""A Spark Connect server in a process of its own, which tests can kill, and its clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.conftest import environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.pipeline import Sink

STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)$")
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.enabled": "false",
}


class ConnectServer:
    """The driver with its server, as `start-connect-server.sh` would start it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []
        self.url = ""

    def start(self) -> None:
        env = environment()
        settings = SETTINGS | {"spark.local.dir": str(self._folder)}
        command = [
            f"{env['SPARK_HOME']}/bin/spark-submit",
            "--class",
            CLASS,
            "--master",
            "local[2]",
        ]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        log = self._folder / f"server-{len(self._groups)}.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        self._groups.append(self._process.pid)
        self.url = f"sc://127.0.0.1:{self._port(log)}"

    def _port(self, log: Path) -> int:
        assert self._process is not None
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in log.read_text(errors="replace").splitlines():
                if (found := STARTED.search(line)) is not None:
                    return int(found[1])
            time.sleep(0.1)
        raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kills the driver alone: its Python processes do not know yet."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Kills the driver and all processes that it or an earlier one has started."""
        self.kill()
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    @contextmanager
    def client(self) -> Iterator[SparkSession]:
        """A session of its own; Spark's functions in this process are Connect's meanwhile."""
        from pyspark.sql.connect.session import SparkSession

        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        session: Any = SparkSession.builder.remote(self.url).create()
        # Otherwise a client waits for ten minutes for a server that was killed.
        session.client.set_retry_policies([])
        try:
            yield session
        finally:
            with suppress(Exception):  # The server may be gone.
                session.stop()
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


@dataclass(frozen=True)
class At:
    """Does something at one step of one batch, in the server's Python process. It is pickled."""

    step: str
    batch: int

    def __call__(self, step: str, batch: int) -> None:
        if (step, batch) == (self.step, self.batch):
            self.act()

    def act(self) -> None:
        raise RuntimeError("made to fail")


class DieAt(At):
    """The process of foreachBatch is killed."""

    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class WaitAt(At):
    """Waits until the test creates the file `released`."""

    marker: str

    def act(self) -> None:
        from tests.spark import chaos

        chaos.wait_to_be_released(self.marker)


@dataclass(frozen=True)
class Told:
    """Writes the name of the exception with which a sink ends to a file."""

    sink: Sink
    path: str

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        try:
            self.sink(df, batch_id)
        except BaseException as problem:
            unfinished = Path(f"{self.path}.part")
            unfinished.write_text(type(problem).__name__)
            unfinished.rename(self.path)
            raise
