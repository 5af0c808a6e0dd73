"""Spark's counts of a batch (`numInputRows`, `observe`) stay right although the sink may run its plan several times.

Spark adds to its counts at every run of the batch's plan, also when a run is given up or repeated. So they are set to
zero before each run of the sink. That would be wrong where the rows come from a cache: they are read from the source
once, by whoever comes first, and must stay counted.

In a batch of several parts each part is a run. The last run that reads the source counts; where it read less than an
earlier one (a part with a limit), the earlier numbers are put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.moment import Moment


class Counts:
    """The counts of one attempt to write one batch."""

    def __init__(self, moment: Moment, parts: int = 1) -> None:
        self._moment = moment
        self._parts = parts
        self._most: tuple[int, ...] = ()

    def begin_run(self, df: DataFrame) -> None:
        """To be called before anything runs the plan of this DataFrame."""
        if self._parts > 1:
            self._remember()
            if not _reads_batch(df):
                return
        if not reads_cache(df):
            self._moment.forget_counts()

    def finish(self) -> None:
        """To be called when all parts have run."""
        if self._parts > 1:
            self._remember()
            if self._most != self._moment.input_rows():
                self._moment.correct_input_rows(self._most)

    def _remember(self) -> None:
        now = self._moment.input_rows()
        if sum(now) >= sum(self._most):
            self._most = now


def reads_cache(df: DataFrame) -> bool:
    """Whether some of the plan was persisted."""
    state = df.sparkSession._jsparkSession.sharedState()  # noqa: SLF001
    if state.cacheManager().isEmpty():
        return False
    plan = df._jdf.queryExecution().withCachedData().toString()  # noqa: SLF001
    return "InMemoryRelation" in plan


def _reads_batch(df: DataFrame) -> bool:
    """Whether the DataFrame was made from the batch's own, as far as its plan shows."""
    return "LogicalRDD" in _analyzed(df)


def is_observed(df: DataFrame) -> bool:
    """Whether the user's own plan has an `observe`, which takes its numbers from the first run, whole or not."""
    return "CollectMetrics" in _analyzed(df)


def _analyzed(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().analyzed().toString())  # noqa: SLF001
