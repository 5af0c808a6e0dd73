"""The folder of a run, and an environment that keeps Spark's files in it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fencepost.base.failures import FencepostError
from fencepost_examples.demo.interrupt import Interruption


@contextlib.contextmanager
def folder_of(keep: Path | None, interruption: Interruption) -> Iterator[Path]:
    """Yields a temporary folder, deleted at the end, or the given empty one, which is kept."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise FencepostError(
                f"{keep} is not empty: name an empty folder, or one that does not exist yet"
            )
        yield keep.resolve()
        return
    folder = ""
    try:
        with interruption.shield():
            folder = tempfile.mkdtemp(prefix="fencepost-demo-")
        yield Path(folder)
    finally:
        with interruption.shield():
            shutil.rmtree(folder, ignore_errors=True)


def environment_in(folder: Path) -> dict[str, str]:
    """Returns the environment for every process of the run."""
    temporary = folder / "tmp"
    temporary.mkdir()
    java_options = [
        os.environ.get("JDK_JAVA_OPTIONS", ""),
        # The optimising compiler does not pay off in processes that live for a minute.
        "-XX:TieredStopAtLevel=1",
        # Otherwise a killed JVM leaves a file in the system's temporary folder.
        "-XX:-UsePerfData",
        f'-Djava.io.tmpdir="{temporary}"',
    ]
    environment = os.environ | {
        "JDK_JAVA_OPTIONS": " ".join(java_options),
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home_in(folder)),
        "SPARK_LOCAL_DIRS": str(temporary),
        "TMPDIR": str(temporary),
    }
    if "PYTHONPATH" in environment:
        # Programs run in the folder, so relative paths must become absolute.
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths)
    return environment


def spark_home_in(folder: Path) -> Path:
    """Creates a SPARK_HOME of links, because local-cluster executors write into SPARK_HOME.

    It leaves out the `python` folder of an installed PySpark. Python workers would import the copy
    in its zip file, and compile it each time: 0.5 s of processor time per worker.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    genuine = Path(os.environ.get("SPARK_HOME") or installed)
    left_out = {"work", "python"} if genuine == installed else {"work"}
    home = folder / "spark"
    home.mkdir()
    for entry in genuine.iterdir():
        if entry.is_dir() and entry.name not in left_out:
            (home / entry.name).symlink_to(entry)
    return home
