"""Other versions of Spark, each in a folder of its own under `build/`, for `make compat`.

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

OLDER: Final = ("4.0.5", "4.1.4", "4.2.1")
"""The newest patch of every supported version but the newest, which `.venv` has."""


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
        subprocess.run([*pip, *target, f"pyspark=={version}"], check=True)
        shutil.rmtree(Path(made) / "spark" / "bin", ignore_errors=True)
        # Renamed when complete, so that a broken installation is never used.
        (Path(made) / "spark").rename(folder)


def environment_of(version: str) -> dict[str, str]:
    """The environment of a child process that uses that version."""
    path = [str(install_spark(version)), os.environ.get("PYTHONPATH", "")]
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def main() -> None:
    for version in OLDER:
        print(install_spark(version))


if __name__ == "__main__":
    main()
