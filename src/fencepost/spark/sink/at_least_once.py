"""`guarantee="at-least-once"`: the same sink without a transaction, and so without a ledger.

Every task writes its own rows (`transport/own_rows.py`); a small batch is written by the driver.
What holds:

- When a call returns, all of its rows are in the log of every in-sync replica. If one is not, the
  call raises, the query stops, and Spark repeats the batch after a restart.
- Retried requests duplicate nothing: each attempt of a task is an idempotent producer. A repeated
  task (a failure, a lost executor, speculation), a repeated job, and a batch that is repeated after
  a restart write their rows again.
- Rows of one task keep their order within a partition.

Nobody else's rows can be fenced or lost this way, so a call may come twice for a batch, from any
thread of the query, and with any settings of the session. Readers see rows as they are written:
half a batch, and what a failed batch has written so far.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.options import suggest
from fencepost.spark.failures import NOTHING_WRITTEN, BatchTooLarge, RowRefused, SinkRefused
from fencepost.spark.session import is_connect
from fencepost.spark.sink.batch.parts import Part, read_parts, without_loops
from fencepost.spark.sink.batch.read_topics import NO_TOPICS, ReadTopics, read_in_batch
from fencepost.spark.sink.jobs.job_failures import failure_of_job, is_final
from fencepost.spark.sink.ledger.decision import Verdict
from fencepost.spark.sink.ledger.topic import LEDGER_TOPIC
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.one_sentence import while_reaching
from fencepost.spark.sink.receipts import Receipt, now_ms
from fencepost.spark.sink.settings import TIMEOUT, SinkSettings, strip_kafka
from fencepost.spark.transport.accounts import Account, sum_accounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.jobs.counts import Counts, JobCounter
    from fencepost.spark.sink.topic_creation import TopicCreation
    from fencepost.spark.transport.collected import RowCollector

log = logging.getLogger(__name__)

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

_NO_LEDGER: Final = "it is about the ledger, and this sink has none"
_NEEDLESS: Final[Mapping[str, str]] = {
    "transactional_id": "there is no transaction that would need one",
    "ledger_topic": _NO_LEDGER,
    "adopt": _NO_LEDGER,
    "take_over": _NO_LEDGER,
    "allow_empty_state": _NO_LEDGER,
    "may_skip": "every batch may be left out",
    "checkpoint": "it is for Spark Connect, where the sink writes exactly-once only",
    "preserve_partitioning": "every task writes its own rows anyway; the partition column chooses "
    "their partitions",
    "commit_source_offsets": "only a transaction can commit them with the rows; Spark's checkpoint "
    "has them",
}
"""Arguments that have no effect without a transaction, and why.

`exchange` is about rows that travel between tasks: here none do, and it may be anything.
"""

_OUTCOME: Final = (
    "Rows of the batch may be in the topics, and the batch is written again after a restart"
)


def is_at_least_once(guarantee: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Reads `guarantee`; ConfigError for arguments that it makes meaningless."""
    if guarantee == EXACTLY_ONCE:
        return False
    if guarantee != AT_LEAST_ONCE:
        hint = suggest(str(guarantee), [EXACTLY_ONCE, AT_LEAST_ONCE])
        raise ConfigError(
            f"guarantee is {guarantee!r}, and must be {EXACTLY_ONCE!r} or {AT_LEAST_ONCE!r}{hint}"
        )
    for name, reason in _NEEDLESS.items():
        if given[name]:
            raise ConfigError(f"{name} cannot be set with guarantee={AT_LEAST_ONCE!r}: {reason}")
    if TIMEOUT.name in strip_kafka(options):
        raise ConfigError(
            f"kafka.{TIMEOUT.name} cannot be set with guarantee={AT_LEAST_ONCE!r}: there is no "
            "transaction"
        )
    return True


@dataclass(slots=True)
class _Run:
    """What the driver keeps between two calls of one run of a query."""

    micro_batch: MicroBatch
    limits: TopicLimits
    jobs: JobCounter
    read: ReadTopics
    collectors: dict[str, RowCollector] = field(default_factory=dict)
    finished: int | None = None
    """The batch of the last call that returned."""


class UnfencedWriter:
    """Writes the batches of a sink without a transaction."""

    def __init__(
        self,
        settings: SinkSettings,
        topic: str | None,
        max_attempts: int,
        creation: TopicCreation,
        step: Callable[[str, int], None],
        *,
        may_write_to_sources: bool = False,
    ) -> None:
        self._may_write_to_sources = may_write_to_sources
        self._settings = settings
        self._topic = topic
        self._max_attempts = max_attempts
        self._creation = creation
        self._step = step
        self._run: _Run | None = None
        # The jobs of two threads would change each other's settings of the session.
        self._lock = threading.Lock()

    def write(self, session: SparkSession, batch_id: int, given: Any) -> Receipt | None:
        """Writes all rows of one call; None if there is nothing to write."""
        if given == {}:
            return None
        with self._lock:
            run, began_ms = self._run_of(session, batch_id), now_ms()
            run.micro_batch.check_batch()
            parts = read_parts(given, self._topic, LEDGER_TOPIC)
            parts = without_loops(parts, read_in_batch(run.read, run.micro_batch))
            with run.micro_batch.in_thread(session):
                receipt = self._write(run, parts, began_ms)
            run.finished = batch_id
            return receipt

    def _run_of(self, session: SparkSession, batch_id: int) -> _Run:
        from fencepost.spark.sink.batch.micro_batch import read_micro_batch
        from fencepost.spark.sink.checks import check_version, warn_about_checkpoint
        from fencepost.spark.sink.jobs.counts import JobCounter

        if is_connect(session):
            raise SinkRefused(
                f"guarantee={AT_LEAST_ONCE!r} needs a classic session, and this one is of Spark "
                "Connect: leave guarantee out, and pass transactional_id and checkpoint. Nothing "
                "was written"
            )
        run = self._run
        before = None if run is None else run.micro_batch
        micro_batch = read_micro_batch(session, batch_id, before)
        if run is None or run.micro_batch.run != micro_batch.run:
            check_version(session)
            warn_about_checkpoint(micro_batch)
            limits, jobs = TopicLimits(self._settings), JobCounter(session)
            run = _Run(micro_batch, limits, jobs, self._read_topics(micro_batch))
        run.micro_batch = micro_batch
        self._run = run
        return run

    def _read_topics(self, micro_batch: MicroBatch) -> ReadTopics:
        """The topics that rows must not go to."""
        from fencepost.spark.sink.batch.origins import use_sources

        if self._may_write_to_sources:
            return NO_TOPICS
        with while_reaching(self._settings.client):
            return use_sources(False, micro_batch, self._settings.client).read

    def _write(self, run: _Run, parts: tuple[Part, ...], began_ms: int) -> Receipt:
        from fencepost.spark.sink.jobs.counts import Counts

        micro_batch = run.micro_batch
        # A second call for the same batch runs its plan again.
        is_first = run.finished != micro_batch.batch_id
        counts = Counts(micro_batch, run.jobs, len(parts), is_first=is_first)
        self._step("writing", micro_batch.batch_id)
        accounts, failures = {}, 0
        for part in parts:
            accounts[part.name], failed = self._write_part(run, part, counts)
            failures += failed
        counts.finish()
        self._step("written", micro_batch.batch_id)
        return Receipt(
            micro_batch.batch_id,
            Verdict.WRITE,
            sum_accounts(accounts.values()),
            parts=accounts,
            attempts=1 + failures,
            began_ms=began_ms,
            ended_ms=now_ms(),
            query_id=micro_batch.query_id,
            run_id=micro_batch.run_id,
        )

    def _write_part(self, run: _Run, part: Part, counts: Counts) -> tuple[Account, int]:
        """Writes one DataFrame; returns the account, and how many attempts failed."""
        from fencepost.spark.transport.collected import RowCollector, collect_limit_after

        fresh = RowCollector(part.topic, with_times=self._settings.write_timestamps)
        collector = run.collectors.setdefault(part.name, fresh)
        failures = 0
        while True:
            try:
                account = self._attempt(run, part, collector, counts)
            except BatchTooLarge as problem:
                self._learn(run, problem)
            except RowRefused as problem:
                raise _with_outcome(problem) from None
            except FencepostError as problem:
                if failures + 1 >= self._max_attempts or is_final(problem):
                    raise
                log.warning(
                    "batch %d, attempt %d: %s", run.micro_batch.batch_id, failures + 1, problem
                )
            else:
                collector.limit = collect_limit_after(account)
                return account, failures
            failures += 1
            collector.limit = 0

    def _learn(self, run: _Run, problem: BatchTooLarge) -> None:
        try:
            run.limits.learn(problem)
        except RowRefused as refused:
            raise _with_outcome(refused) from None

    def _attempt(self, run: _Run, part: Part, collector: RowCollector, counts: Counts) -> Account:
        from fencepost.spark.sink.jobs.job import JobPlan, run_unfenced_job
        from fencepost.spark.transport.idempotent_ids import lend_identity

        settings = self._settings
        with ExitStack() as stack:
            # For the rows that the driver writes itself; tasks have their own.
            with while_reaching(settings.client, _OUTCOME):
                self._creation.ensure(settings.client, (part.topic,))
                identity = stack.enter_context(lend_identity(settings.client))
            plan = JobPlan(
                settings,
                identity,
                run.micro_batch.batch_id,
                part.topic,
                run.limits.batch_bytes(part.topic),
                part.reserved,
                collector,
                direct=False,
                before_run=counts.begin_run,
            )
            try:
                return run_unfenced_job(part.df, plan)
            except FencepostError:
                raise
            except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
                stopped = f"is unfinished. {_OUTCOME}"
                raise failure_of_job(problem, part.df, run.micro_batch, stopped) from None


def _with_outcome(problem: RowRefused) -> RowRefused:
    text = str(problem).removesuffix(f". {NOTHING_WRITTEN}")
    return RowRefused(f"{text}. {_OUTCOME}")
