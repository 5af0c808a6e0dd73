"""One Kafka transaction per micro-batch, over all executors, topics and partitions.

    sink = TransactionalSink("localhost:9092", transactional_id="refunds", topic="refunds-emitted")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Theory of operation. The driver owns the transaction. For every attempt to write a batch it holds an identity (producer
id and epoch) that nobody has used before; executors only borrow it. The steps of a batch:

    look      an id that is somebody else's is refused before anything is taken from its owner (`checks.py`)
    fence     a fresh epoch: what a predecessor left open is ended, and its executors are locked out (`producer.py`)
    ledger    what is in the topics already decides: write, drain, take over, refuse (`ledger.py`)
    pack      rows into batches, on all cores (`packing.py`)
    deliver   batches to the brokers, one task per topic-partition (`delivering.py`)
    count     every partition once, every row once (`accounts.py`)
    entry     the ledger's new entry, and the sources' offsets where they are of this cluster, into the same transaction
              (`keeper.py`)
    end       EndTxn: the one moment at which all of it becomes visible

After a good end the next batch goes straight to packing: with transaction version 2 the answer to EndTxn brings the
next epoch, with version 1 the driver asks for it, in a way that is refused if somebody else has taken over.

A job that fails is aborted, fenced and tried again. An EndTxn whose answer is lost is settled by asking: a fresh epoch
ends the transaction one way or the other, and then the ledger tells which way. Whoever is fenced stops and says so; it
does not fence back, and looks before it settles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.failures import ProducerFenced, RetriesExhausted, UnknownOutcome
from fencepost.spark.failures import RowRefused, SinkFailed, SinkRefused, sentence_of
from fencepost.spark.keeper import LedgerKeeper
from fencepost.spark.ledger import Page, Permits, Verdict
from fencepost.spark.producer import DriverProducer
from fencepost.spark.settings import read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.accounts import Account
    from fencepost.spark.few import FewRows
    from fencepost.spark.job import JobPlan
    from fencepost.spark.moment import Moment
    from fencepost.spark.origins import SourceUse

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often the job of one batch is tried before the query fails."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the last batch."""

    batch_id: int
    verdict: Verdict
    account: Account | None = None
    open_ms: int = 0


@dataclass(slots=True)
class Standing:
    """What the driver knows between two batches of one run of a query."""

    moment: Moment
    """The batch that this run is in, or was in last."""
    producer: DriverProducer
    page: Page
    few: FewRows
    sources: SourceUse
    is_stateful: bool | None = None
    direct: bool = True
    """Whether batches may go from task to task; after a failure they go through the shuffle, which needs less."""
    last_batch: int | None = None
    """The batch that this run has finished itself."""


class TransactionalSink:
    """A function for `foreachBatch` that writes every batch exactly once.

    `commit_source_offsets`: None commits the offsets of the sources in the same transaction where all of them are topics
    of the sink's cluster; True refuses to start where they are not; False never does.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str,
        topic: str | None = None,
        ledger_topic: str | None = None,
        options: Mapping[str, Any] | None = None,
        adopt: bool = False,
        take_over: str | None = None,
        allow_empty_state: bool = False,
        commit_source_offsets: bool | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        if not transactional_id:
            raise ConfigError("transactional_id must be a name that only this query uses")
        self.transactional_id = transactional_id
        self.topic = topic
        self.settings = read_settings(bootstrap_servers, options or {})
        self.last_receipt: Receipt | None = None
        self._ledger = LedgerKeeper(self.settings.client, transactional_id, ledger_topic)
        if topic == self._ledger.topic:
            raise ConfigError(
                f"topic {topic!r} holds the ledger, and rows cannot go there: correct topic= or ledger_topic="
            )
        self._permits = Permits(adopt, take_over, allow_empty_state)
        self._commit_source_offsets = commit_source_offsets
        self._max_attempts = max(1, max_attempts)
        self._on_step = on_step
        self._standing: Standing | None = None

    def __repr__(self) -> str:
        return f"<TransactionalSink {self.transactional_id!r}>"

    @property
    def group(self) -> str:
        """The group in which the sources' offsets are committed."""
        return self._ledger.group

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every batch."""
        from fencepost.spark.moment import read_moment

        standing = self._standing
        moment = read_moment(df, batch_id, None if standing is None else standing.moment)
        # Until the batch is over we know nothing for certain: whatever is raised, the next call begins anew.
        self._standing = None
        if standing is None or standing.moment.run != moment.run:
            standing = self._stand(df, moment)
        standing.moment = moment
        verdict = self._decide(standing, moment)
        if verdict is Verdict.DRAIN:
            self._drain(df, moment)
        else:
            self._write(df, moment, standing, verdict)
        standing.last_batch = batch_id
        self._standing = standing

    # Before the batch.

    def _step(self, step: str, moment: Moment) -> None:
        log.debug("%s, batch %d: %s", self.transactional_id, moment.batch_id, step)
        if self._on_step is not None:
            self._on_step(step, moment.batch_id)

    def _stand(self, df: DataFrame, moment: Moment) -> Standing:
        """A fresh start: look, fence, then read what is there."""
        from fencepost.spark.checks import check_ledger, check_start, check_timeout
        from fencepost.spark.few import FewRows
        from fencepost.spark.origins import use_sources

        client = self.settings.client
        check_start(df.sparkSession, self.transactional_id, self.settings, moment)
        try:
            self._ledger.prepare()
            sources = use_sources(self._commit_source_offsets, moment, client)
            batch = moment.as_batch()
            check_ledger(self._ledger, self.transactional_id, batch, sources, self._permits)
            self._step("fencing", moment)
            producer = DriverProducer(self.transactional_id, self.settings)
            self._step("fenced", moment)
            page = self._ledger.read(moment.query_id)
        except RetriesExhausted as problem:
            servers = ",".join(map(str, client.bootstrap))
            raise SinkFailed(
                f"the cluster at {servers} does not answer: {problem}. Start its brokers, or correct the first argument "
                "of the sink. Nothing of the batch was written"
            ) from problem
        self._step("ledger read", moment)
        check_timeout(self.transactional_id, self.settings, page.entry)
        few = FewRows(self.topic)
        return Standing(moment, producer, page, few, sources, moment.is_stateful)

    def _decide(self, standing: Standing, moment: Moment) -> Verdict:
        from fencepost.spark.checks import refusal_of

        if standing.last_batch == moment.batch_id - 1:
            return Verdict.WRITE
        decision = self._ledger.judge(
            standing.page, moment.as_batch(), standing.sources, self._permits
        )
        log.info("batch %d: %s (%s)", moment.batch_id, decision.verdict.value, decision.reason)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(self.transactional_id, decision)
        return decision.verdict

    def _drain(self, df: DataFrame, moment: Moment) -> None:
        """Runs the plan and drops the rows: a stateful query must write its state, or it is broken for good."""
        self._step("draining", moment)
        df.write.format("noop").mode("overwrite").save()
        self.last_receipt = Receipt(moment.batch_id, Verdict.DRAIN)

    # The batch.

    def _write(self, df: DataFrame, moment: Moment, standing: Standing, verdict: Verdict) -> None:
        producer = standing.producer
        for attempt in range(1, self._max_attempts + 1):
            if producer.is_doubtful and self._settle(moment, standing):
                self._drain(df, moment)
                return
            if producer.freshen():
                self._step("fenced", moment)
            try:
                receipt, page = self._attempt(df, moment, standing, verdict)
            except FencepostError as problem:
                producer.abandon()
                standing.few.most, standing.direct = 0, False
                if attempt == self._max_attempts or _is_final(problem):
                    raise
                log.warning("batch %d, attempt %d: %s", moment.batch_id, attempt, problem)
                continue
            if self._end(moment, standing, page):
                self.last_receipt = receipt
                self._step("ended", moment)
                return
        raise SinkFailed(
            f"batch {moment.batch_id}: the answer to EndTxn was lost {self._max_attempts} times, and each time the "
            "transaction had been aborted: look at the brokers' logs and the network"
        )

    def _attempt(
        self, df: DataFrame, moment: Moment, standing: Standing, verdict: Verdict
    ) -> tuple[Receipt, Page]:
        """Everything but the end: rows and entry are in the transaction when this returns."""
        from fencepost.spark.few import few_after
        from fencepost.spark.job import JobPlan

        self._step("writing", moment)
        identity = standing.producer.lend()
        plan = JobPlan(
            self.settings,
            identity,
            moment.batch_id,
            self.topic,
            standing.few,
            standing.direct,
            meanwhile=lambda: moment.end_offsets,
        )
        account = self._run_job(df, moment, plan)
        standing.few.most = few_after(account)
        self._step("written", moment)
        opened_ms = account.opened_ms or time.time_ns() // 1_000_000
        open_ms = max(0, time.time_ns() // 1_000_000 - opened_ms)
        page = self._ledger.enter(
            identity,
            moment,
            account,
            standing.page,
            open_ms=open_ms,
            sources=standing.sources,
            is_stateful=standing.is_stateful,
        )
        self._step("entered", moment)
        return Receipt(moment.batch_id, verdict, account, open_ms), page

    def _run_job(self, df: DataFrame, moment: Moment, plan: JobPlan) -> Account:
        from fencepost.spark.job import run_job

        try:
            return run_job(df, plan)
        except FencepostError:
            raise
        except Exception as problem:
            # Whatever Spark, py4j or the user's own functions raise: the transaction must not stay open.
            log.info("the job of batch %d failed", moment.batch_id, exc_info=True)
            if moment.is_stopping():
                raise SinkRefused(f"the query was stopped in batch {moment.batch_id}") from None
            if "fencepost.spark.failures.RowRefused" in str(problem):
                raise RowRefused(sentence_of(problem)) from None
            raise SinkFailed(f"batch {moment.batch_id}: {sentence_of(problem)}") from None

    # The end of the batch.

    def _end(self, moment: Moment, standing: Standing, page: Page) -> bool:
        """Commits; False when the transaction turned out to be aborted, and a fresh identity is there to try again."""
        self._step("ending", moment)
        try:
            standing.producer.commit()
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", moment.batch_id, problem)
            return self._settle(moment, standing)
        standing.page = page
        return True

    def _settle(self, moment: Moment, standing: Standing) -> bool:
        """Whether the transaction was committed: the cluster knows. A fresh epoch makes its answer final."""
        self._step("settling", moment)
        if standing.producer.is_taken():
            raise standing.producer.fenced("Whether this batch is visible, the ledger will tell")
        standing.producer.fence()
        standing.page = self._ledger.read(moment.query_id)
        standing.last_batch = None
        return self._decide(standing, moment) is Verdict.DRAIN


def _is_final(problem: Exception) -> bool:
    """Whether trying again cannot help."""
    return isinstance(problem, (SinkRefused, RowRefused, ConfigError, ProducerFenced))
