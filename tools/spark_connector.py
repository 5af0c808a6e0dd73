"""Spark's own Kafka connector from Maven Central, for comparison with our source and sink.

Its newest published version is 4.2.0. It also runs on the newer Spark of constraints.txt, so both
sides of a comparison have the same Spark.
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

_CONNECTOR: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
_JARS: Final = ROOT / "build" / "spark-kafka-4.2.0"


def fetch_connector() -> list[Path]:
    """The jars of Spark's own Kafka connector, downloaded the first time."""
    if shutil.which("mvn") is None:
        raise UnavailableError("Spark's Kafka connector needs Maven, not found on this machine")
    _JARS.parent.mkdir(parents=True, exist_ok=True)
    with (_JARS.parent / "spark-kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _JARS.exists():
            _copy_jars()
    return sorted(_JARS.glob("*.jar"))


def _copy_jars() -> None:
    with tempfile.TemporaryDirectory(dir=_JARS.parent) as folder:
        for artifact in _CONNECTOR:
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
        (Path(folder) / "libs").rename(_JARS)
