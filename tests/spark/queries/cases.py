"""Queries to repeat after crashes: what each reads, its plan, and what it must have written.

A case reads one file per batch. A line is `key,seconds` for a query that looks at the time of its
events, and any text otherwise. `expected` are the committed values at the end, in any order.

Two rules keep `expected` independent of crashes: Spark computes the watermark of a batch from the
batches before it, and a batch that is repeated reads the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.spark.pipeline import numbered

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
STATE_IDS: Final = ROCKSDB | {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
"""Every run of a task names the state that it stores, and the checkpoint has those names."""

Shape = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Case:
    """One query."""

    shape: Shape
    files: tuple[list[str], ...]
    expected: list[str]
    mode: str = "append"
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def in_session(self, spark: SparkSession) -> Iterator[None]:
        """The session has the settings of this case; a query that is started keeps them."""
        for name, value in self.settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in self.settings:
                spark.conf.unset(name)


def _events(lines: DataFrame) -> DataFrame:
    """`key,seconds` as columns, with a watermark that does not lag."""
    return lines.selectExpr(
        "split(value, ',')[0] AS key",
        "timestamp_seconds(cast(split(value, ',')[1] AS int)) AS time",
    ).withWatermark("time", "0 seconds")


def _side(lines: DataFrame, side: str) -> DataFrame:
    """The events of one side of a join: lines that begin with its letter."""
    found = _events(lines.where(f"value LIKE '{side}%'").selectExpr("substr(value, 2) AS value"))
    return found.selectExpr(f"key AS key{side}", f"time AS time{side}")


def _shown(rows: DataFrame, *parts: str) -> DataFrame:
    return rows.selectExpr("key", f"concat_ws('=', {', '.join(parts)}) AS value")


def unchanged(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("value AS key", "value")


# Aggregates.


def counts(lines: DataFrame) -> DataFrame:
    return _shown(lines.groupBy(lines.value.alias("key")).count(), "key", "count")


def windows(lines: DataFrame) -> DataFrame:
    from pyspark.sql.functions import window

    counted = _events(lines).groupBy(window("time", "10 seconds"), "key").count()
    return _shown(counted, "key", "unix_timestamp(window.start)", "count")


def sessions(lines: DataFrame) -> DataFrame:
    from pyspark.sql.functions import session_window

    counted = _events(lines).groupBy(session_window("time", "5 seconds"), "key").count()
    return _shown(counted, "key", "unix_timestamp(session_window.start)", "count")


def windows_of_windows(lines: DataFrame) -> DataFrame:
    """Two operators with state, one after the other."""
    from pyspark.sql.functions import window, window_time

    inner = _events(lines).groupBy(window("time", "10 seconds"), "key").count()
    outer = (
        inner.withColumn("time", window_time("window"))
        .groupBy(window("time", "20 seconds"))
        .count()
        .selectExpr("'all' AS key", "window", "count")
    )
    return _shown(outer, "unix_timestamp(window.start)", "count")


# Joins.


def static_join(lines: DataFrame) -> DataFrame:
    rows = [("a", "Ann"), ("b", "Bob")]
    names = lines.sparkSession.createDataFrame(rows, "key string, name string")
    return _shown(lines.withColumnRenamed("value", "key").join(names, "key"), "key", "name")


def left_outer_join(lines: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr

    near = "keyL = keyR AND timeR BETWEEN timeL AND timeL + INTERVAL 5 SECONDS"
    joined = _side(lines, "L").join(_side(lines, "R"), expr(near), "left_outer")
    return _shown(
        joined.withColumn("key", expr("keyL")),
        "keyL",
        "unix_timestamp(timeL)",
        "coalesce(string(unix_timestamp(timeR)), 'none')",
    )


# Duplicates.


def distinct_keys(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("value AS key", "value").dropDuplicates(["key"])


def distinct_for_a_time(lines: DataFrame) -> DataFrame:
    return _shown(
        _events(lines).dropDuplicatesWithinWatermark(["key"]), "key", "unix_timestamp(time)"
    )


# Python functions.


def _doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(value=frame["key"] + frame["key"])


def mapped_in_pandas(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("value AS key").mapInPandas(_doubled, "key string, value string")


def _running_count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "value": [f"{key[0]}={count}"]})


def running_counts_in_pandas(lines: DataFrame) -> DataFrame:
    return (
        lines.selectExpr("value AS key")
        .groupBy("key")
        .applyInPandasWithState(
            _running_count, "key string, value string", "count long", "update", "NoTimeout"
        )
    )


def _row_counter() -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counter(StatefulProcessor):
        """Counts the rows of a key."""

        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Any,
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            count = (self._count.get()[0] if self._count.exists() else 0) + len(list(rows))
            self._count.update((count,))
            yield Row(key=key[0], value=f"{key[0]}={count}")

        def close(self) -> None:
            pass

    return Counter()


def _pandas_counter() -> Any:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counter(StatefulProcessor):
        """Counts the rows of a key, and reports the count of a key when its timer fires."""

        def init(self, handle: Any) -> None:
            self._handle = handle
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Any,
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            count = (self._count.get()[0] if self._count.exists() else 0) + sum(map(len, rows))
            if not self._count.exists():
                now_ms = timerValues.getCurrentWatermarkInMs()
                self._handle.registerTimer(max(now_ms, 0) + 10_000)
            self._count.update((count,))
            yield pd.DataFrame({"key": [key[0]], "value": [f"{key[0]}={count}"]})

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Iterator[Any]:
            count = self._count.get()[0]
            self._count.clear()
            yield pd.DataFrame({"key": [key[0]], "value": [f"{key[0]} had {count}"]})

        def close(self) -> None:
            pass

    return Counter()


def transformed_by_row(lines: DataFrame) -> DataFrame:
    return (
        lines.selectExpr("value AS key")
        .groupBy("key")
        .transformWithState(_row_counter(), "key string, value string", "Update", "None")
    )


def transformed_in_pandas(lines: DataFrame) -> DataFrame:
    return (
        _events(lines)
        .groupBy("key")
        .transformWithStateInPandas(
            _pandas_counter(), "key string, value string", "Update", "EventTime"
        )
    )


_LINES: Final = (numbered(0), numbered(1))
_LETTERS: Final = (["a", "b", "a"], ["a", "c"], ["b"])
_TIMES: Final = (["a,1", "a,2", "b,3"], ["a,5", "a,15"], ["c,30"], ["a,4", "c,45"])
"""The last `a` is late: its window was closed in the batch before."""
_JOINED: Final = (["La,1", "Ra,3", "Lb,2"], ["Ra,4", "Rb,9", "Lc,10"], ["Lz,40", "Rz,40"])
"""The `b` of the right side is too far from that of the left."""
_COUNTED: Final = ["a=2", "b=1", "a=3", "c=1", "b=2"]

_MANY: Final = [f"k{n}" for n in range(150)]
"""More rows than the driver expects after a batch of a few: it drops them, and runs the plan again.
"""

CASES: Final[dict[str, Case]] = {
    "lines": Case(unchanged, _LINES, [*_LINES[0], *_LINES[1]]),
    "update": Case(counts, _LETTERS, _COUNTED, "update"),
    "update, state ids": Case(counts, _LETTERS, _COUNTED, "update", STATE_IDS),
    "update, more rows than expected": Case(
        counts,
        (["a", "b"], ["a"], ["b"], [*_MANY, "a"], ["k0"]),
        ["a=1", "b=1", "a=2", "b=2", "a=3", "k0=2", *(f"{key}=1" for key in _MANY)],
        "update",
        STATE_IDS,
    ),
    "complete": Case(
        counts, _LETTERS, ["a=2", "b=1", "a=3", "b=1", "c=1", "a=3", "b=2", "c=1"], "complete"
    ),
    "append, windows": Case(windows, _TIMES, ["a=0=3", "b=0=1", "a=10=1", "c=30=1"]),
    "append, sessions": Case(sessions, _TIMES, ["a=1=3", "b=3=1", "a=15=1", "c=30=1"]),
    "append, two operators": Case(windows_of_windows, _TIMES, ["0=3", "20=1"]),
    "static join": Case(static_join, _LETTERS, ["a=Ann", "b=Bob", "a=Ann", "a=Ann", "b=Bob"]),
    "left outer join": Case(
        left_outer_join, _JOINED, ["a=1=3", "a=1=4", "b=2=none", "c=10=none", "z=40=40"]
    ),
    "dropDuplicates": Case(distinct_keys, _LETTERS, ["a", "b", "c"]),
    "dropDuplicatesWithinWatermark": Case(
        distinct_for_a_time, (["a,1", "a,2"], ["a,3", "b,20"], ["a,30"]), ["a=1", "b=20", "a=30"]
    ),
    "mapInPandas": Case(mapped_in_pandas, _LETTERS, ["aa", "bb", "aa", "aa", "cc", "bb"]),
    "applyInPandasWithState": Case(running_counts_in_pandas, _LETTERS, _COUNTED, "update"),
    "transformWithState": Case(transformed_by_row, _LETTERS, _COUNTED, "update", ROCKSDB),
    "transformWithStateInPandas": Case(
        transformed_in_pandas,
        (["a,1", "a,2"], ["b,15"], ["b,16"], ["a,40"]),
        ["a=2", "b=1", "b=2", "a had 2", "b had 2", "a=1", "a had 1"],
        "update",
        ROCKSDB,
    ),
}
