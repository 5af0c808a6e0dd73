"""Whatever would break the guarantee is refused before the first batch. Fakes, no Java."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.spark.doors.checks import check_session, claim_id
from fencepost.spark.engine.session import allows_barrier, most_tasks
from fencepost.spark.engine.workers_python import workers_python
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView
from fencepost.spark.ledger.rule import Batch, Overrides
from fencepost.spark.sentences import sentence_in
from fencepost.spark.settings import read_settings

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.errors import PySparkAttributeError

from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.transaction.sparing import check_ledger
from fencepost.spark.ways.direct import run_direct
from fencepost.spark.ways.stage import choose_slots


def session(version: str = "4.2.0", slots: int = 2, **conf: str) -> Any:
    """The part of a SparkSession that the checks read."""
    values = {name.replace("_", "."): value for name, value in conf.items()}
    jvm = SimpleNamespace(
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
        maxNumConcurrentTasks=lambda profile: slots,
    )
    context = SimpleNamespace(
        _conf=values, master="local[2]", pythonExec="python3", _jsc=SimpleNamespace(sc=lambda: jvm)
    )
    return SimpleNamespace(version=version, sparkContext=context)


@pytest.mark.parametrize(
    "given",
    [
        session(spark_network_crypto_enabled="true"),
        session(spark_network_crypto_enabled="True"),
        session(spark_authenticate_enableSaslEncryption="true"),
    ],
)
def test_rows_are_not_sent_over_plain_sockets_if_spark_encrypts(given: Any) -> None:
    rows: Any = SimpleNamespace(sparkSession=given)
    plan: Any = SimpleNamespace(settings=read_settings("localhost:9092", {}))
    assert run_direct(rows, plan) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (session("3.4.4"), "needs Spark 3.5"),
        (session(spark_speculation="true"), r"spark\.speculation is true"),
        (session(spark_speculation="True"), r"spark\.speculation is true"),
        (
            session(
                spark_dynamicAllocation_enabled="true",
                spark_speculation="true",
                spark_master="spark://host:7077",
            ),
            r"spark\.speculation is true",
        ),
        (session(slots=0), "at least one free core"),
    ],
)
def test_a_session_that_cannot_guarantee_exactly_once_is_refused(
    given: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.spark.doors.checks.EXECUTOR_WAIT_SECONDS", 0.0)
    with pytest.raises(SinkRefused, match=named):
        check_session(given)


@pytest.mark.parametrize("spelled", ["true", " TRUE"])
def test_under_dynamic_allocation_no_executor_needs_to_be_there_yet(spelled: str) -> None:
    master = "spark://host:7077"
    check_session(session(slots=0, spark_dynamicAllocation_enabled=spelled, spark_master=master))


@pytest.mark.parametrize(
    ("master", "enabled", "allowed"),
    [
        ("spark://host:7077", "true", False),
        ("local-cluster[2,1,1024]", "true", False),
        ("yarn", "true", False),
        ("local[2]", "true", True),
        ("local", "true", True),
        ("spark://host:7077", "false", True),
    ],
)
def test_barrier_stages_run_unless_dynamic_allocation_is_in_effect(
    master: str, enabled: str, allowed: bool
) -> None:
    """Spark refuses them with SPARK-24942; in local mode it ignores the setting."""
    given = session(spark_dynamicAllocation_enabled=enabled, spark_master=master)
    assert allows_barrier(given) is allowed


@pytest.mark.parametrize(
    ("settings", "partitions", "slots"),
    [
        # As many tasks as all executors have cores, at most one per partition.
        ({"maxExecutors": "3", "cores": "4"}, 100, 12),
        ({"maxExecutors": "3", "cores": "4"}, 5, 5),
        ({"maxExecutors": "3", "cores": "4", "cpus": "2"}, 100, 6),
        ({"maxExecutors": "3", "cores": "4"}, 0, 12),
        # No limit, or an unknown one: as many as Spark has partitions after a shuffle.
        ({}, 100, 7),
        ({"maxExecutors": "infinity", "cores": "4"}, 100, 7),
        ({"maxExecutors": "3"}, 100, 7),
        ({}, 5, 5),
    ],
)
def test_under_dynamic_allocation_the_write_stage_is_planned_for_all_executors(
    settings: dict[str, str], partitions: int, slots: int
) -> None:
    names = {
        "maxExecutors": "spark_dynamicAllocation_maxExecutors",
        "cores": "spark_executor_cores",
        "cpus": "spark_task_cpus",
    }
    conf = {names[name]: value for name, value in settings.items()}
    given = session(
        slots=1, spark_dynamicAllocation_enabled="true", spark_master="spark://host:7077", **conf
    )
    given.conf = {"spark.sql.shuffle.partitions": "7"}
    assert choose_slots(given, {"t": partitions} if partitions else {}) == slots


def test_executors_on_yarn_have_one_core_unless_set() -> None:
    assert most_tasks(session(spark_master="yarn", spark_dynamicAllocation_maxExecutors="3")) == 3


def test_the_check_waits_for_executors_to_register() -> None:
    given = session()
    answers = iter([0, 0, 2])
    given.sparkContext._jsc.sc().maxNumConcurrentTasks = lambda profile: next(answers)
    check_session(given)
    assert next(answers, None) is None


def test_local_workers_run_the_drivers_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = session()
    with workers_python(given):
        assert given.sparkContext.pythonExec == sys.executable
    assert given.sparkContext.pythonExec == "python3"


class ConnectSession:
    """The part of a Spark Connect session that the sink uses; a real one needs grpc."""

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name}
        )


def test_a_spark_connect_session_is_refused() -> None:
    sink = TransactionalSink("localhost:9092", transactional_id="id", topic="out")
    rows: Any = SimpleNamespace(sparkSession=ConnectSession())
    with pytest.raises(SinkRefused, match="Spark Connect"):
        sink(rows, 0)


class Alive:
    """A fake of the engine's object of a query, running or stopped."""

    def __init__(self, active: bool) -> None:
        self.active = active

    def isActive(self) -> bool:  # noqa: N802
        return self.active


def test_two_live_queries_cannot_share_a_transactional_id() -> None:
    settings = read_settings("localhost:9092", {})
    engine = Alive(active=True)
    claim_id("shared", settings, MicroBatch("one", "r", 0, engine))
    claim_id("shared", settings, MicroBatch("one", "s", 5))
    claim_id("shared", settings, MicroBatch("one", "s", 6, engine))
    with pytest.raises(SinkRefused, match="give each query its own transactional_id"):
        claim_id("shared", settings, MicroBatch("two", "r", 0))
    engine.active = False
    claim_id("shared", settings, MicroBatch("two", "r", 0))


class FakeStore(LedgerStore):
    """A ledger at the first read and at later ones, and the state of the transactional id."""

    transactional_id = "id"

    def __init__(
        self,
        now: LedgerEntry | None,
        settled: LedgerEntry | None = None,
        state: str = "",
        undecided: tuple[LedgerEntry | None, ...] = (),
    ) -> None:
        super().__init__(read_settings("localhost:9092", {}).client, "id")
        self._now, self._settled, self._state = now, settled, state
        self._undecided = undecided
        self._reads = 0

    @property
    def wait_seconds(self) -> float:
        return 0.0

    def peek(self) -> LedgerView:
        self._reads += 1
        entry = self._now if self._reads == 1 else self._settled
        if entry == UNSETTLED:
            return LedgerView(PLACE, self._now, self._undecided)
        return LedgerView(None if entry is None else PLACE, entry)

    def state_of_id(self) -> str | None:
        return self._state or None


PLACE = TopicPartition("fencepost-ledger", 0)
UNSETTLED = LedgerEntry("a query with an open transaction", 0)


@pytest.mark.parametrize(
    ("store", "batch", "named"),
    [
        (FakeStore(LedgerEntry("p", 3), LedgerEntry("p", 3)), 0, "belongs to query p"),
        (
            FakeStore(LedgerEntry("q", 7), LedgerEntry("q", 8)),
            4,
            "in the topics is 8, which is newer",
        ),
        # The other query is in the middle of a batch: refused whatever its outcome.
        (
            FakeStore(LedgerEntry("p", 3), UNSETTLED, undecided=(LedgerEntry("p", 4),)),
            0,
            "belongs to query p",
        ),
        (FakeStore(None, None), 4, "has no ledger of this transactional_id"),
        (FakeStore(None, None, "CompleteCommit"), 0, "but has no ledger of it"),
    ],
)
def test_an_id_owned_by_another_query_is_refused_before_its_owner_is_fenced(
    store: FakeStore, batch: int, named: str
) -> None:
    with pytest.raises(SinkRefused, match=named):
        check_ledger(store, Batch("q", batch))


@pytest.mark.parametrize(
    ("store", "batch"),
    [
        # Committed, with markers not written yet.
        (FakeStore(LedgerEntry("p", 3), LedgerEntry("q", 0)), 1),
        (FakeStore(None, LedgerEntry("q", 3)), 4),
        (FakeStore(None, LedgerEntry("q", 0), "PrepareCommit"), 0),
        # Our own batch, or a tombstone, may turn out to be committed.
        (FakeStore(LedgerEntry("p", 3), UNSETTLED, undecided=(LedgerEntry("q", 0),)), 1),
        (FakeStore(LedgerEntry("p", 3), UNSETTLED, undecided=(None,)), 0),
        # A driver died before its first commit.
        (FakeStore(None, None, "Empty"), 0),
        (FakeStore(None, None, "Ongoing"), 0),
        (FakeStore(None, None, "CompleteAbort"), 0),
        (FakeStore(None, None), 0),
    ],
)
def test_nothing_that_the_fence_may_still_change_is_refused_before_it(
    store: FakeStore, batch: int
) -> None:
    check_ledger(store, Batch("q", batch))


def test_a_query_with_may_skip_is_refused_if_its_ledger_is_lost() -> None:
    """The first batch with rows may come late. But an id that has committed has a ledger."""
    overrides = Overrides(may_skip=True)
    check_ledger(FakeStore(None, None), Batch("q", 7), overrides=overrides)
    check_ledger(FakeStore(None, None, "Empty"), Batch("q", 7), overrides=overrides)
    lost = FakeStore(None, None, "CompleteCommit")
    with pytest.raises(SinkRefused, match="cannot tell whether batch 7 is in the topics"):
        check_ledger(lost, Batch("q", 7), overrides=overrides)


def test_adopt_overrides_a_lost_ledger() -> None:
    store = FakeStore(None, None, "CompleteCommit")
    check_ledger(store, Batch("q", 0), overrides=Overrides(adopt=True))


def test_a_stateful_query_with_adopt_is_refused_before_the_owner_is_fenced() -> None:
    store = FakeStore(LedgerEntry("p", 3), LedgerEntry("p", 3))
    batch = Batch("q", 0, is_stateful=True)
    with pytest.raises(SinkRefused, match="allow_empty_state=True"):
        check_ledger(store, batch, overrides=Overrides(adopt=True))
    check_ledger(store, batch, overrides=Overrides(adopt=True, allow_empty_state=True))


def test_the_ledger_topic_cannot_be_an_output_topic() -> None:
    for topic, ledger in [("fencepost-ledger", None), ("mine", "mine")]:
        with pytest.raises(ConfigError, match="rows cannot go there"):
            TransactionalSink(
                "localhost:9092", transactional_id="id", topic=topic, ledger_topic=ledger
            )


def test_a_tasks_message_is_extracted_from_sparks_error() -> None:
    text = (
        "Job aborted\n  File x\nfencepost.spark.failures.RowRefused: a row has no topic: fill it\n"
        "\tat org.apache.spark.Foo\nSQLSTATE: 39000"
    )
    assert sentence_in(text) == "a row has no topic: fill it"
    assert sentence_in("other\n\tat somewhere\nend") == "other\nend"
