"""Goal: a task writes what has passed the hop, once, and what was changed since then never counts.

Method: the hop and the writer of a task, without Spark, on a real broker.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.types import StructType  # noqa: E402

from fencepost.client.blocking import Cluster  # noqa: E402
from fencepost.records.builder import build_batch  # noqa: E402
from fencepost.records.opened import Record  # noqa: E402
from fencepost.spark.doors.routed_task import Target, TaskPlace, TaskReport, write_task  # noqa: E402
from fencepost.spark.doors.trailer import (  # noqa: E402
    ROUTED_COLUMNS,
    check_routed,
    routed_columns,
    with_trailer,
    without_trailer,
)
from fencepost.spark.failures import CountsDisagree, SinkRefused  # noqa: E402
from fencepost.spark.ledger.rule import Batch, Verdict  # noqa: E402
from fencepost.spark.settings import read_settings  # noqa: E402
from fencepost.spark.transaction.identity import DriverProducer  # noqa: E402
from fencepost.spark.transaction.transaction import Transaction  # noqa: E402
from fencepost.spark.ways.accounts import reconcile_reports  # noqa: E402
from fencepost.spark.ways.delivery import Attempt  # noqa: E402
from fencepost.spark.ways.shuffled import PACKED_COLUMNS  # noqa: E402
from tests.spark import chaos  # noqa: E402
from tests.spark.conftest import read_values  # noqa: E402

ATTEMPT = Attempt(1, 0, 17)
PLACE = TaskPlace(ATTEMPT, 2, "query", 5)
Rows = list[dict[str, Any]]


def packed(count: int = 3) -> Any:
    rows = [
        {"slot": 1, "map_id": 0, "run": 0, "ordinal": n, "topic": "out", "partition": 0}
        | {"payload": b"payload %d" % n}
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=PACKED_COLUMNS)


def hopped(count: int = 3, attempt: Attempt = ATTEMPT, tasks: int = 2) -> Rows:
    """What a writer gets, as rows that tests can change."""
    batches = with_trailer(iter([packed(count)]), attempt, tasks, "cluster")
    return [row for batch in batches for row in batch.to_pylist()]


def received(rows: Rows, batch_rows: int = 100) -> Rows:
    """What the writer takes of them, if Spark passes so many at once."""
    batches = (
        pa.RecordBatch.from_pylist(rows[at : at + batch_rows], schema=ROUTED_COLUMNS)
        for at in range(0, len(rows), batch_rows)
    )
    return [row for batch in without_trailer(batches, ATTEMPT, 2) for row in batch.to_pylist()]


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 4, 100])
def test_rows_pass_unchanged_however_spark_cuts_them(batch_rows: int) -> None:
    found = received(hopped(), batch_rows)
    names = PACKED_COLUMNS.names
    assert [{name: row[name] for name in names} for row in found] == packed().to_pylist()


def test_a_task_without_rows_has_a_trailer() -> None:
    batches = list(with_trailer(iter(()), ATTEMPT, 2, "cluster"))
    assert [batch.num_rows for batch in batches] == [1]
    assert list(without_trailer(iter(batches), ATTEMPT, 2)) == []


def changed(at: int, **values: Any) -> Callable[[Rows], Rows]:
    """The row at this place with other values."""

    def change(rows: Rows) -> Rows:
        rows[at] = rows[at] | values
        return rows

    return change


LOST_END = "the end of a task's rows did not reach its writer"
AFTER_END = "rows came after the end of a task"
OTHER_CONTENT = "rows came in another order, or with other content"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [], LOST_END),
        (lambda rows: rows[:-1], LOST_END),
        (lambda rows: rows[1:], "2 packed batches came, of 3"),
        (lambda rows: rows[-1:], "0 packed batches came, of 3"),
        (lambda rows: [*rows[:-1], *rows], "6 packed batches came, of 3"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], OTHER_CONTENT),
        (lambda rows: [rows[0], rows[0], *rows[2:]], OTHER_CONTENT),
        (lambda rows: [rows[-1], *rows[:-1]], AFTER_END),
        (lambda rows: [*rows, rows[-1]], AFTER_END),
        (lambda rows: [*rows, *rows], AFTER_END),
        (changed(0, payload=b"other"), OTHER_CONTENT),
        (changed(0, topic="other"), OTHER_CONTENT),
        (changed(0, partition=1), OTHER_CONTENT),
        (changed(0, ordinal=5), OTHER_CONTENT),
        (changed(0, slot=None), "rows came that it did not make"),
        (changed(-1, digest=0), OTHER_CONTENT),
    ],
)
@pytest.mark.parametrize("batch_rows", [1, 100])
def test_rows_that_are_lost_doubled_moved_or_changed_after_the_hop_are_refused(
    change: Callable[[Rows], Rows], words: str, batch_rows: int
) -> None:
    with pytest.raises(SinkRefused) as refused:
        received(change(hopped()), batch_rows)
    assert str(refused.value).startswith("route() must be the last step before the write, and ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (hopped(attempt=Attempt(0, 0, 17)), "rows came from another task"),
        (hopped(tasks=3), "rows came from another task"),
        (hopped(attempt=Attempt(1, 0, 16)), "rows came from another run of the task"),
    ],
)
def test_the_trailer_of_another_task_or_attempt_is_refused(rows: Rows, words: str) -> None:
    with pytest.raises(SinkRefused, match=words):
        received(rows)


def test_only_what_route_returns_is_accepted() -> None:
    columns = routed_columns()
    check_routed(columns)
    # As in the process that plans: columns travel as JSON.
    check_routed(StructType.fromJson(columns.jsonValue()))
    unmarked = StructType.fromJson(columns.jsonValue())
    unmarked.fields[0].metadata = {}
    for other in (
        StructType(),
        unmarked,
        StructType(columns.fields[1:]),
        StructType(columns.fields[:-1]),
    ):
        with pytest.raises(SinkRefused, match="the rows are not packed"):
            check_routed(other)


# The writer.


class Task:
    """A task of a transaction that has begun."""

    def __init__(self, bootstrap: str, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        settings = read_settings(bootstrap, {})
        self.target = Target(settings, "cluster")
        self.name = name
        self.transaction = Transaction(DriverProducer(name, settings), None, Batch("query", 5))
        self.transaction.fence()
        self.transaction.decide()

    def run(
        self,
        batches: Iterator[Any],
        place: TaskPlace = PLACE,
        verdict: Verdict = Verdict.WRITE,
        *,
        may_be_empty: bool = False,
    ) -> TaskReport:
        # Spark pickles it for every task.
        transaction = pickle.loads(pickle.dumps(self.transaction))
        return write_task(
            transaction, verdict, place, batches, self.target, may_be_empty=may_be_empty
        )

    def state(self) -> str:
        view = self.cluster.describe_transactions([self.name])[self.name]
        assert view is not None
        return view.state


@pytest.fixture
def task(bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]) -> Task:
    return Task(bootstrap, cluster, new_topic())


def empty() -> Iterator[Any]:
    return with_trailer(iter(()), ATTEMPT, 2, "cluster")


def test_a_task_without_rows_reports_where_it_ran(task: Task) -> None:
    report = task.run(empty())
    assert (report.task, report.tasks, report.is_drained) == (1, 2, False)
    assert reconcile_reports(report.rows).rows == 0
    assert (report.query_id, report.batch_id) == ("query", 5)


def test_a_drained_batch_runs_its_plan_and_writes_nothing(task: Task) -> None:
    batches = with_trailer(iter([packed()]), ATTEMPT, 2, "cluster")
    report = task.run(batches, verdict=Verdict.DRAIN)
    assert (report.is_drained, report.rows) == (True, [])
    assert next(batches, None) is None
    assert task.state() == "Empty"


def test_a_second_attempt_reads_nothing(task: Task) -> None:
    batches = empty()
    with pytest.raises(CountsDisagree, match="for a second time"):
        task.run(batches, replace(PLACE, attempt=Attempt(1, 1, 17)))
    assert next(batches) is not None


def test_outside_of_a_barrier_stage_only_a_batch_write_may_get_nothing(task: Task) -> None:
    outside = replace(PLACE, tasks=0)
    report = task.run(iter(()), outside, may_be_empty=True)
    assert (report.tasks, report.rows) == (0, [])
    with pytest.raises(SinkRefused, match=r"route\(\) must be the last step"):
        task.run(iter(()), outside)
    with pytest.raises(SinkRefused, match=r"route\(\) .* the write is not in its barrier stage"):
        task.run(empty(), outside, may_be_empty=True)


def test_rows_for_another_slot_abort_the_transaction(task: Task) -> None:
    batches = with_trailer(iter([packed()]), Attempt(0, 0, 17), 2, "cluster")
    with pytest.raises(CountsDisagree, match=r"If a step follows route\(\), remove it"):
        task.run(batches, replace(PLACE, attempt=Attempt(0, 0, 17)))
    assert task.state() != "Ongoing"


def test_a_task_that_learns_at_the_end_that_rows_are_missing_aborts_what_it_wrote(
    task: Task, cluster: Cluster
) -> None:
    topic = task.name
    one = build_batch([Record(value=b"a")], timestamp_ms=1, codec=0, transactional=True)
    row = packed(1).to_pylist()[0] | {"topic": topic, "payload": bytes(one)}
    batch = pa.RecordBatch.from_pylist([row], schema=PACKED_COLUMNS)
    rows, _ = with_trailer(iter([batch]), ATTEMPT, 2, "cluster")

    def until_written() -> Iterator[Any]:
        yield rows
        chaos.await_truth(lambda: task.state() == "Ongoing")
        # As after a limit: the trailer does not come.

    with pytest.raises(SinkRefused, match=r"route\(\) must be the last step"):
        task.run(until_written())
    assert task.state() == "CompleteAbort"
    assert read_values(cluster, topic) == []
