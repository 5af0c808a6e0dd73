"""Which Java counts: 17 or newer, as Spark 4 and Apache Kafka 4 need it.

The only place that decides it, also for the Makefile: `python src/fencepost/spark/java.py` exits
with 0 if there is one. It needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Final

LEAST_VERSION: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_SECONDS: Final = 30


def java_program() -> str | None:
    """The Java that Spark would start: that of JAVA_HOME, even if it is wrong, or on PATH."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        return shutil.which("java")
    program = os.path.join(home, "bin", "java")
    return program if os.path.exists(program) else None


def version_of(program: str) -> int | None:
    """The feature version of a Java; None if it does not say one."""
    try:
        said = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return None if found is None else int(found[1])


def has_java() -> bool:
    """Whether Spark would find a Java by itself that is new enough."""
    program = java_program()
    return program is not None and (version_of(program) or 0) >= LEAST_VERSION


if __name__ == "__main__":
    sys.exit(not has_java())
