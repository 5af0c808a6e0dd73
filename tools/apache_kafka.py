"""Apache Kafka for comparison: its jars from Maven Central, a broker, and its Java tools.

Nothing of it is in the repository. The jars are downloaded once into build/kafka-VERSION/libs; a
broker runs in KRaft mode with the controller in the same process, on free ports, in a folder that
its user deletes. Tests compare fencepost's behaviour with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from fencepost.spark.java import LEAST_VERSION, has_java
from tools.processes import STOP_SECONDS, ServerProcess, free_port

VERSION: Final = "4.3.0"
CLIENT_VERSION: Final = "4.4.0"
"""The newest Java client, which is released before its broker is on Maven Central."""
ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / "build" / f"kafka-{VERSION}"
LIBS: Final = HOME / "libs"
CLIENT_LIBS: Final = ROOT / "build" / f"kafka-clients-{CLIENT_VERSION}" / "libs"
JAVA_SOURCES: Final = ROOT / "tests" / "compat" / "java"

START_SECONDS: Final = 90.0
FORMAT_SECONDS: Final = 60.0
MAVEN_SECONDS: Final = 600.0
COMPILE_SECONDS: Final = 120.0

Artifacts = tuple[tuple[str, str, str], ...]

_CLIENT_ARTIFACTS: Final[Artifacts] = (("org.apache.kafka", "kafka-clients", CLIENT_VERSION),)
_ARTIFACTS: Final[Artifacts] = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.kafka", "kafka-clients", VERSION),
    # Without it, the reason for a failed broker or tool would not be visible.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)


class UnavailableError(Exception):
    """Apache Kafka is not available here; the message says why."""


def missing_programs() -> list[str]:
    """What must be installed first."""
    missing = [] if has_java() else [f"java {LEAST_VERSION} or newer"]
    return missing + [program for program in ("javac", "mvn") if shutil.which(program) is None]


def fetch_libs() -> Path:
    """The folder with Kafka's jars, downloaded from Maven Central the first time."""
    if missing := missing_programs():
        raise UnavailableError(
            f"Apache Kafka needs {', '.join(missing)}, not found on this machine"
        )
    return _fetched(LIBS, _ARTIFACTS)


def fetch_client_libs() -> Path:
    """The folder with the newest Java client, downloaded like `fetch_libs`."""
    return _fetched(CLIENT_LIBS, _CLIENT_ARTIFACTS)


def _fetched(libs: Path, artifacts: Artifacts) -> Path:
    libs.parent.mkdir(parents=True, exist_ok=True)
    with (libs.parent / "lock").open("w") as lock:
        # Two test runs may start at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.exists():
            _copy_dependencies(libs, artifacts)
    return libs


def _copy_dependencies(libs: Path, artifacts: Artifacts) -> None:
    with tempfile.TemporaryDirectory(dir=libs.parent) as folder:
        (Path(folder) / "pom.xml").write_text(_pom(artifacts))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
        done = _run(command, MAVEN_SECONDS, folder=Path(folder))
        if done.returncode != 0:
            raise UnavailableError(f"Maven could not get {artifacts}: {done.stdout}")
        # Renamed when complete, so that a broken download is never used.
        (Path(folder) / "libs").rename(libs)


def _pom(artifacts: Artifacts) -> str:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>fencepost</groupId><artifactId>apache-kafka</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{wanted}</dependencies></project>"
    )


def compile_java() -> Path:
    """The folder with our own Java programs, compiled against Kafka's jars."""
    libs = fetch_libs()
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = HOME / f"classes-{digest}"
    if classes.exists():
        return classes
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        target = Path(folder) / "classes"
        command = ["javac", "-nowarn", "-cp", f"{libs}/*", "-d", str(target), *map(str, sources)]
        done = _run(command, COMPILE_SECONDS)
        if done.returncode != 0:
            raise AssertionError(f"our Java programs do not compile:\n{done.stdout}")
        if not classes.exists():
            target.rename(classes)
    return classes


def java_command(
    *arguments: str, heap: str = "256m", log_level: str = "error", newest_client: bool = False
) -> list[str]:
    """A Java command line with Kafka's jars and our programs on its class path."""
    quiet = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    folders = [fetch_libs()]
    if newest_client:
        folders.insert(0, fetch_client_libs())  # The first of two jars counts.
    classpath = os.pathsep.join([str(compile_java()), *(f"{libs}/*" for libs in folders)])
    return ["java", f"-Xmx{heap}", quiet, "-XX:+UseSerialGC", "-cp", classpath, *arguments]


class ApacheKafka:
    """One Apache Kafka broker on one data folder, which it leaves behind."""

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        heap: str = "512m",
        port: int | None = None,
        wait: bool = True,
    ) -> None:
        self.data = data
        self.port = port or free_port()
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        fetch_libs()
        data.mkdir(parents=True, exist_ok=True)
        self._properties = data.parent / f"{data.name}.properties"
        self._properties.write_text(
            _server_properties(data, self.port, free_port(), settings or {})
        )
        if not (data / "meta.properties").exists():
            self._format()
        machine = ["java", f"-Xms{heap}", f"-Xmx{heap}", *_LOGGING, "-cp", f"{LIBS}/*"]
        self.process = ServerProcess([*machine, "kafka.Kafka", str(self._properties)])
        if not wait:
            return
        try:
            self.process.wait_for_port("127.0.0.1", self.port, START_SECONDS)
        except BaseException:
            self.process.kill()
            raise

    def _format(self) -> None:
        tool = ["java", *_LOGGING, "-cp", f"{LIBS}/*", "kafka.tools.StorageTool", "format"]
        # Any 22 base64 characters are a valid cluster id.
        done = _run(
            [*tool, "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(self._properties)], FORMAT_SECONDS
        )
        if done.returncode != 0:
            raise UnavailableError(f"Apache Kafka could not format its folder: {done.stdout}")

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Stops it with SIGTERM; returns the exit status."""
        return self.process.stop(seconds)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_LOGGING: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error",)


def _server_properties(data: Path, port: int, controller_port: int, more: Mapping[str, str]) -> str:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        # One copy of everything, as there is one broker. All other settings are Kafka's defaults.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _run(
    command: list[str], seconds: float, *, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


if __name__ == "__main__":  # For the Makefile and CI: what is missing, if anything is.
    print(", ".join(missing_programs()), end="")
