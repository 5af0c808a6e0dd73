"""`fencepost.spark.audit`: runs an audit in a session."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.spark.auditing.bounds import Bounds, fix_bounds
from fencepost.spark.auditing.finding_rows import finding_frame, finding_rows
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
from fencepost.spark.auditing.question import EVERY, PARTITION, Question, read_question
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

_BUCKET_RECORDS: Final = 500_000
_MAX_BUCKETS: Final = 4_000
_KEPT: Final = 200_000
"""How many findings of a kind come to the driver."""
DEFAULT_GRACE_SECONDS: Final = 10.0
_EXECUTOR_WAIT_SECONDS: Final = 30.0
"""On a cluster, executors register some seconds after the session has started."""
_UNKNOWN_SLOTS: Final = 16
"""The assumed number of tasks that can run, if it is not known."""

Report = Callable[[str], None]


def audit(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    input: str | Sequence[str],  # noqa: A002 - as the option of the command
    output: str | Sequence[str],
    key: str = "key",
    input_key: str | None = None,
    output_key: str | None = None,
    expect: str = EVERY,
    per_input: int = 1,
    distinct: bool = False,
    counts_per_key: bool = False,
    order: str = PARTITION,
    group: str | None = None,
    until_ms: int | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    options: Mapping[str, str] | None = None,
    report: Report = lambda _: None,
) -> AuditResult:
    """Compares the input topics of a pipeline with its output topics, live or not.

    `docs/spark/audit.md` describes the arguments. `options` are client settings under Kafka's
    names; `report` is called with a sentence when a step begins.
    """
    question = read_question(
        input,
        output,
        key,
        input_key=input_key,
        output_key=output_key,
        expect=expect,
        per_input=per_input,
        distinct=distinct,
        counts_per_key=counts_per_key,
        order=order,
        group=group,
        until_ms=until_ms,
        grace_ms=round(grace_seconds * 1000),
    )
    return prepare_audit(bootstrap_servers, options or {}, question, report).run(spark, report)


def prepare_audit(
    bootstrap_servers: str,
    options: Mapping[str, str],
    question: Question,
    report: Report = lambda _: None,
) -> Audit:
    """Fixes the offsets of an audit; needs no Spark yet."""
    source = _source_options(bootstrap_servers, options, question)
    if question.waits:
        report(f"waiting {question.grace_ms / 1000:g} s, so that the pipeline can catch up")
    return Audit(question, source, fix_bounds(cluster_of(source.client), question, time.sleep))


def _source_options(servers: str, options: Mapping[str, str], question: Question) -> SourceOptions:
    given = {f"kafka.{name}": value for name, value in options.items() if name != "isolation.level"}
    own = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_uncommitted",
        "subscribe": ",".join((*question.inputs, *question.outputs)),
    }
    return read_source_options(given | own, streaming=False)


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit whose offsets are fixed."""

    question: Question
    source: SourceOptions
    bounds: Bounds

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
            input_key=question.input_key,
            output_key=question.output_key,
            seed=secrets.randbits(63),
            buckets=buckets,
            spans=plan_spans(bounds, slots),
        )
        return Job(reading, first_rules(question, bounds), question.order == PARTITION)

    def _result(self, spark: SparkSession, job: Job, summary: Summary) -> AuditResult:
        findings, left_out = judge(self.question, self.bounds, summary)
        inputs, outputs = self._side(summary, True), self._side(summary, False)
        found = [
            replace(finding, examples=self._examples(job, summary, kind))
            for kind, finding in findings.items()
        ]
        by, counts_only = self.question.compared, self._counts_only(summary)
        unjudged = summary.waiting + summary.held_back
        unjudged += sum(s.unkeyed for s in summary.statistics if self._is_input(s.place))
        return AuditResult(
            inputs,
            outputs,
            max(inputs.records - unjudged, 0),
            tuple(found + self._offset_findings()),
            tuple(left_out),
            self._notes(summary),
            compared=f"counts per {by}" if counts_only and self.question.counts_per_key else by,
            not_compared=self.question.not_compared,
            blind_spots=tuple(blind_spots(self.question, self.bounds, summary)),
            _rows=partial(finding_frame, spark, job, self._set_names()),
        )

    def _counts_only(self, summary: Summary) -> bool:
        """Whether several outputs have the same key, so that they can only be counted."""
        question = self.question
        return question.per_input > 1 or bool(summary.repeated and not question.distinct)

    def _is_input(self, place: int) -> bool:
        return self.bounds.places[place].is_input

    def _set_names(self) -> tuple[str, ...]:
        """The names of the sets of outputs."""
        names = self.question.outputs
        return names if self.question.output_slots == len(names) else (" or ".join(names),)

    def _side(self, summary: Summary, is_input: bool) -> SideCounts:
        question, bounds = self.question, self.bounds
        seen = [s for s in summary.statistics if self._is_input(s.place) == is_input]
        starts = log_starts(bounds, summary)
        places = [n for n, place in enumerate(bounds.places) if place.is_input == is_input]
        return SideCounts(
            question.inputs if is_input else question.outputs,
            len(places),
            sum(each.records for each in seen),
            sum(each.aborted for each in seen),
            sum(each.undecided for each in seen),
            sum(starts[number] for number in places),
        )

    def _examples(self, job: Job, summary: Summary, kind: Kind) -> tuple[Example, ...]:
        found = summary.findings[summary.findings["kind"] == kind]
        found.sort(order=["input_place", "input_offset", "output_place", "output_offset"])
        rows = finding_rows(job.reading, self._set_names(), found[:MAX_EXAMPLES])
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
                f"{each.partition.topic}:{each.partition.partition}",
                note=f"committed {each.committed}, and {each.sentence}",
            )
            for each in problems[:MAX_EXAMPLES]
        )
        sentence = f"Offsets of group {self.question.group} that do not fit their partitions"
        return [AuditFinding("offsets", len(problems), PROVEN, sentence, examples)]

    def _notes(self, summary: Summary) -> tuple[str, ...]:
        notes = []
        if compacted := sorted(self.bounds.compacted & set(self.question.outputs)):
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
    return f"{row[f'{side}Topic']}:{row[f'{side}Partition']}:{row[f'{side}Offset']}"
