"""A broker in a separate process, Spark sessions, and topics to write to.

The broker is fencepost unless FENCEPOST_TEST_BOOTSTRAP names another one: every test here uses the
wire protocol only, so all of them run against Apache Kafka as well.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost_examples.demo.folder import spark_home_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]


def environment(*, is_quick: bool = True) -> dict[str, str]:
    """The environment in which a child process finds fencepost and the tests.

    Spark has `quick_settings` in it, or its own defaults.
    """
    path = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    unique = os.pathsep.join(dict.fromkeys(filter(None, path)))
    found = os.environ | {"PYTHONPATH": unique, "PYSPARK_PYTHON": sys.executable} | _spark_home()
    # Not left out: a program that gets these variables has those of this process too.
    return found | (_quick_options() if is_quick else dict.fromkeys(_quick_options(), ""))


@cache
def _spark_home() -> dict[str, str]:
    """A SPARK_HOME for this process, if Spark is installed."""
    if "SPARK_HOME" in os.environ or importlib.util.find_spec("pyspark") is None:
        return {}
    folder = tempfile.mkdtemp(prefix="fencepost-spark-home-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"SPARK_HOME": str(spark_home_in(Path(folder)))}


@cache
def _quick_options() -> dict[str, str]:
    """`quick_settings`, for the JVMs of drivers: those that spark-submit starts."""
    if importlib.util.find_spec("pyspark") is None:
        return {}
    options = [f"-D{name}={value}" for name, value in quick_settings().items()]
    return {"SPARK_SUBMIT_OPTS": " ".join(options)}


def quick_settings() -> dict[str, str]:
    """Settings with which small queries need half the processor time.

    Without generated code, and with a checkpoint whose files are written by Java alone: Hadoop
    runs `chmod` and `readlink` for each file otherwise, and Spark adds a checksum to each. On the
    newest Spark, Python workers are forked with their modules. Older versions fork them as Spark
    does. `standalone/test_other_user.py` and the cluster on Apache Kafka run with Spark's own
    defaults.
    """
    import pyspark

    found = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3):
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        manager = f"{package}.FileSystemBasedCheckpointFileManager"
        found["spark.sql.streaming.checkpointFileManagerClass"] = manager
        found["spark.python.daemon.module"] = "tests.spark.warm_daemon"
    return found


class BrokerProcess:
    """`fencepost serve`, which tests can kill and start again with the same data and port."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "fencepost", "serve", "--listen", self._listen]
        # Not ten seconds: tests wait for transactions that are past their timeout.
        command += ["--config", "transaction.abort.timed.out.transaction.cleanup.interval.ms=100"]
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
    """Skips the test, with a reason, if Spark cannot run."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    pytest.importorskip("pyarrow", reason="the spark extra is not installed")
    from fencepost.spark.installation import JavaMissing, provide_java

    try:
        provide_java()
    except JavaMissing as reason:
        pytest.skip(str(reason))


def on_spark(seconds: int = 180) -> list[pytest.MarkDecorator]:
    """The marks of a module whose tests run queries."""
    return [
        pytest.mark.spark,
        pytest.mark.timeout(seconds),
        # Spark closes sockets to its JVM late.
        pytest.mark.filterwarnings("default"),
    ]


class Sessions:
    """The only session of a process, replaced when a test needs another master or settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted: tuple[str, Mapping[str, str]] = ("", {})
        self._session: SparkSession | None = None

    def session(self, master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
        wanted = (master, settings or {})
        if self._session is None or self._wanted != wanted:
            self.stop()
            self._wanted, self._session = wanted, self._make(*wanted)
        return self._session

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _make(self, master: str, settings: Mapping[str, str]) -> SparkSession:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        os.environ.update(environment())
        conf = SparkConf().setAll(list(settings.items()))
        session = (
            SparkSession.builder.config(conf=conf)
            .master(master)
            .appName("fencepost tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(self._folder))
            .config("spark.sql.streaming.stopTimeout", "30s")
            # After an executor is lost, Spark looks for free cores after 1 s, not 15 s.
            .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        return session


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    require_spark()
    found = Sessions(tmp_path_factory.mktemp("spark"))
    yield found
    found.stop()
    # Clients of sinks whose brokers are gone; in a program they would end with it.
    from fencepost.spark.connection import close_clusters

    close_clusters()


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    """Executors are threads of the driver."""
    return sessions.session("local[2]")


@pytest.fixture
def spark_with_executors(sessions: Sessions) -> SparkSession:
    """Executors are processes, two of them."""
    return sessions.session("local-cluster[2,1,1024]")


_numbers = itertools.count()


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    """Creates a topic with a unique name."""

    def make(partitions: int = 3, name: str = "t") -> str:
        topic = f"{name}-{os.getpid()}-{next(_numbers)}"
        cluster.create_topics([NewTopic(topic, partitions, 1)])
        return topic

    return make


@pytest.fixture
def pipeline(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> Pipeline:
    """A query whose executors are threads of the driver, into a topic with three partitions."""
    from tests.spark.pipeline import Pipeline

    return Pipeline(spark, bootstrap, tmp_path, new_topic())


def read_values(cluster: Cluster, topic: str) -> list[str]:
    """All committed values of a topic."""
    count = len(cluster.metadata([topic]).topics[topic].partitions)
    return [
        (record.value or b"").decode()
        for partition in range(count)
        for record in cluster.records(TopicPartition(topic, partition))
    ]
