"""One Kafka transaction per micro-batch, over all executors, topics and partitions.

    sink = TransactionalSink("localhost:9092", transactional_id="refunds", topic="refunds-emitted")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Theory of operation. The driver owns the transaction. For every attempt to write a batch it holds an
identity (producer id and epoch) that nobody has used before; executors only borrow it. The steps of
a batch:

    book      one call per batch: a second one, or one after a failure that was swallowed, is refused (`calls.py`)
    look      an id that is somebody else's is refused before anything is taken from its owner (`checks.py`)
    fence     a fresh epoch: what a predecessor left open is ended, and its executors are locked out (`producer.py`)
    ledger    what is in the topics already decides: write, drain, take over, refuse (`ledger.py`)
    pack      rows into batches, on all cores (`transport/packing.py`)
    deliver   batches to the brokers, one task per topic-partition (`transport/delivery.py`)
    count     every partition once, every row once (`transport/accounts.py`)
    entry     the sources' offsets where they are of this cluster, and the ledger's new entry, into the same transaction; a
              driver that writes the rows itself sends the entry with them (`sink/ledger/entering.py`)
    end       EndTxn: the one moment at which all of it becomes visible

Several DataFrames (`sink.write`) are packed and delivered one after the other in the same
transaction, each by a job of its own. A union would be one job, but it would run a plan that the
parts share at the same time in several tasks, which operators with state do not bear, and Spark
would count its rows several times (`sink/counts.py`).

After a good end the next batch goes straight to packing: with transaction version 2 the answer to
EndTxn brings the next epoch, with version 1 the driver asks for it, in a way that is refused if
somebody else has taken over.

A job that fails is aborted, fenced and tried again. An EndTxn whose answer is lost is settled by
asking: a fresh epoch ends the transaction one way or the other, and then the ledger tells which
way. Whoever is fenced stops and says so; it does not fence back, and looks before it settles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.failures import ProducerFenced, RetriesExhausted, UnknownOutcome
from fencepost.spark.failures import (
    BatchTooLarge,
    RowRefused,
    SinkFailed,
    SinkRefused,
    SinkStopped,
    sentence_of,
)
from fencepost.spark.sink.calls import Call, Known, RunCalls, calls_of
from fencepost.spark.sink.ledger.keeper import LedgerKeeper
from fencepost.spark.sink.ledger.ledger import Decision, Page, Permits, Verdict, note
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.parts import Part, frames_of, read_parts
from fencepost.spark.sink.producer import DriverProducer
from fencepost.spark.sink.settings import read_settings
from fencepost.spark.transport.accounts import sum_accounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.job import JobPlan
    from fencepost.spark.sink.ledger.ledger import Batch
    from fencepost.spark.sink.micro_batch import MicroBatch
    from fencepost.spark.sink.origins import SourceUse
    from fencepost.spark.transport.accounts import Account
    from fencepost.spark.transport.collected import RowCollector

log = logging.getLogger(__name__)

_NEXT: Final = Decision(Verdict.WRITE, "the next batch of this run; those between had no rows")

MAX_ATTEMPTS: Final = 3
"""How often the job of one batch is tried before the query fails."""

MAX_ID_BYTES: Final = 1_000
"""Far more than a name needs. Kafka's own limit is that of its strings, 32,767 bytes, and the
group's name is longer."""

MAX_DIRECT_FAILURES: Final = 3
"""After so many batches in a row that failed from task to task, a run goes through the shuffle
only: executors cannot reach each other, and finding that out takes half a minute each time."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the last batch."""

    batch_id: int
    verdict: Verdict
    account: Account | None = None
    open_ms: int = 0
    parts: Mapping[str, Account] = field(default_factory=dict)
    """What each DataFrame of the batch wrote, by its topic; `*` where the rows name it."""


@dataclass(slots=True)
class Standing:
    """What the driver knows between two batches of one run of a query."""

    micro_batch: MicroBatch
    """The batch that this run is in, or was in last."""
    producer: DriverProducer
    page: Page
    limits: TopicLimits
    sources: SourceUse
    is_stateful: bool | None = None
    collectors: dict[str, RowCollector] = field(default_factory=dict)
    """The collectors of small batches, by part."""
    direct_failures: int = 0
    """Batches in a row whose first attempt failed."""

    def remember_direct(self, *, failed: bool) -> None:
        if failed:
            self.direct_failures += 1
        elif self.direct_failures < MAX_DIRECT_FAILURES:
            self.direct_failures = 0

    def remember_size(self, part: Part, account: Account) -> None:
        from fencepost.spark.transport.collected import collect_limit_after

        self.collector_of(part).limit = collect_limit_after(account)

    def collector_of(self, part: Part) -> RowCollector:
        from fencepost.spark.transport.collected import RowCollector

        if part.name not in self.collectors:
            self.collectors[part.name] = RowCollector(part.topic)
        return self.collectors[part.name]


@dataclass(frozen=True, slots=True)
class Work:
    """One batch, as the sink was called for it."""

    micro_batch: MicroBatch
    parts: tuple[Part, ...]
    """What is to be written."""
    all_names: tuple[str, ...]
    """The names of all parts of the batch, those that are in the topics already included."""
    calls: RunCalls
    is_again: bool = False
    """Whether this run may have written the batch itself."""

    @property
    def batch_id(self) -> int:
        return self.micro_batch.batch_id

    def as_batch(self) -> Batch:
        """What the ledger wants to know."""
        run_id = "" if self.is_again else self.micro_batch.run_id
        return replace(self.micro_batch.as_batch(), parts=self.all_names, run_id=run_id)

    def completing(self, missing: tuple[str, ...]) -> Work:
        """The same with these parts alone, if there are any."""
        parts = tuple(part for part in self.parts if part.name in missing or not missing)
        return replace(self, parts=parts)


class TransactionalSink:
    """A function for `foreachBatch` that writes every batch exactly once.

    Call it once per batch, with all rows of the batch: `sink(df, batch_id)`, or
    `sink.write({"topic": df, ...}, batch_id)`.

    A batch of which nothing is to be written is entered with `sink.skip(batch_id)`; `may_skip`
    allows not to call the sink at all for such batches.

    `commit_source_offsets`: None commits the offsets of the sources in the same transaction where
    all of them are topics of the sink's cluster; True refuses to start where they are not; False
    never does.
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
        may_skip: bool = False,
        commit_source_offsets: bool | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        self.transactional_id = _checked_id(transactional_id)
        self.topic = topic
        self.settings = read_settings(bootstrap_servers, options or {})
        self.last_receipt: Receipt | None = None
        self._ledger = LedgerKeeper(self.settings.client, transactional_id, ledger_topic)
        if topic == self._ledger.topic:
            raise ConfigError(
                f"topic {topic!r} holds the ledger, and rows cannot go there: correct topic= or "
                "ledger_topic="
            )
        self._permits = Permits(adopt, take_over, allow_empty_state, may_skip)
        self._commit_source_offsets = commit_source_offsets
        self._max_attempts = max(1, max_attempts)
        self._on_step = on_step
        self._standing: Standing | None = None

    def __repr__(self) -> str:
        return f"<TransactionalSink {self.transactional_id!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins as a new sink does: what we know of the run belongs to this process."""
        return self.__dict__ | {"_standing": None, "last_receipt": None}

    @property
    def group(self) -> str:
        """The group in which the sources' offsets are committed."""
        return self._ledger.group

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every batch: all rows of the batch."""
        self._take(df.sparkSession, batch_id, (df,), {None: df})

    def write(
        self, parts: Mapping[str, DataFrame] | Mapping[str | None, DataFrame], batch_id: int
    ) -> None:
        """All rows of the batch in several DataFrames, by topic, in one transaction.

        The DataFrame under None goes where `sink(df, batch_id)` would write it: to the topic of the
        sink, or to those that its column `topic` names.
        """
        frames = frames_of(parts)
        self._take(_session_of(frames), batch_id, frames, parts)

    def skip(self, batch_id: int) -> None:
        """Enters a batch of which nothing is to be written: the ledger and the sources' offsets move on."""
        self._take(_session_of(()), batch_id, (), {})

    def _take(
        self, session: SparkSession, batch_id: int, frames: tuple[Any, ...], given: Any
    ) -> None:
        from fencepost.spark.sink.micro_batch import read_micro_batch

        standing, call = self._standing, Call(batch_id, frames)
        before = None if standing is None else standing.micro_batch
        try:
            micro_batch = read_micro_batch(session, batch_id, before, has_rows=bool(frames))
        except SinkRefused as problem:
            if before is not None and before.is_running():
                # Most likely a call of the same run, from a thread that has nothing of it.
                self._calls_of(before).fail(call, problem)
            raise
        calls = self._calls_of(micro_batch)
        try:
            known = calls.begin(call)
        except SinkRefused:
            self._note_damage(calls, micro_batch)
            raise
        if known is Known.FINISHED:
            log.warning("batch %d is in the topics, so there is nothing to skip", batch_id)
            return
        try:
            micro_batch.check_batch()
            parts = read_parts(given, self.topic, self._ledger.topic)
            with micro_batch.in_thread(session.sparkContext):
                names = tuple(part.name for part in parts)
                self._do(session, Work(micro_batch, parts, names, calls, calls.is_again), known)
        except BaseException as problem:
            calls.fail(call, problem)
            raise
        calls.finish(call)
        self._note_damage(calls, micro_batch)

    def _calls_of(self, micro_batch: MicroBatch) -> RunCalls:
        servers = map(str, self.settings.client.bootstrap)
        return calls_of(self.transactional_id, servers, micro_batch.run)

    def _do(self, session: SparkSession, work: Work, known: Known) -> None:
        standing, micro_batch = self._standing, work.micro_batch
        # Until the batch is over we know nothing for certain: whatever is raised, the next call
        # begins anew.
        self._standing = None
        if standing is None or standing.micro_batch.run != micro_batch.run:
            standing, known = self._stand(session, work), Known.NOTHING
        standing.micro_batch = micro_batch
        decision = _NEXT if known is Known.NEXT else self._decide(standing, work)
        if decision.verdict is Verdict.DRAIN:
            self._drain(work)
        else:
            self._write(work.completing(decision.missing), standing, decision.verdict)
        self._standing = standing

    def _note_damage(self, calls: RunCalls, micro_batch: MicroBatch) -> None:
        """Writes into the ledger what a restart must know; that it was refused, the caller hears in any case."""
        damage = calls.take_damage()
        if damage is None:
            return
        try:
            standing = self._standing
            if standing is None or standing.micro_batch.run != micro_batch.run:
                self._ledger.prepare()
                producer = DriverProducer(self.transactional_id, self.settings)
                page = self._ledger.read(micro_batch.query_id, producer)
            else:
                producer, page = standing.producer, standing.page
            noted = note(page.entry, micro_batch.query_id, damage.short, damage.lost)
            if noted is not None:
                producer.freshen()
                self._ledger.write(producer.lend(), noted, page)
                producer.commit()
        except FencepostError as problem:
            log.warning("batch %d: the ledger could not be told: %s", micro_batch.batch_id, problem)
        self._standing = None

    # Before the batch.

    def _step(self, step: str, work: Work | MicroBatch) -> None:
        log.debug("%s, batch %d: %s", self.transactional_id, work.batch_id, step)
        if self._on_step is not None:
            self._on_step(step, work.batch_id)

    def _stand(self, session: SparkSession, work: Work) -> Standing:
        """A fresh start: look, fence, then read what is there."""
        from fencepost.spark.sink.checks import check_ledger, check_start, check_timeout
        from fencepost.spark.sink.origins import use_sources

        client, micro_batch = self.settings.client, work.micro_batch
        check_start(session, self.transactional_id, self.settings, micro_batch)
        try:
            self._ledger.prepare()
            sources = use_sources(self._commit_source_offsets, micro_batch, client)
            batch = work.as_batch()
            check_ledger(self._ledger, self.transactional_id, batch, sources, self._permits)
            self._step("fencing", micro_batch)
            producer = DriverProducer(self.transactional_id, self.settings)
            self._step("fenced", micro_batch)
            page = self._ledger.read(micro_batch.query_id, producer)
        except RetriesExhausted as problem:
            servers = ",".join(map(str, client.bootstrap))
            raise SinkFailed(
                f"the cluster at {servers} does not answer: {problem}. Start its brokers, or "
                "correct the first argument "
                "of the sink. Nothing of the batch was written"
            ) from problem
        self._step("ledger read", micro_batch)
        check_timeout(self.transactional_id, self.settings, page.entry)
        limits = TopicLimits(self.settings)
        return Standing(micro_batch, producer, page, limits, sources, micro_batch.is_stateful)

    def _decide(self, standing: Standing, work: Work) -> Decision:
        from fencepost.spark.sink.checks import refusal_of

        entry, last = standing.page.entry, work.calls.last
        if (
            entry is not None
            and entry.batch_id == last
            and entry.query_id == work.micro_batch.query_id
        ):
            return _NEXT
        decision = self._ledger.judge(
            standing.page, work.as_batch(), standing.sources, self._permits
        )
        log.info("batch %d: %s (%s)", work.batch_id, decision.verdict.value, decision.reason)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(self.transactional_id, decision)
        return decision

    def _drain(self, work: Work) -> None:
        """Runs the plan and drops the rows: a stateful query must write its state, or it is broken for good."""
        from fencepost.spark.sink.counts import Counts

        self._step("draining", work)
        counts = Counts(work.micro_batch, len(work.parts))
        for part in work.parts:
            counts.begin_run(part.df)
            part.df.write.format("noop").mode("overwrite").save()
        counts.finish()
        self.last_receipt = Receipt(work.batch_id, Verdict.DRAIN)

    # The batch.

    def _write(self, work: Work, standing: Standing, verdict: Verdict) -> None:
        producer, failures = standing.producer, 0
        while failures < self._max_attempts:
            if producer.is_doubtful and self._settle(work, standing):
                self._drain(work)
                return
            if producer.freshen():
                self._step("fenced", work)
            try:
                receipt, page = self._attempt(work, standing, verdict, is_first=not failures)
            except BatchTooLarge as problem:
                producer.abandon()
                standing.limits.learn(problem)
                continue
            except FencepostError as problem:
                if producer.has_timed_out():
                    # Another attempt would take as long.
                    raise producer.timed_out() from problem
                if isinstance(problem, ProducerFenced):
                    raise producer.fenced() from problem
                producer.abandon()
                failures += 1
                if failures == self._max_attempts or _is_final(problem):
                    raise
                log.warning("batch %d, attempt %d: %s", work.batch_id, failures, problem)
                continue
            if self._end(work, standing, page):
                standing.remember_direct(failed=bool(failures))
                self.last_receipt = receipt
                self._step("ended", work)
                return
            failures += 1
        raise SinkFailed(
            f"batch {work.batch_id}: the answer to EndTxn was lost {self._max_attempts} times, "
            "and each time the "
            "transaction had been aborted: look at the brokers' logs and the network"
        )

    def _attempt(
        self, work: Work, standing: Standing, verdict: Verdict, *, is_first: bool
    ) -> tuple[Receipt, Page]:
        """Everything but the end: rows and entry are in the transaction when this returns."""
        from fencepost.spark.sink.counts import Counts

        micro_batch = work.micro_batch
        self._step("writing", work)
        identity = standing.producer.lend()
        counts = Counts(micro_batch, len(work.parts), is_first=is_first)
        entering = self._ledger.entering(
            identity,
            micro_batch,
            standing.page,
            sources=standing.sources,
            is_stateful=standing.is_stateful,
            parts=work.all_names,
        )
        accounts = {}
        for part in work.parts:
            plan = self._plan_part(work, part, standing, identity, is_first=is_first)
            # The entry goes with the last rows, when everything else of the batch is in the
            # transaction.
            attached = entering if part is work.parts[-1] else None
            plan = replace(plan, attached=attached, before_run=counts.begin_run)
            accounts[part.name] = account = self._run_job(part.df, micro_batch, plan)
            standing.remember_size(part, account)
        counts.finish()
        account = sum_accounts(accounts.values())
        self._step("written", work)
        page = entering.finish(account.opened_ms)
        self._step("entered", work)
        work.calls.check()
        return Receipt(work.batch_id, verdict, account, entering.open_ms, accounts), page

    def _plan_part(
        self,
        work: Work,
        part: Part,
        standing: Standing,
        identity: ProducerIdentity,
        *,
        is_first: bool,
    ) -> JobPlan:
        """How one DataFrame is written. Only a first attempt takes one of the quicker ways."""
        from fencepost.spark.sink.job import JobPlan

        collector = standing.collector_of(part)
        if not is_first:
            collector.limit = 0
        return JobPlan(
            self.settings,
            identity,
            work.batch_id,
            part.topic,
            standing.limits.batch_bytes(part.topic),
            part.reserved,
            collector,
            is_first and standing.direct_failures < MAX_DIRECT_FAILURES,
        )

    def _run_job(self, df: DataFrame, micro_batch: MicroBatch, plan: JobPlan) -> Account:
        from fencepost.spark.sink.job import run_job

        try:
            return run_job(df, plan)
        except FencepostError:
            raise
        except Exception as problem:
            # Whatever Spark, py4j or the user's own functions raise: the transaction must not stay
            # open.
            log.info("the job of batch %d failed", micro_batch.batch_id, exc_info=True)
            text = str(problem)
            if micro_batch.is_stopping():
                raise _stopped(micro_batch) from None
            if df.isStreaming:
                raise SinkRefused(
                    f"the sink was given a streaming DataFrame for batch {micro_batch.batch_id}: "
                    "give it the DataFrame that Spark "
                    "gives to your function, or one made from that. Nothing was written"
                ) from None
            if (too_large := BatchTooLarge.found_in(text)) is not None:
                raise too_large from None
            if "fencepost.spark.failures.RowRefused" in text:
                raise RowRefused(sentence_of(problem)) from None
            raise SinkFailed(f"batch {micro_batch.batch_id}: {sentence_of(problem)}") from None

    # The end of the batch.

    def _end(self, work: Work, standing: Standing, page: Page) -> bool:
        """Commits; False when the transaction turned out to be aborted, and a fresh identity is there to try again."""
        self._step("ending", work)
        try:
            standing.producer.commit()
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", work.batch_id, problem)
            return self._settle(work, standing)
        standing.page = page
        return True

    def _settle(self, work: Work, standing: Standing) -> bool:
        """Whether the transaction was committed: the cluster knows.

        A fresh epoch makes its answer final.
        """
        self._step("settling", work)
        if standing.producer.is_taken():
            raise standing.producer.fenced("Whether this batch is visible, the ledger will tell")
        standing.producer.fence()
        standing.page = self._ledger.read(work.micro_batch.query_id, standing.producer)
        again = replace(work, is_again=True)
        return self._decide(standing, again).verdict is Verdict.DRAIN


def _checked_id(transactional_id: Any) -> str:
    """The id, if it can be the key of a record and a part of a group's name."""
    if not transactional_id or not isinstance(transactional_id, str):
        raise ConfigError("transactional_id must be a name that only this query uses")
    try:
        size_bytes = len(transactional_id.encode("utf-8"))
    except UnicodeEncodeError as problem:
        raise ConfigError(
            f"transactional_id {transactional_id!a} has a character that is not Unicode text "
            f"({problem.reason}): "
            "choose a plain name"
        ) from None
    if size_bytes > MAX_ID_BYTES:
        raise ConfigError(
            f"transactional_id has {size_bytes} bytes, and brokers would not take it: choose a "
            "name of at most "
            f"{MAX_ID_BYTES} bytes"
        )
    return transactional_id


def _session_of(frames: tuple[Any, ...]) -> SparkSession:
    """The session of the first DataFrame, or the one that is active in this thread."""
    from pyspark.sql import SparkSession

    for frame in frames:
        if hasattr(frame, "sparkSession"):
            found: SparkSession = frame.sparkSession
            return found
    active = SparkSession.getActiveSession()
    if active is None:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query: use it in the function "
            "that you pass to "
            "foreachBatch. Nothing was written"
        )
    return active


def _stopped(micro_batch: MicroBatch) -> SinkStopped:
    # Spark looks into the text to tell a query that was stopped from one that failed: it wants to
    # find the exception of a cancelled job, and the job group, which is the run.
    return SinkStopped(
        f"the query was stopped in batch {micro_batch.batch_id}, and the batch was aborted. Nothing "
        "of it is visible "
        f"(org.apache.spark.SparkException: job cancelled with its group {micro_batch.run_id})"
    )


def _is_final(problem: Exception) -> bool:
    """Whether trying again cannot help."""
    return isinstance(problem, (SinkRefused, SinkStopped, RowRefused, ConfigError))
