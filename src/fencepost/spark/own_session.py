"""A Spark session for one command that leaves nothing behind.

Spark writes warnings to standard error before any setting of ours is read, and its Python workers
write theirs there too. The JVM inherits the descriptor when it is started, so for that moment it
points to a file in the command's folder. If the session cannot start, the last lines of the file
say why.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.spark.installation import provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAST_LINES: Final = 3
_LOCAL: Final = "local"


@contextmanager
def own_session(master: str, name: str) -> Iterator[SparkSession]:
    """Yields a session with nothing on the terminal; stops it at the end."""
    provide_java()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-spark-"))
    try:
        session = _start(master, name, folder)
        try:
            yield session
        finally:
            session.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(master: str, name: str, folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    if master.startswith(_LOCAL):
        # Only this machine must reach the driver, and without a network it has no other address.
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
    log = folder / "spark.log"
    try:
        with _stderr_in(log):
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    except Exception as problem:
        raise FencepostError(
            f"Spark did not start with --master {master}: {_end_of(log) or problem}"
        ) from problem
    return session


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Sends standard error to a file; processes started in the block inherit that."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _end_of(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    told = [line.strip() for line in lines if line.strip() and not line.startswith("\tat ")]
    return " | ".join(told[-_LAST_LINES:])
