"""`fencepost.spark.audit`: runs an audit in a session."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError
from fencepost.spark.auditing.bounds import Bounds, fix_bounds
from fencepost.spark.auditing.finding_rows import (
    Keys,
    finding_frame,
    finding_rows,
    keys_of_tables,
)
from fencepost.spark.auditing.job import Job, Summary
from fencepost.spark.auditing.judging import (
    PROVEN,
    blind_spots,
    can_filter,
    filter_findings,
    final_rules,
    first_rules,
    judge,
    log_starts,
)
from fencepost.spark.auditing.keys import shown_key
from fencepost.spark.auditing.matching import Kind
from fencepost.spark.auditing.question import PARTITION, Asked, Question, read_question
from fencepost.spark.auditing.reading import Reading, plan_spans
from fencepost.spark.auditing.result import (
    MAX_EXAMPLES,
    AuditFinding,
    AuditResult,
    Example,
    SideCounts,
)
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.session import (
    allows_barrier,
    await_slots,
    concurrent_tasks,
    most_tasks,
)
from fencepost.spark.source.options import SourceOptions, read_source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.auditing.tables import TableReader

_BUCKET_RECORDS: Final = 500_000
_MAX_BUCKETS: Final = 4_000
_KEPT: Final = 200_000
"""How many findings of a kind come to the driver."""
DEFAULT_GRACE_SECONDS: Final = 10.0
_EXECUTOR_WAIT_SECONDS: Final = 30.0
"""On a cluster, executors register some seconds after the session has started."""
_NOW_MS: Final = 60_000
"""A time so shortly ago is now: the user wrote it before the audit began."""
_UNKNOWN_SLOTS: Final = 16
"""The assumed number of tasks that can run, if it is not known."""

Report = Callable[[str], None]


@checked
def audit(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    options: Mapping[str, str] | None = None,
    report: Report = lambda _: None,
    **asked: Unpack[Asked],
) -> AuditResult:
    """Compares what a pipeline reads with what it writes: topics, live or not, and tables.

    `docs/spark/audit.md` describes the arguments, which are the options of the command. `options`
    are client settings under Kafka's names; `report` is called with a sentence when a step begins.
    """
    asked.setdefault("grace_ms", round(grace_seconds * 1000))
    question = read_question(**asked)
    return prepare_audit(bootstrap_servers, options or {}, question, report).run(spark, report)


def prepare_audit(
    bootstrap_servers: str,
    options: Mapping[str, str],
    question: Question,
    report: Report = lambda _: None,
) -> Audit:
    """Fixes the offsets of an audit, and reads its tables; needs no Spark yet."""
    seed = secrets.randbits(63)
    tables = _table_reader(question, seed)
    source = _source_options(bootstrap_servers, options, question)
    if question.waits:
        report(f"waiting {question.grace_ms / 1000:g} s, so that the pipeline can catch up")
    bounds = fix_bounds(cluster_of(source.client), question, time.sleep, tables)
    return Audit(question, source, bounds, seed)


def _table_reader(question: Question, seed: int) -> TableReader | None:
    if not question.tables:
        return None
    is_past = question.until_ms is not None and question.until_ms < time.time() * 1000 - _NOW_MS
    if is_past and question.input.tables:
        raise ConfigError(
            f"rows of {question.input.tables[0]} have no time: say until now, which is true of all "
            "rows, or leave it out"
        )
    from fencepost.spark.auditing.tables import TableReader

    return TableReader(question, seed)


def _source_options(servers: str, options: Mapping[str, str], question: Question) -> SourceOptions:
    given = {f"kafka.{name}": value for name, value in options.items() if name != "isolation.level"}
    own = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_uncommitted",
        # Required, though tasks know their partitions; with tables alone there is no topic.
        "subscribe": ",".join(question.topics) or "none",
    }
    return read_source_options(given | own, streaming=False)


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit whose offsets are fixed."""

    question: Question
    source: SourceOptions
    bounds: Bounds
    seed: int
    """Of the hashes, and drawn anew for each audit."""

    def run(self, spark: SparkSession, report: Report = lambda _: None) -> AuditResult:
        """Reads, matches and judges."""
        job = self._job(_slots(spark, report))
        kept = max(_KEPT // job.reading.buckets, 100)
        report(f"reading {self.bounds.offsets:,} offsets")
        summary = job.run(spark, kept)
        rules = final_rules(job.rules, self.bounds, summary)
        if rules != job.rules:
            job = replace(job, rules=rules)
            if can_filter(summary):
                summary = filter_findings(summary, rules)
            else:
                report("reading again, now that the bounds are known")
                summary = job.run(spark, kept)
        return self._result(spark, job, summary)

    def _job(self, slots: int) -> Job:
        bounds, question = self.bounds, self.question
        buckets = max(slots, min(bounds.offsets // _BUCKET_RECORDS + 1, _MAX_BUCKETS))
        reading = Reading(
            options=self.source,
            places=bounds.places,
            question=question,
            seed=self.seed,
            buckets=buckets,
            spans=plan_spans(bounds, slots),
        )
        is_ordered = question.order == PARTITION
        return Job(reading, first_rules(question, bounds), is_ordered, bounds.tables)

    def _result(self, spark: SparkSession, job: Job, summary: Summary) -> AuditResult:
        findings, left_out = judge(self.question, self.bounds, summary)
        inputs, outputs = self._side(summary, True), self._side(summary, False)
        keys = keys_of_tables(job, summary.findings)
        found = [
            replace(finding, examples=self._examples(job, summary, kind, keys))
            for kind, finding in findings.items()
        ]
        by, counts_only = self.question.compared, self._counts_only(summary)
        unjudged = summary.waiting + summary.held_back
        unjudged += sum(s.unkeyed for s in summary.statistics if self._is_input(s.place))
        return AuditResult(
            inputs,
            outputs,
            max(inputs.records + inputs.rows - unjudged, 0),
            tuple(found + self._offset_findings()),
            tuple(left_out),
            self._notes(summary),
            compared=f"counts per {by}" if counts_only and self.question.counts_per_key else by,
            not_compared=self.question.not_compared,
            blind_spots=tuple(blind_spots(self.question, self.bounds, summary)),
            _rows=partial(finding_frame, spark, job, self._set_names(), keys),
        )

    def _counts_only(self, summary: Summary) -> bool:
        """Whether several outputs have the same key, so that they can only be counted."""
        question = self.question
        return question.per_input > 1 or bool(summary.repeated and not question.distinct)

    def _is_input(self, place: int) -> bool:
        return self.bounds.places[place].is_input

    def _set_names(self) -> tuple[str, ...]:
        """The names of the sets of outputs."""
        names = self.question.output.names
        return names if self.question.output_slots == len(names) else (" or ".join(names),)

    def _side(self, summary: Summary, is_input: bool) -> SideCounts:
        question, bounds = self.question, self.bounds
        seen = [s for s in summary.statistics if self._is_input(s.place) == is_input]
        starts = log_starts(bounds, summary)
        here = [n for n, place in enumerate(bounds.places) if place.is_input == is_input]
        partitions = [number for number in here if not bounds.places[number].is_table]
        rows = sum(bounds.places[number].end for number in here if number not in partitions)
        return SideCounts(
            question.side(is_input=is_input).topics,
            len(partitions),
            sum(each.records for each in seen) - rows,
            sum(each.aborted for each in seen),
            sum(each.undecided for each in seen),
            sum(starts[number] for number in partitions),
            question.side(is_input=is_input).tables,
            rows,
        )

    def _examples(self, job: Job, summary: Summary, kind: Kind, keys: Keys) -> tuple[Example, ...]:
        found = summary.findings[summary.findings["kind"] == kind]
        found.sort(order=["input_place", "input_offset", "output_place", "output_offset"])
        rows = finding_rows(job.reading, self._set_names(), found[:MAX_EXAMPLES], keys)
        return tuple(
            Example(
                shown_key(row["key"]),
                _position(row, "input"),
                _position(row, "output"),
                tuple(row["lacking"] or ()),
                row["ambiguous"],
            )
            for row in rows
        )

    def _offset_findings(self) -> list[AuditFinding]:
        problems = self.bounds.problems
        if not problems:
            return []
        examples = tuple(
            Example(
                None,
                str(each.partition),
                note=f"committed {each.committed}, and {each.sentence}",
            )
            for each in problems[:MAX_EXAMPLES]
        )
        sentence = f"Offsets of group {self.question.group} that do not fit their partitions"
        return [AuditFinding("offsets", len(problems), PROVEN, sentence, examples)]

    def _notes(self, summary: Summary) -> tuple[str, ...]:
        notes = list(self.bounds.notes)
        if compacted := sorted(self.bounds.compacted & set(self.question.output.topics)):
            notes.append(
                f"{', '.join(compacted)}: compaction removes outputs, so nothing can be called "
                "missing or torn."
            )
        if summary.repeated and not self.question.distinct:
            notes.append(
                f"{summary.repeated:,} inputs share their key with others: they were counted per "
                "key, and their order was not compared. A key that is unique shows more."
            )
        if self._counts_only(summary) and not self.question.counts_per_key:
            notes.append(
                "If equal counts per key are enough for you, say so with `counts_per_key` "
                "(--counts-per-key)."
            )
        if summary.waiting and not self.bounds.is_certain:
            notes.append(
                "Name the pipeline's group, or with `until` the time up to which it has processed "
                "everything, to judge more."
            )
        return tuple(notes)


def _slots(spark: SparkSession, report: Report) -> int:
    """How many tasks to plan for: those that can run, or could with all executors."""
    if not allows_barrier(spark):
        # Executors come when there is work for them.
        return most_tasks(spark) or _UNKNOWN_SLOTS
    found = concurrent_tasks(spark)
    if not found:
        report("waiting for the first executor")
        found = await_slots(spark, _EXECUTOR_WAIT_SECONDS)
    return found or _UNKNOWN_SLOTS


def _position(row: Mapping[str, object], side: str) -> str | None:
    if row.get(f"{side}Topic") is None:
        return None
    if row.get(f"{side}Partition") is None:
        return f"{row[f'{side}Topic']}"
    return f"{row[f'{side}Topic']}:{row[f'{side}Partition']}:{row[f'{side}Offset']}"
