"""Whether Spark can run here: one sentence instead of a traceback from the middle of a query.

`prepare` is for the first lines of a program, before the session is created: without Java,
`getOrCreate` fails with "Java gateway process exited before sending its port number", and importing
this package cannot change that without side effects. Sinks and `Progress` check the packages
themselves.
"""

from __future__ import annotations

import importlib.util
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.spark.java_home import provide_java

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")
"""What the sink needs; numba only makes it faster. Spark itself needs pandas for `mapInArrow`."""


class ExtraMissing(FencepostError):  # noqa: N818 - named for what is the case
    """The packages of the `spark` extra are not installed."""


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

    Call it before `SparkSession.builder...getOrCreate()`. If the machine has no Java, it sets
    JAVA_HOME to that of the `java` extra; without that it raises JavaMissing.
    """
    require_spark()
    provide_java()
