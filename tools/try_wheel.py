"""Tries the fencepost of an environment: a broker starts, and a transaction is written and read.

It runs with the Python of that environment and uses nothing but what the wheel and its requirements
install; `make wheel`, `make release-check` and cibuildwheel run it.

    python tools/try_wheel.py             # whichever wheel it is
    python tools/try_wheel.py --compiled  # fails if the hot path is not compiled
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import fencepost
from fencepost.log import log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="fail if nothing is compiled")
    wanted = parser.parse_args()
    place = Path(fencepost.__file__)
    if not place.is_relative_to(sys.prefix):
        sys.exit(f"This is not the installed package: {place}")
    is_compiled = not log.__file__.endswith(".py")
    if wanted.compiled and not is_compiled:
        sys.exit(f"The hot path is not compiled: {log.__file__}")
    with fencepost.Broker() as broker:
        servers = ["--bootstrap-servers", broker.bootstrap_servers]
        _command("topic", "create", "tried", "--partitions", "1", *servers)
        lines = "first\nsecond\n"
        _command("topic", "produce", "tried", "--transaction", "trial", *servers, lines=lines)
        read = _command("topic", "consume", "tried", *servers)
    if read != lines:
        sys.exit(f"Written: {lines!r}, read: {read!r}")
    kind = "compiled" if is_compiled else "interpreted"
    print(f"fencepost {fencepost.__version__}, {kind}, on Python {sys.version.split()[0]}: works")


def _command(*arguments: str, lines: str = "") -> str:
    """The output of a command of the installed program."""
    program = Path(sys.executable).with_name("fencepost")
    ended = subprocess.run(
        [program, *arguments],
        check=False,
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if ended.returncode:
        sys.exit(f"fencepost {' '.join(arguments)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
