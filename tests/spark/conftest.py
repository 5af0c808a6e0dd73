"""A broker in a process of its own, a Spark session, and topics to write to.

The broker is fencepost unless FENCEPOST_TEST_BOOTSTRAP names another one: every test here speaks the wire only, so they
all run against Apache Kafka as well.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = str(Path(__file__).resolve().parents[2] / "src")


def environment() -> dict[str, str]:
    """What a child process needs to find fencepost where it is not installed."""
    path = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


class BrokerProcess:
    """`fencepost serve`, which may be killed and started again on the same data and port."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "fencepost", "serve", "--listen", self._listen]
        self._process = subprocess.Popen(
            [*command, "--data", str(self._data)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert "ready at" in ready, f"the broker did not start: {ready!r}"
        self._listen = self.bootstrap_servers = ready.split()[-1]

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("FENCEPOST_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.bootstrap_servers
    broker.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "own-broker")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with connect(bootstrap) as found:
        yield found


def require_spark() -> None:
    """Skips with a reason where Spark cannot run."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    pytest.importorskip("pyarrow", reason="the spark extra is not installed")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs a Java runtime, and none was found")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    require_spark()
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    session = (
        SparkSession.builder.master("local[2]")
        .appName("fencepost tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.stopTimeout", "30s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


_numbers = itertools.count()


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    """Makes a topic with a name that no other test has."""

    def make(partitions: int = 3, name: str = "t") -> str:
        topic = f"{name}-{os.getpid()}-{next(_numbers)}"
        cluster.create_topics([NewTopic(topic, partitions, 1)])
        return topic

    return make


def read_values(cluster: Cluster, topic: str) -> list[str]:
    """All committed values of a topic."""
    count = len(cluster.metadata([topic]).topics[topic].partitions)
    return [
        (record.value or b"").decode()
        for partition in range(count)
        for record in cluster.records(TopicPartition(topic, partition))
    ]
