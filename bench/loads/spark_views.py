"""Log files into Spark: every record with its fate, on two cores.

librdkafka has written the log in transactions, one in ten of them aborted, without compression. A
round reads all columns of the view `records` from the folder of the stopped broker and drops them;
`without values` leaves out keys and values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.spark_source import fill
from bench.sides import Side
from bench.spark import stage

VALUE_BYTES: Final = 1_000
RECORDS: Final = 900_000
QUICK_RECORDS: Final = 200_000
TOPIC: Final = "views"
LEAST_MEGABYTES_PER_SECOND: Final = 300.0
WITHOUT_VALUES: Final = "topic,partition,offset,timestamp,producerId,producerEpoch,sequence,fate"


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    data = folder / "data"
    with side.start(data) as broker:
        fill(broker, TOPIC, VALUE_BYTES, scale.of(RECORDS, QUICK_RECORDS))
    size = sum(file.stat().st_size for file in data.glob(f"{TOPIC}-*/*.log"))
    spark = stage().session

    def seconds(**options: str) -> float:
        began = time.perf_counter()
        reader = spark.read.format("fencepost").options(view="records", **options)
        reader.load(str(data)).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def run(_: int) -> Values:
        return {
            "records": size / 1e6 / seconds(),
            "without values": size / 1e6 / seconds(columns=WITHOUT_VALUES),
        }

    yield run


LOAD: Final = Load(
    "spark-views",
    "A gigabyte of log files through the records view",
    (
        Measure("records", "MB/s, all columns", "more", limit=LEAST_MEGABYTES_PER_SECOND),
        Measure("without values", "MB/s of log, without keys and values", "more"),
    ),
    _session,
    rounds=5,
    quick_rounds=3,
    warmup_seconds=1,
    quick_warmup_seconds=1,
    room_bytes=RECORDS * VALUE_BYTES * 2,
    quick_note="200 MB",
    only_ours=True,
)
