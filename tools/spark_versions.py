"""Other versions of Spark, each in its own folder under `build/`, for `make compat`.

`.venv` has the newest one. `environment_of` puts another one first on the path of a child process:
its Python, its jars and its workers are then those of that version.

A version is some 450 MB from PyPI, once. Run as a program it installs all of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"

SPARK_35: Final = "3.5.9"
OLDER: Final = ("4.0.5", "4.1.4", "4.2.1")
"""The newest patch of every supported 4.x but the newest, which `.venv` has."""

_BESIDE: Final = {SPARK_35: ("numpy==1.26.4", "pyarrow==19.0.1")}
"""What a version needs older ones of than `.venv` has. PySpark 3.5 asks for NumPy below 2 (its
applyInPandasWithState fails with 2.4), and a newer pyarrow asks for NumPy 2."""


def install_spark(version: str) -> Path:
    """The folder with `pyspark` of that version, installed the first time."""
    folder = BUILD / f"spark-{version}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"spark-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(version, folder)
    return folder


def _install(version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=BUILD) as made:
        # Everything else that it needs is in the environment of this Python.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        target = ["--no-build-isolation", "--no-compile", "--target", f"{made}/spark"]
        wanted = (f"pyspark=={version}", *_BESIDE.get(version, ()))
        subprocess.run([*pip, *target, *wanted], check=True)
        shutil.rmtree(Path(made) / "spark" / "bin", ignore_errors=True)
        # Renamed when complete, so that a broken installation is never used.
        (Path(made) / "spark").rename(folder)


def environment_of(version: str) -> dict[str, str]:
    """The environment of a child process that uses that version."""
    path = [str(install_spark(version)), os.environ.get("PYTHONPATH", "")]
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def main() -> None:
    for version in (SPARK_35, *OLDER):
        print(install_spark(version))


if __name__ == "__main__":
    main()
