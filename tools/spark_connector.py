"""Jars from Maven Central for comparison: Spark's Kafka connector, and PostgreSQL's JDBC driver.

The newest published version of the connector is 4.2.0. It also runs on the newer Spark of
constraints.txt, so both sides of a comparison have the same Spark. Spark 3.5, which is built for
Scala 2.12, needs its own.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tools.apache_kafka import ROOT, UnavailableError

MAVEN_SECONDS: Final = 300.0

NEWEST: Final = "4.2.0"
FOR_SPARK_35: Final = "3.5.7"
_ARTIFACTS: Final = {
    NEWEST: (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    FOR_SPARK_35: (
        "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.7",
        "org.apache.kafka:kafka-clients:3.4.1",
        "org.apache.commons:commons-pool2:2.11.1",
    ),
}
"""The jars of each version of the connector."""


_POSTGRES: Final = "42.7.4"


def fetch_connector(version: str = NEWEST) -> list[Path]:
    """The jars of Spark's own Kafka connector, downloaded the first time."""
    return _fetch(f"spark-kafka-{version}", _ARTIFACTS[version])


def fetch_postgres_driver() -> list[Path]:
    """The jar of PostgreSQL's JDBC driver, likewise."""
    return _fetch(f"postgres-jdbc-{_POSTGRES}", (f"org.postgresql:postgresql:{_POSTGRES}",))


def _fetch(name: str, artifacts: tuple[str, ...]) -> list[Path]:
    if shutil.which("mvn") is None:
        raise UnavailableError(f"{name} needs Maven, not found on this machine")
    jars = ROOT / "build" / name
    jars.parent.mkdir(parents=True, exist_ok=True)
    with (jars.parent / "spark-kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            _copy_jars(artifacts, jars)
    return sorted(jars.glob("*.jar"))


def _copy_jars(artifacts: tuple[str, ...], jars: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        for artifact in artifacts:
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
            done = subprocess.run(
                [*command, f"-DoutputDirectory={folder}/libs"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=MAVEN_SECONDS,
                check=False,
            )
            if done.returncode:
                raise UnavailableError(f"Maven could not get {artifact}: {done.stdout}")
        # Renamed when complete, so that a broken download is never used.
        (Path(folder) / "libs").rename(jars)
