"""Goal: a task of the writer accepts the report of its own step only, where it runs once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.types import StructType  # noqa: E402

from fencepost.client.transactions import ProducerIdentity  # noqa: E402
from fencepost.spark.failures import CountsDisagree, SinkRefused  # noqa: E402
from fencepost.spark.format.task import (  # noqa: E402
    TaskPlace,
    TaskReport,
    check_routed,
    routed_columns,
    run_task,
)
from fencepost.spark.sink.ledger.decision import Verdict  # noqa: E402
from fencepost.spark.transport.delivery import REPORT_COLUMNS, Attempt  # noqa: E402
from fencepost.spark.transport.meeting.hand_over import (  # noqa: E402
    Orders,
    make_token,
    take_orders,
)

IDENTITY = ProducerIdentity("refunds", 7, 3, 2)
PLACE = TaskPlace(Attempt(0, 0, 17), 1, "query", 5, 3)


class Plan(NamedTuple):
    identity: ProducerIdentity = IDENTITY
    cluster_id: str = "cluster"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Step:
    """The step before the writer: takes its orders when Spark asks it for rows."""

    def __init__(self, reported_attempt: int = 17) -> None:
        self.token = make_token()
        self.orders: Orders | None = None
        self._reported_attempt = reported_attempt

    def reports(self) -> Iterator[Any]:
        self.orders = take_orders(self.token, PLACE.attempt, 1.0)
        row = dict.fromkeys(REPORT_COLUMNS.names)
        rows = [row | {"task_attempt_id": self._reported_attempt, "manifest": "{}"}]
        yield pa.RecordBatch.from_pylist(rows, schema=REPORT_COLUMNS)

    def run(self, verdict: Verdict = Verdict.WRITE, place: TaskPlace = PLACE) -> TaskReport:
        return run_task(Plan(), lambda: verdict, place, self.reports(), self.token)


@pytest.mark.parametrize("verdict", [Verdict.WRITE, Verdict.DRAIN])
def test_the_step_is_told_what_to_do_and_its_report_is_passed_on(verdict: Verdict) -> None:
    step = Step()
    report = step.run(verdict)
    is_drained = verdict is Verdict.DRAIN
    assert step.orders == Orders(IDENTITY, is_drained, "cluster")
    assert (report.is_drained, report.task, report.tasks) == (is_drained, 0, 1)
    assert [row["manifest"] for row in report.rows] == ["{}"]


def test_a_report_of_another_task_is_refused() -> None:
    with pytest.raises(CountsDisagree, match=r"a report of another task \(16\) came"):
        Step(reported_attempt=16).run()


def test_a_second_attempt_hands_nothing_over() -> None:
    step = Step()
    with pytest.raises(CountsDisagree, match="for a second time"):
        step.run(place=replace(PLACE, attempt=Attempt(0, 1, 17)))
    assert step.orders is None


def test_outside_of_a_barrier_stage_there_may_be_no_rows() -> None:
    place, token = replace(PLACE, tasks=0), make_token()
    report = run_task(Plan(), lambda: Verdict.WRITE, place, iter(()), token)
    assert (report.tasks, report.rows) == (0, [])
    rows = pa.RecordBatch.from_pylist([{}, {}], schema=REPORT_COLUMNS)
    with pytest.raises(SinkRefused, match="the write is not in a barrier stage"):
        run_task(Plan(), lambda: Verdict.WRITE, place, iter([rows]), token)


def test_a_refusal_is_raised_and_reaches_the_step() -> None:
    step = Step()

    def refuse() -> Verdict:
        raise SinkRefused("two queries use one id")

    with pytest.raises(SinkRefused, match="two queries"):
        run_task(Plan(), refuse, PLACE, step.reports(), step.token)
    assert step.orders is not None
    assert step.orders.refusal == "two queries use one id"


def test_only_what_route_returns_has_a_token() -> None:
    columns = routed_columns("abc")
    assert check_routed(columns) == "abc"
    # As in the process that plans: columns travel as JSON.
    assert check_routed(StructType.fromJson(columns.jsonValue())) == "abc"
    for other in (StructType(), StructType(columns.fields[1:]), StructType(columns.fields[:-1])):
        with pytest.raises(SinkRefused, match="the rows are not packed"):
            check_routed(other)
