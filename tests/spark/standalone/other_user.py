"""Machines whose processes belong to another user, who has Spark, a Python, and not the checkout.

The user is `nobody`, with a home of its own. Its Python is the system's, in a virtual environment
with the packages that executors need (`EXECUTOR_PACKAGES`) and without fencepost. An empty file
system covers the checkout, and with it the environment of the tests, for these processes only.
Needs root, and a Python and a Java that everybody can run.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from fencepost.spark.failures import EXECUTOR_PACKAGES
from tests.spark.conftest import ROOT

USER: Final = "nobody"
_BEHIND_PANDAS: Final = ("python-dateutil", "pytz", "six", "tzdata")


def reason_without() -> str | None:
    """Why this machine cannot run workers as another user; None if it can."""
    if os.geteuid() != 0:
        return "starting workers as another user needs root"
    if any(shutil.which(program) is None for program in ("setpriv", "unshare")):
        return "util-linux is not installed"
    if _python() is None:
        return f"there is no Python {_version()} that the user {USER} can run"
    if _tried([*in_account(), "java", "-version"]):
        return f"there is no Java that the user {USER} can run"
    return None


def in_account() -> list[str]:
    """What comes before a command: the account, and nothing where the checkout is."""
    script = (
        'mount -t tmpfs tmpfs "$0" && '
        f'exec setpriv --reuid={USER} --regid="$(id -g {USER})" --clear-groups "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, str(ROOT)]


def variables(home: Path) -> dict[str, str]:
    """The environment of the account, as far as it differs from the one of the tests."""
    return {
        "HOME": str(home),
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": "",
        "SPARK_HOME": str(home / "spark"),
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={home}",
    }


def furnish(home: Path) -> Path:
    """Installs Spark and a Python in a new home; returns the Python."""
    home.mkdir()
    import pyspark

    installed = Path(pyspark.__file__).parent
    for part in ("bin", "jars", "python"):
        shutil.copytree(installed / part, home / "spark" / part, copy_function=_link)
    python = _python()
    assert python is not None
    subprocess.run([python, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
    site = home / "venv" / "lib" / f"python{_version()}" / "site-packages"
    for name in (*EXECUTOR_PACKAGES, *_BEHIND_PANDAS):
        _install(name, site)
    for folder, _, _ in os.walk(home):
        shutil.chown(folder, USER)
    return home / "venv" / "bin" / "python"


def _install(name: str, site: Path) -> None:
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        # This version of pandas does without it.
        return
    for file in files:
        if ".." not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if Path(str(file.locate())).exists():
                _link(str(file.locate()), str(target))


def _link(source: str, target: str) -> str:
    """A second name for the file, or a copy if it is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _python() -> str | None:
    places = [f"{folder}/python{_version()}" for folder in ("/usr/bin", "/usr/local/bin")]
    return next(
        (each for each in places if not _tried([*in_account(), each, "-m", "venv", "-h"])), None
    )


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _tried(command: list[str]) -> int:
    return subprocess.run(command, cwd="/", capture_output=True, check=False).returncode
