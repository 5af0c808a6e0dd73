"""Keeps Spark's counts (`numInputRows`, `observe`) right when the sink runs a plan several times.

Spark adds to its counts at every run of the batch's plan, including failed and repeated runs. So
the sink resets them before each run that reads the source again. A run that does not read it must
leave them alone: the rows were counted when the user's function persisted, checkpointed or
collected them, and would not be counted again.

In an ordinary batch nothing was counted before, and no further check is needed: no job of the
application has started since the last batch (`JobCounter`), or the counts are zero. Otherwise the
plan decides: the engine passes the batch to the user's function as an RDD, and a plan reads the
source if that RDD is among its leaves, or in the lineage of one.

A plan with a shuffle (a stateful query, for example) reads its source in the first run only; later
runs reuse the shuffle files. The counts of sources that such a run has not read are restored
afterwards.

In a batch of several parts each part is a run. The last run that reads the source counts; if it
read less than an earlier one (a part with a limit), the earlier counts are restored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.spark.sink.batch.micro_batch import MicroBatch

log = logging.getLogger(__name__)


class JobCounter:
    """Whether any job of the application has started since the last batch of a run.

    Only a job can count rows of a batch. Reading the counts takes seven JVM calls, this takes one.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._known: int | None = None
        """The number of jobs at the end of the last batch."""

    def is_unchanged(self) -> bool:
        """False if a job has started, or if it is not known."""
        return self._known is not None and self._known == self._started()

    def remember(self) -> None:
        """Call after the last job of a batch, before Spark begins the next batch."""
        self._known = self._started()

    @cached_property
    def _scheduler(self) -> Any:
        context: Any = self._session.sparkContext._jsc.sc()  # noqa: SLF001
        return context.dagScheduler()

    def _started(self) -> int | None:
        try:
            return int(self._scheduler.numTotalJobs())
        except (Py4JError, AttributeError, TypeError) as problem:
            log.debug("the number of jobs is not known: %s", problem)
            return None


class Counts:
    """The counts of one attempt to write one batch."""

    def __init__(
        self, micro_batch: MicroBatch, jobs: JobCounter, parts: int = 1, *, is_first: bool = False
    ) -> None:
        self._micro_batch = micro_batch
        self._jobs = jobs
        self._parts = parts
        self._is_first = is_first
        """Whether the sink has not run the plan of this batch yet."""
        self._most: tuple[int, ...] = ()
        self._forgotten: tuple[int, ...] = ()
        """The counts before the last reset."""

    def begin_run(self, df: DataFrame) -> None:
        """Call before anything runs the plan of this DataFrame."""
        is_first, self._is_first = self._is_first, False
        if is_first and self._jobs.is_unchanged():
            return
        now = self._micro_batch.input_rows()
        self._remember(now)
        is_untouched = is_first and bool(now) and not any(now)
        if not is_untouched and reads_batch(df, self._micro_batch.rdd_id()):
            self._forgotten = _filled(now, self._forgotten)
            self._micro_batch.reset_counts()

    def finish(self) -> None:
        """Call after all parts have run."""
        self._jobs.remember()
        if self._parts == 1 and not any(self._forgotten):
            return
        now = self._micro_batch.input_rows()
        self._remember(now)
        right = self._most if self._parts > 1 else _filled(now, self._forgotten)
        if right != now:
            self._micro_batch.correct_input_rows(right)

    def _remember(self, now: tuple[int, ...]) -> None:
        if sum(now) >= sum(self._most):
            self._most = now


def _filled(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """These counts, with those of `before` for sources that were not read since."""
    return tuple(n or b for n, b in zip_longest(now, before, fillvalue=0))


def reads_batch(df: DataFrame, rdd_id: int | None) -> bool:
    """Whether a run of this plan reads the batch from its source, not from a cache or checkpoint.

    `rdd_id` is the RDD of the batch. If it is unknown, every plan without a cache counts as read.
    """
    try:
        # A new plan: that of `df` may be older than a `persist`.
        plan = df.selectExpr("*")._jdf.queryExecution().withCachedData()  # noqa: SLF001
        if rdd_id is None:
            return "InMemoryRelation" not in str(plan.toString())
        return any(_is_made_from(leaf.rdd(), rdd_id) for leaf in _rdd_leaves(plan))
    except (Py4JError, AttributeError, TypeError) as problem:
        log.debug("cannot tell whether a run reads the batch: %s", problem)
        return True


def _rdd_leaves(plan: Any) -> Iterator[Any]:
    """The leaves that are RDDs. A cache is a leaf too, and hides its lineage."""
    leaves = plan.collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if str(leaf.nodeName()) == "LogicalRDD":
            yield leaf


def _is_made_from(rdd: Any, rdd_id: int) -> bool:
    if int(rdd.id()) == rdd_id:
        return True
    # A checkpoint cuts the lineage. A persisted RDD shows all of it, but is read from its cache
    # once that is filled.
    lineage = str(rdd.toDebugString())
    return f"[{rdd_id}]" in lineage and "CachedPartitions" not in lineage


def is_observed(df: DataFrame) -> bool:
    """Whether the user's plan has an `observe`: its numbers come from the first run."""
    return "CollectMetrics" in str(df._jdf.logicalPlan().toString())  # noqa: SLF001
