"""`fencepost bench`: fencepost beside Apache Kafka, on this machine.

What measures stands in the folder `bench` of the source and not in the package: it needs the tests'
clients, Java and Maven. So the command looks for a checkout, first here and then around the
package, and hands its arguments on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fencepost.base.failures import FencepostError

_CLIENT = "confluent_kafka"


class NoBenchError(FencepostError):
    """There is nothing to measure with here; the message says what to do."""


def bench(arguments: list[str]) -> int:
    """Runs `python -m bench` of the checkout; returns its exit status."""
    root = checkout(Path.cwd(), Path(__file__))
    _require_client(root)
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    # -P: a `bench.py` that happens to lie in the current folder is not what was meant.
    command = [sys.executable, "-P", "-m", "bench", *arguments]
    with subprocess.Popen(command, env=environment) as measuring:
        while True:
            try:
                return measuring.wait()
            except KeyboardInterrupt:
                # Ctrl-C reached it too: it stops its brokers and deletes its files, and that takes
                # a moment.
                continue


def can_measure() -> bool:
    """Whether there is a checkout around; in the help of an installed wheel the command would only be in the way."""
    try:
        checkout(Path.cwd(), Path(__file__))
    except (NoBenchError, OSError):
        return False
    return True


def checkout(*places: Path) -> Path:
    """The root of the source tree that one of these places is in."""
    for place in places:
        for folder in (place, *place.resolve().parents):
            if (folder / "bench" / "loads").is_dir() and (folder / "src" / "fencepost").is_dir():
                return folder
    raise NoBenchError(
        "`fencepost bench` needs the source: get a checkout of fencepost, run `make venv` in "
        "it, and call the command there"
    )


def _require_client(root: Path) -> None:
    """librdkafka is a client of the tests, not a dependency of the broker."""
    from importlib.util import find_spec

    if find_spec(_CLIENT) is None:
        raise NoBenchError(f"`fencepost bench` needs confluent-kafka: run `make venv` in {root}")
