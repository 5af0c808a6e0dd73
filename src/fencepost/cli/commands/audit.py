"""`fencepost audit`: is a pipeline exactly-once? Compares topics and tables in a Spark job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fencepost.cli.commands.outbox import DSN_VARIABLE, Postgres
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.findings import conclude
from fencepost.cli.output import Output, output
from fencepost.cli.positions import parse_time
from fencepost.cli.progress import ProgressLine
from fencepost.cli.units import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.auditing.question import Question
    from fencepost.spark.auditing.result import AuditResult

_POLL_SECONDS: Final = 0.2


@connected
def audit(
    connection: Connection,
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="TOPIC", help="A topic that it reads; repeatable."),
    ] = [],  # noqa: B006 - Typer's default.
    outputs: Annotated[
        list[str],
        typer.Option("--output", metavar="TOPIC", help="A topic that it writes; repeatable."),
    ] = [],  # noqa: B006
    input_tables: Annotated[
        list[str],
        typer.Option("--input-table", metavar="TABLE", help="A table that it reads; repeatable."),
    ] = [],  # noqa: B006
    tables: Annotated[
        list[str],
        typer.Option("--table", metavar="TABLE", help="A table that it writes; repeatable."),
    ] = [],  # noqa: B006
    postgres: Postgres = None,
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="What an input and its outputs have in common: key, value, value:FIELD.FIELD, "
            "key:FIELD.FIELD or header:NAME.",
        ),
    ] = "key",
    input_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of inputs, if it is another one.")
    ] = None,
    output_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of outputs, likewise.")
    ] = None,
    table_key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The key of rows: COLUMN, COLUMN:FIELD.FIELD of a JSON column, or * for the row.",
        ),
    ] = None,
    compare: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD[=FIELD]",
            help="Compare this field of values, and column of rows, too; repeatable. * is all. "
            "With =, its names in inputs and outputs.",
        ),
    ] = [],  # noqa: B006
    expect: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Which outputs an input has: in every output topic, in one of them, "
            "all-or-none (a filter), any.",
        ),
    ] = "every",
    per_input: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many outputs an input has in a topic.")
    ] = 1,
    distinct: Annotated[
        bool,
        typer.Option("--distinct", help="Inputs with equal keys count once: it deduplicates."),
    ] = False,
    counts_per_key: Annotated[
        bool,
        typer.Option(
            "--counts-per-key",
            help="Where several outputs have the same key, the right number of them is enough. "
            "Otherwise the verdict is then: cannot tell.",
        ),
    ] = False,
    order: Annotated[
        str,
        typer.Option(metavar="WHAT", help="Compare the order within each partition, or none."),
    ] = "partition",
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="The group whose committed offsets say what has been processed.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Inputs before this time have been processed: now, or 2026-11-17T09:30.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        int,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Without --group and --until: how long the pipeline takes for an input.",
        ),
    ] = "10s",  # type: ignore[assignment] # Typer parses the default, too.
    master: Annotated[
        str, typer.Option(metavar="URL", help="The master of the Spark session.")
    ] = "local[*]",
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 3 if anything is found, with 4 if it cannot tell."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare what a pipeline writes with what it reads: is it exactly-once?

    Finds inputs that are missing or torn over topics, and outputs that are doubled, unexpected,
    changed, reordered, or ahead of the committed offsets. Topics may be live, and inputs and
    outputs may be tables of PostgreSQL. Runs on Spark, and changes nothing.

    Example: fencepost audit --input orders --output refunds --group refunds
    """
    from fencepost.spark.installation import require_spark

    require_spark()
    from fencepost.spark.auditing.question import read_question

    question = read_question(
        input=inputs,
        output=outputs,
        input_table=input_tables,
        table=tables,
        postgres=postgres or os.environ.get(DSN_VARIABLE),
        key=key,
        input_key=input_key,
        output_key=output_key,
        table_key=table_key,
        compare=compare,
        expect=expect,
        per_input=per_input,
        distinct=distinct,
        counts_per_key=counts_per_key,
        order=order,
        group=group,
        until_ms=_until(until),
        grace_ms=grace,
    )
    found = _run(connection, question, master)
    _print(output(as_json), found, as_json=as_json)
    is_right = found.is_exactly_once
    conclude({}, found=None if is_right is None else not is_right, check=check)


def _until(text: str | None) -> int | None:
    if text is None:
        return None
    return int(time.time() * 1_000) if text == "now" else parse_time(text)


def _run(connection: Connection, question: Question, master: str) -> AuditResult:
    from fencepost.spark.auditing.run import prepare_audit
    from fencepost.spark.own_session import own_session

    progress = ProgressLine()
    try:
        with connection.open(long_running=True) if question.topics else nullcontext():
            progress.show("fixing the offsets")
            prepared = prepare_audit(
                connection.servers, connection.options, question, progress.show
            )
        progress.show("starting Spark")
        with own_session(master, "fencepost audit") as spark, _showing_tasks(spark, progress):
            return prepared.run(spark)
    finally:
        progress.clear()


@contextmanager
def _showing_tasks(spark: SparkSession, progress: ProgressLine) -> Iterator[None]:
    """Shows how many tasks of the running stages are done."""
    is_over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not is_over.wait(_POLL_SECONDS):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            done = sum(each.numCompletedTasks for each in stages if each)
            if total := sum(each.numTasks for each in stages if each):
                progress.show(f"comparing, {done} of {total} tasks of this stage done")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _print(shown: Output, found: AuditResult, *, as_json: bool) -> None:
    if as_json:
        shown.details(found.as_json())
        return
    shown.note("\n".join(found.lines()))
