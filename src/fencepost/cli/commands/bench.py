"""`fencepost bench`: measures fencepost and Apache Kafka on this machine.

The benchmarks are in the folder `bench` of a checkout and not in the package: they need the test
clients, Java and Maven. The command looks for a checkout around the current folder, then around the
package, and passes its arguments on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fencepost.base.failures import FencepostError

_CLIENT = "confluent_kafka"


class NoBenchError(FencepostError):
    """There is no checkout to run the benchmarks from."""


def bench(arguments: list[str]) -> int:
    """Runs `python -m bench` of the checkout; returns its exit status."""
    root = checkout(Path.cwd(), Path(__file__))
    _require_client(root)
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    # -P: do not run a `bench.py` that happens to be in the current folder.
    command = [sys.executable, "-P", "-m", "bench", *arguments]
    with subprocess.Popen(command, env=environment) as measuring:
        while True:
            try:
                return measuring.wait()
            except KeyboardInterrupt:
                # The child got Ctrl-C too. Wait until it has stopped its brokers and deleted its
                # files.
                continue


def can_measure() -> bool:
    """Whether there is a checkout. Without one the help does not list the command."""
    try:
        checkout(Path.cwd(), Path(__file__))
    except (NoBenchError, OSError):
        return False
    return True


def checkout(*places: Path) -> Path:
    """Returns the root of the source tree that contains one of these places."""
    for place in places:
        for folder in (place, *place.resolve().parents):
            if (folder / "bench" / "loads").is_dir() and (folder / "src" / "fencepost").is_dir():
                return folder
    raise NoBenchError(
        "`fencepost bench` needs the source: get a checkout of fencepost, run `make venv` in "
        "it, and run the command there"
    )


def _require_client(root: Path) -> None:
    """Fails if confluent-kafka, a development dependency, is missing."""
    from importlib.util import find_spec

    if find_spec(_CLIENT) is None:
        raise NoBenchError(f"`fencepost bench` needs confluent-kafka: run `make venv` in {root}")
