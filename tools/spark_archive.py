"""`build/spark.jsa`: the classes that Spark loads, parsed and verified once for all tests.

Spark's JVM loads some 15,000 classes before the first batch ends. With an archive of them
(class-data sharing) a driver that runs a few queries needs a third less processor time, and an
executor half. The JVM checks the archive against itself and the jars, and ignores one that does not
match. `tests/conftest.py` names the file to every JVM; `make test` makes it once per environment.

The archive has what a small pipeline used: a broker, the sink, the source, and a table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parent.parent
ARCHIVE: Final = ROOT / "build" / "spark.jsa"
JVM_SECONDS: Final = 300


def make_archive(path: Path) -> None:
    """Runs the pipeline; its JVM writes the archive when it ends."""
    from fencepost_examples.refunds.spark.session import make_session

    # Only for the driver: spark-submit starts another JVM before it.
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={path}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder, fencepost.Broker() as broker:
        spark = make_session("fencepost class archive")
        spark.sparkContext.setLogLevel("OFF")
        jvm = _jvm_of(spark)
        _run_pipeline(spark, broker.bootstrap_servers, Path(folder))
        spark.stop()
        # Closing its input ends the JVM, as the end of this process would.
        assert jvm.stdin is not None
        jvm.stdin.close()
        jvm.wait(JVM_SECONDS)


def _jvm_of(spark: SparkSession) -> subprocess.Popen[bytes]:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - nothing public waits for the JVM.
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _run_pipeline(spark: SparkSession, servers: str, folder: Path) -> None:
    from fencepost.spark import TransactionalSink

    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("lines", 2, 1)])
    (folder / "in").mkdir()
    (folder / "in" / "lines.txt").write_text("a\nb\nc\n")
    lines = spark.readStream.text(str(folder / "in")).selectExpr("value AS key", "value")
    sink = TransactionalSink(servers, transactional_id="archive", topic="lines")
    query = lines.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    source = spark.read.format("fencepost").option("kafka.bootstrap.servers", servers)
    rows = source.option("subscribe", "lines").load()
    rows.write.parquet(str(folder / "table"))
    assert spark.read.parquet(str(folder / "table")).groupBy("partition").count().count() > 0


def main() -> None:
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    try:
        make_archive(ARCHIVE)
    except (FencepostError, ImportError) as problem:
        print(f"no class archive, the tests take longer: {problem}")
    if not ARCHIVE.exists():
        # So that `make` does not try again; the tests do not name an empty one.
        ARCHIVE.touch()


if __name__ == "__main__":
    main()
