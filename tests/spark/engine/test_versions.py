"""What differs before Spark 4.0, on fakes; and what the engine of every version tells the sink."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.spark.doors.route import route
from fencepost.spark.engine import versions
from fencepost.spark.engine.micro_batch import MicroBatch, read_micro_batch
from fencepost.spark.engine.session import is_connect
from fencepost.spark.engine.stored_batch import read_connect_batch
from fencepost.spark.failures import SinkRefused
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


class Session35:
    """A Connect session of Spark 3.5: it raises another error than that of a missing attribute."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise NotImplementedError("[NOT_IMPLEMENTED] sparkContext is not implemented.")


@pytest.fixture
def on_35(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("engine.versions", "engine.stored_batch", "doors.route"):
        monkeypatch.setattr(f"fencepost.spark.{place}.is_before_4", lambda: True)


@pytest.mark.parametrize(
    ("version", "numbers"), [("3.5.9", (3, 5)), ("4.3.0", (4, 3)), ("4.1.0.dev1", (4, 1))]
)
def test_a_version_is_compared_by_its_first_two_numbers(
    version: str, numbers: tuple[int, ...]
) -> None:
    assert versions.numbers_of(version) == numbers


@pytest.mark.usefixtures("on_35")
def test_before_4_the_batch_is_in_the_run_itself() -> None:
    run = SimpleNamespace(
        currentBatchId=lambda: 7, committedOffsets=lambda: "start", availableOffsets=lambda: "end"
    )
    found = versions.current_batch(run)
    assert (found.batchId(), found.startOffsets(), found.endOffsets()) == (7, "start", "end")


@pytest.mark.usefixtures("on_35")
def test_before_4_a_run_without_a_batch_has_no_session_yet() -> None:
    assert versions.session_of_run(SimpleNamespace(lastExecution=lambda: None)) is None
    last = SimpleNamespace(sparkSession=lambda: "cloned")
    assert versions.session_of_run(SimpleNamespace(lastExecution=lambda: last)) == "cloned"


@pytest.mark.usefixtures("on_35")
@pytest.mark.parametrize(("given", "used"), [("10000", "256"), ("100", "100"), ("0", "256")])
def test_before_4_python_gets_few_rows_at_once_or_fewer_if_the_user_says_so(
    given: str, used: str
) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    conf: Any = {name: given}
    assert versions.arrow_limit(conf) == (name, used)


@pytest.mark.usefixtures("on_35")
def test_before_4_spark_connect_is_refused_by_name() -> None:
    session: Any = Session35()
    assert is_connect(session)
    with pytest.raises(SinkRefused, match=r"does not run on Spark Connect before Spark 4\.0"):
        read_connect_batch(session, 0, "/checkpoint")


@pytest.mark.usefixtures("on_35")
def test_before_4_route_names_what_to_use_instead() -> None:
    rows: Any = None
    with pytest.raises(SinkRefused, match=r"needs Spark 4\.1 or newer.*TransactionalSink"):
        route(rows, "localhost:9092", topic="t")


def test_the_engine_tells_the_offsets_of_a_batch_and_the_options_of_its_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    found: list[MicroBatch] = []
    is_done = threading.Event()

    def look(df: DataFrame, batch_id: int) -> None:
        if is_done.is_set():
            return
        batch = read_micro_batch(df.sparkSession, batch_id)
        batch.check_batch()
        (options,) = batch.source_options()
        assert options is not None
        assert options["rowsPerBatch"] == "3"
        assert batch.is_stateful is False
        assert batch.start_offsets == (found[-1].end_offsets if found else ())
        assert batch.end_offsets not in ((), batch.start_offsets)
        with ThreadPoolExecutor() as pool:
            other = pool.submit(read_micro_batch, df.sparkSession, batch_id).result()
        assert (other.run, other.is_foreign) == (batch.run, True)
        found.append(batch)
        if len(found) > 2:
            is_done.set()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()
    query = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path)).start()
    is_done.wait(60)
    failure = query.exception()
    query.stop()
    assert failure is None
    assert [batch.batch_id for batch in found] == [0, 1, 2]
