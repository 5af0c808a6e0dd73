"""What would break the promise is refused before the first batch. The session is played, so no Java is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.spark.checks import check_session, claim_id
from fencepost.spark.failures import SinkRefused, sentence_of
from fencepost.spark.settings import read_settings

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.spark.moment import Moment


def session(version: str = "4.2.0", slots: int = 2, **conf: str) -> Any:
    """As much of a SparkSession as the checks look at."""
    values = {name.replace("_", "."): value for name, value in conf.items()}
    jvm = SimpleNamespace(
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
        maxNumConcurrentTasks=lambda profile: slots,
    )
    context = SimpleNamespace(
        getConf=lambda: values,
        master="local[2]",
        pythonExec="python3",
        _jsc=SimpleNamespace(sc=lambda: jvm),
    )
    return SimpleNamespace(version=version, sparkContext=context)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (session("4.1.1"), "needs Spark 4.2"),
        (session(spark_speculation="true"), r"spark\.speculation is true"),
        (session(spark_dynamicAllocation_enabled="true"), r"dynamicAllocation\.enabled is true"),
        (session(slots=0), "at least one free core"),
    ],
)
def test_a_session_that_cannot_keep_the_promise_is_refused(given: Any, named: str) -> None:
    with pytest.raises(SinkRefused, match=named):
        check_session(given)


def test_workers_of_this_machine_run_the_drivers_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = session()
    check_session(given)
    assert given.sparkContext.pythonExec != "python3"


class Alive:
    """The engine's object of a query that runs, or has stopped."""

    def __init__(self, active: bool) -> None:
        self.active = active

    def isActive(self) -> bool:  # noqa: N802
        return self.active


def test_two_live_queries_cannot_share_a_transactional_id() -> None:
    settings = read_settings("localhost:9092", {})
    engine = Alive(active=True)
    claim_id("shared", settings, Moment("one", "r", 0, (), (), engine))
    claim_id("shared", settings, Moment("one", "s", 5))
    claim_id("shared", settings, Moment("one", "s", 6, (), (), engine))
    with pytest.raises(SinkRefused, match="give each query its own transactional_id"):
        claim_id("shared", settings, Moment("two", "r", 0))
    engine.active = False
    claim_id("shared", settings, Moment("two", "r", 0))


def test_what_a_task_said_is_found_in_what_spark_makes_of_it() -> None:
    text = (
        "Job aborted\n  File x\nfencepost.spark.failures.RowRefused: a row has no topic: fill it\n"
        "\tat org.apache.spark.Foo\nSQLSTATE: 39000"
    )
    assert sentence_of(RuntimeError(text)) == "a row has no topic: fill it"
    assert sentence_of(RuntimeError("other\n\tat somewhere\nend")) == "other\nend"
