"""The two brokers, the JVM for tools, and the fixtures that use them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.apache_kafka import ApacheKafka, missing_programs
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools, ToolResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_programs()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.compat)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers, and Kafka's tools pointed at it."""

    name: str
    bootstrap_servers: str
    data: Path
    tools: JavaTools

    def tool(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Runs one of Kafka's scripts against this broker; it must succeed."""
        return self.tools.check(name, *self._at(name, arguments), stdin=stdin)

    def attempt(self, name: str, *arguments: str, stdin: str = "") -> ToolResult:
        """Runs one of Kafka's scripts against this broker; it may fail."""
        return self.tools.run(name, *self._at(name, arguments), stdin=stdin)

    def _at(self, name: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        where = "--bootstrap-server", self.bootstrap_servers
        # The only tool that expects its command first.
        return (*arguments, *where) if name == "kafka-cluster" else (*where, *arguments)

    def create_topic(self, topic: str, partitions: int = 1, *more: str) -> None:
        creation = ["--create", "--topic", topic, "--partitions", str(partitions)]
        self.tool("kafka-topics", *creation, "--replication-factor", "1", *more)
        # Apache Kafka says "created" before the partitions have their leader, and an idempotent
        # producer that writes in that moment may lose records. Wait until each of them answers.
        while len(self.attempt("kafka-get-offsets", "--topic", topic).lines) != partitions:
            pass

    def run_tests(self, tests: Sequence[str], folder: Path) -> str:
        """Runs tests of other folders on this broker, in a pytest of their own: they must pass.

        Returns what it printed. A process has one Spark, so this one could not run them.
        """
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        ended = subprocess.run(
            [*command, f"--basetemp={folder / 'inner'}", *tests],
            cwd=HERE.parents[1],
            env=os.environ | {"FENCEPOST_TEST_BOOTSTRAP": self.bootstrap_servers},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="session")
def tools() -> Iterator[JavaTools]:
    with JavaTools() as machine:
        yield machine


@pytest.fixture(scope="session")
def newest_client() -> Iterator[JavaTools]:
    """Our own Java programs with the newest Java client."""
    with JavaTools(newest_client=True) as machine:
        yield machine


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    with ApacheKafka(tmp_path_factory.mktemp("apache-kafka") / "data") as broker:
        yield Side("apache kafka", broker.bootstrap_servers, broker.data, tools)


@pytest.fixture(scope="session")
def fencepost_broker(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    data = tmp_path_factory.mktemp("fencepost") / "data"
    # The same setting as on Apache Kafka: a group does not wait before its first generation.
    options = ["--config", "group.initial.rebalance.delay.ms=0"]
    with FencepostProcess(data, options=options) as broker:
        yield Side("fencepost", broker.bootstrap_servers, broker.data, tools)


@pytest.fixture(params=["apache_kafka", "fencepost_broker"], ids=["apache-kafka", "fencepost"])
def side(request: pytest.FixtureRequest) -> Side:
    """Both brokers in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Side)
    return found


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def connector_spark() -> Iterator[SparkSession]:
    """A Spark session with Spark's own Kafka connector and ours.

    Jars are loaded when the JVM starts, and a process has one JVM: all tests with Spark in this
    folder share this session.
    """
    from pyspark.sql import SparkSession

    from tests.spark.conftest import environment
    from tools.spark_connector import fetch_connector

    os.environ.update(environment())
    jars = ",".join(map(str, fetch_connector()))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("fencepost beside Spark's connector")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
