"""Brings the rows of a DataFrame to the only writer of their partition, on one of three routes.

    collected  the driver collects a small batch and writes it itself (`collected.py`)
    direct     from task to task over sockets, in one barrier stage (`direct.py`): where all tasks
               can run at once, and on one host unless the user allows plain connections
    shuffled   through Spark's shuffle (`shuffled.py`): for any plan, after a failed attempt, and
               where Spark refuses barrier stages

All three have the same guarantee. The route is chosen before the first job of a batch: from the
source offsets where they are known, else from the size of the last batch. So a plan runs once, with
two exceptions: a batch of unknown size that is ten times as large as the last one, and a plan that
Spark does not accept as a barrier stage (a union, for example), which it says before any task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.sentences import failure_of_job
from fencepost.spark.ways.accounts import Account, Report, reconcile_reports
from fencepost.spark.ways.collected import MAX_COLLECTED_ROWS, RowCollector
from fencepost.spark.ways.limits import TopicLimits
from fencepost.spark.ways.packing.by_record import PackingPlan
from fencepost.spark.ways.packing.rows import select_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.engine.micro_batch import MicroBatch
    from fencepost.spark.failures import BatchTooLarge
    from fencepost.spark.settings import SinkSettings

MAX_DIRECT_FAILURES: Final = 3
"""After this many batches in a row whose direct exchange failed, a run uses the shuffle only: its
executors cannot reach each other, and finding that out takes half a minute each time."""

BY_COLUMN: Final = "*"
"""The name of a part whose rows name their topic. No topic can have this name."""


class Part(NamedTuple):
    """One DataFrame of a batch."""

    topic: str | None
    """None: the column `topic` names it."""
    df: DataFrame
    reserved: Mapping[str, str] = {}
    """Topics that rows must not name, and why."""

    @property
    def name(self) -> str:
        """The topic, or `*` if the rows name theirs."""
        return self.topic or BY_COLUMN


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One attempt to write one DataFrame."""

    part: Part
    micro_batch: MicroBatch
    packing: PackingPlan
    """For one writing task; a route with more sets their number."""
    identity: ProducerIdentity
    settings: SinkSettings
    by_permit: bool = False
    """Whether to do without barrier stages: tasks ask for permits, and rows are shuffled."""


class RowWriter:
    """Writes the DataFrames of one run of a query."""

    def __init__(self, settings: SinkSettings, *, by_permit: bool) -> None:
        self._settings = settings
        self._codec = settings.codec
        self._by_permit = by_permit
        self._limits = TopicLimits(settings)
        self._batch_bytes: dict[str, int] = {}
        self._collectors: dict[str, RowCollector] = {}
        self._direct_failures = 0
        """Batches in a row whose first attempt failed."""

    def write(
        self, part: Part, identity: ProducerIdentity, batch: MicroBatch, *, is_first: bool
    ) -> Account:
        """Writes all rows."""
        topic, name, settings = part.topic, part.name, self._settings
        if name not in self._batch_bytes:
            self._batch_bytes[name] = self._limits.batch_bytes(topic)
        counts = {} if topic is None else {topic: partition_count(settings.client, topic)}
        packing = PackingPlan(
            batch_id=batch.batch_id,
            slots=1,
            topic=topic,
            partition_counts=counts,
            codec=self._codec,
            batch_bytes=self._batch_bytes[name],
            max_record_bytes=settings.client.max_request_bytes,
            options=settings.client,
            reserved=part.reserved,
        )
        job = WriteJob(part, batch, packing, identity, settings, self._by_permit)
        if name not in self._collectors:
            self._collectors[name] = RowCollector(topic, with_times=settings.write_timestamps)
        collector = self._collectors[name]
        # The quicker routes need the engine, and are not tried again.
        is_quick = is_first and batch.has_engine
        if not is_quick or (batch.expected_rows or 0) > MAX_COLLECTED_ROWS:
            collector.limit = 0
        if collector.limit and (account := collector.write(job)) is not None:
            return account
        account = reconcile_reports(self._run(job, is_quick=is_quick))
        collector.remember(account)
        return account

    def remember_attempt(self, *, is_first: bool) -> None:
        """Counts batches in a row whose first attempt failed."""
        if not is_first:
            self._direct_failures += 1
        elif self._direct_failures < MAX_DIRECT_FAILURES:
            self._direct_failures = 0

    def learn(self, problem: BatchTooLarge) -> None:
        """Makes batches smaller; RowRefused if the batch had one record."""
        self._limits.learn(problem)
        self._batch_bytes.clear()

    def _run(self, job: WriteJob, *, is_quick: bool) -> list[Report]:
        """Has executors write the rows; returns their reports."""
        from fencepost.spark.engine.hosts import check_secrets
        from fencepost.spark.ways.direct import run_direct
        from fencepost.spark.ways.shuffled import run_shuffled

        df, topic, settings = job.part.df, job.part.topic, job.settings
        check_secrets(df.sparkSession, settings)
        rows = select_rows(df, topic, with_times=settings.write_timestamps)
        reports = None
        if is_quick and not job.by_permit and self._direct_failures < MAX_DIRECT_FAILURES:
            reports = run_direct(rows, job)
        if reports is None:
            reports = run_shuffled(rows, job)
        # Spark plans the stage of a DataFrame without partitions away. No report is not a zero.
        if not reports and not rows.isEmpty():
            raise CountsDisagree("no task of the write stage has reported, although there are rows")
        return reports


@dataclass(slots=True)
class BatchRows:
    """The DataFrames of one call of the sink."""

    parts: tuple[Part, ...]
    micro_batch: MicroBatch
    writer: RowWriter
    before_end: Callable[[], None]
    """Raises if the batch must not be committed."""
    is_first: bool = True
    """Whether this is the first attempt."""

    def write(self, identity: ProducerIdentity, *, is_first: bool) -> dict[str, Account]:
        """Writes all DataFrames; what was acknowledged of each, by its name."""
        self.is_first = is_first
        written = {}
        for part in self.parts:
            try:
                written[part.name] = self.writer.write(
                    part, identity, self.micro_batch, is_first=is_first
                )
            except FencepostError:
                raise
            except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
                raise failure_of_job(problem, part.df, self.micro_batch) from None
        return written

    def check(self) -> None:
        """Called before the end of the transaction."""
        self.before_end()
        self.writer.remember_attempt(is_first=self.is_first)

    def drain(self) -> None:
        """Runs the plans and drops the rows: a stateful query must store its state."""
        for part in self.parts:
            part.df.write.format("noop").mode("overwrite").save()

    def learn(self, problem: BatchTooLarge) -> None:
        """Makes batches smaller; RowRefused if that is not possible."""
        self.writer.learn(problem)
