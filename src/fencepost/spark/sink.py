"""One Kafka transaction per micro-batch, over all executors, topics and partitions.

    sink = TransactionalSink("localhost:9092", transactional_id="refunds", topic="refunds-emitted")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Theory of operation. The driver owns the transaction. For every attempt to write a batch it holds an identity (producer
id and epoch) that nobody has used before; executors only borrow it. The steps of a batch:

    look      an id that is somebody else's is refused before anything is taken from its owner (`checks.py`)
    fence     a fresh epoch: what a predecessor left open is ended, and its executors are locked out
    ledger    what is in the topics already decides: write, drain, take over, refuse (`ledger.py`)
    pack      rows into batches, on all cores (`packing.py`)
    deliver   batches to the brokers, one task per topic-partition (`delivering.py`)
    count     every partition once, every row once (`accounts.py`)
    entry     the ledger's new entry, and the sources' offsets where they are of this cluster, into the same transaction
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

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import (
    ProducerFenced,
    Refused,
    RetriesExhausted,
    UnknownOutcome,
)
from fencepost.client.groups import CommittedOffset
from fencepost.spark.connection import cluster_of, partition_count
from fencepost.spark.failures import RowRefused, SinkFailed, SinkRefused, sentence_of
from fencepost.spark.ledger import (
    LedgerEntry,
    Page,
    Verdict,
    decide,
    encode_entry,
    group_of,
    read_page,
)
from fencepost.spark.offsets import parse_sources
from fencepost.spark.settings import read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.accounts import Account
    from fencepost.spark.job import JobPlan
    from fencepost.spark.moment import Moment

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

    run: tuple[str, str]
    identity: ProducerIdentity
    page: Page
    longest_ms: int = 0
    commits_sources: bool = False
    """Whether the sources' offsets go into the transaction."""
    few_rows: int = 0
    """How many rows of the next batch the driver would write itself: the last one was small."""
    direct: bool = True
    """Whether batches may go from task to task; after a failure they go through the shuffle, which needs less."""
    last_batch: int | None = None
    """The batch that this run has finished itself."""
    is_fresh: bool = True
    """Whether nobody has written with this identity yet."""
    is_doubtful: bool = False
    """Whether we do not know if our last transaction is over: only a new start can tell."""


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
        commit_source_offsets: bool | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        if not transactional_id:
            raise ConfigError("transactional_id must be a name that only this query uses")
        self.transactional_id = transactional_id
        self.topic = topic
        self.group = group_of(transactional_id)
        self.settings = read_settings(bootstrap_servers, options or {})
        self.last_receipt: Receipt | None = None
        self._ledger_topic = ledger_topic or topic
        self._adopt = adopt
        self._commit_source_offsets = commit_source_offsets
        self._max_attempts = max(1, max_attempts)
        self._on_step = on_step
        self._standing: Standing | None = None

    def __repr__(self) -> str:
        return f"<TransactionalSink {self.transactional_id!r}>"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every batch."""
        from fencepost.spark.moment import read_moment

        moment = read_moment(df, batch_id)
        standing = self._stand(df, moment)
        # Until the batch is over we know nothing for certain: whatever is raised, the next call begins anew.
        self._standing = None
        verdict = self._decide(standing, moment)
        if verdict is Verdict.DRAIN:
            self._drain(df, moment)
        else:
            self._write(df, moment, standing, verdict)
        standing.last_batch = batch_id
        self._standing = standing

    # Before the batch.

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self.settings.client)

    def _step(self, step: str, moment: Moment) -> None:
        log.debug("%s, batch %d: %s", self.transactional_id, moment.batch_id, step)
        if self._on_step is not None:
            self._on_step(step, moment.batch_id)

    def _stand(self, df: DataFrame, moment: Moment) -> Standing:
        """What we know from the last batch; or a fresh start: look, fence, then read what is there."""
        from fencepost.spark.checks import check_ledger, check_start, check_timeout
        from fencepost.spark.origins import wants_sources

        standing = self._standing
        if standing is not None and standing.run == moment.run:
            return standing
        check_start(df.sparkSession, self.transactional_id, self.settings, moment)
        try:
            if not self._adopt:
                check_ledger(self._cluster, self.transactional_id, moment.as_batch())
            commits_sources = wants_sources(
                self._commit_source_offsets, moment, self.settings.client
            )
            self._step("fencing", moment)
            identity = self._fence()
            self._step("fenced", moment)
            page = self._read_page(moment)
        except RetriesExhausted as problem:
            servers = ",".join(map(str, self.settings.client.bootstrap))
            raise SinkFailed(
                f"the cluster at {servers} does not answer: {problem}. Start its brokers, or correct the first argument "
                "of the sink. Nothing of the batch was written"
            ) from problem
        self._step("ledger read", moment)
        longest_ms = page.entry.longest_ms if page.entry else 0
        check_timeout(self.transactional_id, self.settings, longest_ms)
        return Standing(moment.run, identity, page, longest_ms, commits_sources)

    def _fence(self) -> ProducerIdentity:
        timeout_ms = self.settings.transaction_timeout_ms
        try:
            return self._cluster.init_producer_id(self.transactional_id, timeout_ms)
        except Refused as problem:
            if problem.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise SinkRefused(
                f"the brokers do not allow a transaction timeout of {timeout_ms} ms: lower "
                "kafka.transaction.timeout.ms of the sink, or raise transaction.max.timeout.ms of the brokers"
            ) from problem

    def _read_page(self, moment: Moment) -> Page:
        return read_page(self._cluster.offset_fetch(self.group), moment.query_id)

    def _decide(self, standing: Standing, moment: Moment) -> Verdict:
        from fencepost.spark.checks import refusal_of

        if standing.last_batch == moment.batch_id - 1:
            return Verdict.WRITE
        decision = decide(standing.page, moment.as_batch(), adopt=self._adopt)
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
        for attempt in range(1, self._max_attempts + 1):
            if standing.is_doubtful and self._settle(moment, standing):
                self._drain(df, moment)
                return
            self._freshen(standing, moment)
            try:
                receipt, entry_page = self._attempt(df, moment, standing, verdict)
            except FencepostError as problem:
                self._abandon(standing)
                standing.few_rows, standing.direct = 0, False
                if attempt == self._max_attempts or _is_final(problem):
                    raise
                log.warning("batch %d, attempt %d: %s", moment.batch_id, attempt, problem)
                continue
            if entry_page is None or self._end(moment, standing, entry_page):
                standing.longest_ms = max(standing.longest_ms, receipt.open_ms)
                self.last_receipt = receipt
                self._step("ended", moment)
                return
        raise SinkFailed(
            f"batch {moment.batch_id}: the answer to EndTxn was lost {self._max_attempts} times, and each time the "
            "transaction had been aborted: look at the brokers' logs and the network"
        )

    def _freshen(self, standing: Standing, moment: Moment) -> None:
        """Transaction version 1 keeps its epoch: ask for the next one, which is refused if somebody else has."""
        if standing.is_fresh:
            return
        old = standing.identity
        try:
            standing.identity = self._cluster.init_producer_id(
                self.transactional_id,
                self.settings.transaction_timeout_ms,
                old.producer_id,
                old.producer_epoch,
            )
        except ProducerFenced as problem:
            raise self._fenced() from problem
        standing.is_fresh = True
        self._step("fenced", moment)

    def _attempt(
        self, df: DataFrame, moment: Moment, standing: Standing, verdict: Verdict
    ) -> tuple[Receipt, Page | None]:
        """Everything but the end: rows and entry are in the transaction when this returns."""
        from fencepost.spark.few import few_after
        from fencepost.spark.job import JobPlan

        topic, settings = self.topic, self.settings
        counts = {} if topic is None else {topic: partition_count(settings.client, topic)}
        plan = JobPlan(
            settings,
            standing.identity,
            moment.batch_id,
            topic,
            counts,
            standing.few_rows,
            standing.direct,
        )
        self._step("writing", moment)
        standing.is_fresh = False
        account = self._run_job(df, moment, plan)
        standing.few_rows = few_after(account)
        self._step("written", moment)
        opened_ms = account.opened_ms or time.time_ns() // 1_000_000
        open_ms = max(0, time.time_ns() // 1_000_000 - opened_ms)
        page = self._enter(moment, standing, account, max(standing.longest_ms, open_ms))
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

    def _enter(
        self, moment: Moment, standing: Standing, account: Account, longest_ms: int
    ) -> Page | None:
        """Writes the ledger's entry, and the sources' offsets if wanted, into the transaction."""
        place = standing.page.place or self._ledger_place(account)
        if place is None:
            # Nothing was written, and no topic is known to hold a ledger: there is nothing to commit.
            standing.is_fresh = True
            return None
        batch = moment.as_batch()
        entry = LedgerEntry(batch.query_id, batch.batch_id, batch.fingerprint, longest_ms)
        sources = parse_sources(moment.end_offsets) if standing.commits_sources else None
        if sources and place in sources:
            if self._commit_source_offsets:
                raise SinkRefused(
                    f"{place} is both read by the query and the place of its ledger: pass ledger_topic="
                )
            sources = None
        offsets = {tp: CommittedOffset(offset) for tp, offset in (sources or {}).items()}
        offsets[place] = encode_entry(entry)
        self._cluster.txn_offset_commit(standing.identity, self.group, offsets)
        return Page(place, entry, sources or standing.page.sources)

    def _ledger_place(self, account: Account) -> TopicPartition | None:
        if self._ledger_topic is not None:
            return TopicPartition(self._ledger_topic, 0)
        return TopicPartition(min(account.partitions).topic, 0) if account.partitions else None

    # The end of the batch.

    def _end(self, moment: Moment, standing: Standing, page: Page) -> bool:
        """Commits; False when the transaction turned out to be aborted, and a fresh identity is there to try again."""
        self._step("ending", moment)
        try:
            identity = self._cluster.end_txn(standing.identity, commit=True)
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", moment.batch_id, problem)
            return self._settle(moment, standing)
        except ProducerFenced as problem:
            raise self._fenced() from problem
        standing.is_fresh = identity != standing.identity
        standing.identity = identity
        standing.page = page
        return True

    def _settle(self, moment: Moment, standing: Standing) -> bool:
        """Whether the transaction was committed: the cluster knows. A fresh epoch makes its answer final."""
        self._step("settling", moment)
        if self._is_taken(standing.identity):
            raise self._fenced("Whether this batch is visible, the ledger will tell")
        standing.identity = self._fence()
        standing.is_fresh, standing.is_doubtful = True, False
        standing.page = self._read_page(moment)
        standing.last_batch = None
        return self._decide(standing, moment) is Verdict.DRAIN

    def _is_taken(self, mine: ProducerIdentity) -> bool:
        """Whether somebody else has the id now: the end of our own transaction raises the epoch by one at most."""
        view = self._cluster.describe_transactions([self.transactional_id])[self.transactional_id]
        return view is not None and (
            view.producer_id != mine.producer_id or view.producer_epoch > mine.producer_epoch + 1
        )

    def _abandon(self, standing: Standing) -> None:
        """Aborts a failed attempt, so that its records never count and its executors are locked out."""
        try:
            standing.identity = self._abort(standing.identity)
            standing.is_fresh = True
        except ProducerFenced as problem:
            raise self._fenced() from problem
        except FencepostError as problem:
            log.warning("%r: the abort failed: %s", self, problem)
            standing.is_doubtful = True

    def _abort(self, mine: ProducerIdentity) -> ProducerIdentity:
        """The identity for the next attempt."""
        try:
            following = self._cluster.end_txn(mine, commit=False)
        except Refused as problem:
            if problem.code != ErrorCode.INVALID_TXN_STATE:
                raise
            following = mine  # Nothing was open: the batch failed before its first write.
        # Version 1 keeps the epoch, and an executor that still runs could begin another transaction with it. Nobody has
        # taken the id from us, or the abort would have been refused: the fence meets only our own.
        return self._fence() if following == mine else following

    def _fenced(self, outcome: str = "Nothing of this batch is visible") -> SinkRefused:
        return SinkRefused(
            f"the transactional_id {self.transactional_id!r} was taken over by another query, or the transaction was "
            f"open for longer than kafka.transaction.timeout.ms ({self.settings.transaction_timeout_ms}) and was "
            f"aborted. {outcome}. Give every query its own transactional_id; raise the timeout "
            "if batches take longer; then start the query again, and it goes on from its checkpoint"
        )


def _is_final(problem: Exception) -> bool:
    """Whether trying again cannot help."""
    return isinstance(problem, (SinkRefused, RowRefused, ConfigError, ProducerFenced))
