"""`pyspark.daemon`, which has imported what its workers need when it forks them.

A worker imports Arrow, pandas and fencepost: half a second of processor time, and the tests lose
many workers. Spark leaves the imports to the workers because some modules start threads, which a
fork does not copy. The only thread here is one of Arrow's allocator, which is made for forks.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys

# Numpy would start threads for its linear algebra.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

OURS = {
    "pyspark.worker": (
        "pandas",
        "pyspark.sql.pandas.serializers",
        "fencepost.spark.ways.shuffled",
        "fencepost.spark.ways.direct",
        "fencepost.spark.doors.routed_task",
        "fencepost.spark.source.range_reader",
    )
}
"""By the module of the worker; other workers plan for a data source."""


def main() -> None:
    worker = sys.argv[1]
    for name in (worker, "pyarrow", *OURS.get(worker, ("fencepost.spark.data_source",))):
        importlib.import_module(name)
    gc.freeze()
    # As `python -m pyspark.daemon`, by which fencepost knows that Spark has started a process.
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
