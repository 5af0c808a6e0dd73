"""PostgresSink in a query: what the table holds in the end, and what is refused."""

from __future__ import annotations

import datetime as dt
import logging
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencepost.base.failures import ConfigError
from fencepost.outside.failures import DatabaseRefused
from fencepost.spark import PostgresSink
from fencepost.spark.failures import SinkRefused
from fencepost.spark.sentences import reason_in
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import on_spark
from tests.spark.ledger.copying import edit, offsets_of
from tests.spark.pipeline import Pipeline, numbered
from tests.spark.postgres.stage import Stage
from tests.spark.queries.cases import counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


def reason(stage: Pipeline, sink: Any = None, *more: Any) -> str:
    failure = stage.run(sink, *more)
    assert failure is not None
    return reason_in(failure)


def test_every_row_is_in_the_table_once_and_a_new_start_goes_on(stage: Stage) -> None:
    stage.add(numbered(0), numbered(1))
    assert stage.run() is None
    stage.add(numbered(2))
    assert stage.run() is None
    assert stage.values() == sorted([*numbered(0), *numbered(1), *numbered(2)])
    assert stage.stages() == 0
    assert stage.query("SELECT sink_id, batch_id FROM fencepost_ledger") == [("lines", 2)]


TYPES = {
    "a_bool": ("boolean", "true", True),
    "a_byte": ("smallint", "CAST(-7 AS BYTE)", -7),
    "a_short": ("integer", "CAST(300 AS SHORT)", 300),
    "an_int": ("integer", "CAST(70000 AS INT)", 70000),
    "a_long": ("bigint", "CAST(9007199254740993 AS LONG)", 9007199254740993),
    "a_decimal": ("numeric(20, 4)", "CAST(12345678901234.5678 AS DECIMAL(20, 4))", None),
    "a_float": ("real", "CAST(0.5 AS FLOAT)", 0.5),
    "a_double": ("double precision", "CAST(0.1 AS DOUBLE)", 0.1),
    "a_text": ("text", "'tab\\t line\\n back\\\\ é'", "tab\t line\n back\\ é"),
    "a_json": ("jsonb", "to_json(named_struct('x', array(1, 2)))", {"x": [1, 2]}),
    "some_bytes": ("bytea", "X'00FF5C'", b"\x00\xff\\"),
    "a_date": ("date", "DATE'1582-10-04'", dt.date(1582, 10, 4)),
    "an_instant": (
        "timestamptz",
        "TIMESTAMP'2026-03-08 02:30:00.000001 UTC'",
        dt.datetime(2026, 3, 8, 2, 30, 0, 1, dt.UTC),
    ),
    "a_local_time": (
        "timestamp",
        "TIMESTAMP_NTZ'2026-03-08 02:30:00.000001'",
        dt.datetime(2026, 3, 8, 2, 30, 0, 1),  # noqa: DTZ001
    ),
    "an_array": ("text[]", "array('a,b', NULL, '\"', '')", ["a,b", None, '"', ""]),
    "a_null": ("uuid", "NULL", None),
    "a_null_text": ("text", "CAST(NULL AS STRING)", None),
}


def test_every_type_of_spark_that_has_one_in_postgresql_keeps_its_value(stage: Stage) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    stage.execute(f"CREATE TABLE typed ({columns})")
    stage.table = "typed"
    stage.add(["one"])
    expressions = [f"{sql} AS {name}" for name, (_, sql, _) in TYPES.items()]
    assert stage.run(None, lambda lines: lines.selectExpr(*expressions)) is None
    found = dict(zip(TYPES, stage.query("SELECT * FROM typed")[0], strict=True))
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    assert found == expected | {"a_decimal": Decimal("12345678901234.5678")}


def keyed(lines: DataFrame) -> DataFrame:
    """`key,number` as columns, in several partitions."""
    return lines.selectExpr(
        "split(value, ',')[0] AS key", "CAST(split(value, ',')[1] AS INT) AS n"
    ).repartition(2)


def test_an_upsert_keeps_the_newest_row_of_each_key_over_partitions_and_batches(
    stage: Stage,
) -> None:
    stage.execute("CREATE TABLE states (key text PRIMARY KEY, n int, seen int DEFAULT 1)")
    stage.table = "states"
    stage.add(["a,1", "b,5", "a,3", "a,2"], ["b,2", "c,1"])
    assert stage.run(stage.sink(mode="upsert", order="n"), keyed) is None
    assert sorted(stage.query("SELECT * FROM states")) == [("a", 3, 1), ("b", 2, 1), ("c", 1, 1)]
    # Without an order, two rows of a key are refused.
    stage.add(["c,7", "c,8"])
    assert "pass order=" in reason(stage, stage.sink(mode="upsert", key="key"), keyed)
    assert stage.query("SELECT n FROM states WHERE key = 'c'") == [1]


STEPS = ("staging", "staged", "copied", "locked", "merged", "committing", "committed", "dropped")


def test_postgresql_is_killed_at_every_step(spark: Any, tmp_path: Any) -> None:
    with PostgresServer() as server:
        stage = Stage(spark, server.dsn(), tmp_path)
        lines = [numbered(batch) for batch in range(len(STEPS))]
        stage.add(*lines)
        reached: list[tuple[str, int]] = []

        def kill(step: str, batch: int) -> None:
            if step == STEPS[batch] and (step, batch) not in reached:
                server.kill()
                server.start()
            reached.append((step, batch))

        assert stage.run(stage.sink(on_step=kill)) is None
        assert {(step, batch) for batch, step in enumerate(STEPS)} <= {*reached}
        # Staging was empty after the copy, and the batch was copied again.
        assert reached.count(("copied", 2)) == 2
        assert stage.values() == sorted(line for batch in lines for line in batch)
        assert stage.stages() == 0


def test_rows_that_staging_lost_are_copied_again(stage: Stage) -> None:
    stage.add(numbered(0))
    copies = []

    def lose(step: str, _: int) -> None:
        if step != "copied":
            return
        (name,) = stage.query(
            "SELECT relname FROM pg_class WHERE relname LIKE 'fencepost\\_stage\\_%%'"
        )
        copies.append(name)
        if len(copies) == 1:
            stage.execute(f"DELETE FROM {name} WHERE value = '0-7'")

    assert stage.run(stage.sink(on_step=lose)) is None
    assert len(copies) == 2
    assert stage.values() == sorted(numbered(0))


@pytest.mark.parametrize("takes_place", [True, False])
def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, takes_place: bool
) -> None:
    stage.add(numbered(0), numbered(1))
    genuine = psycopg.Connection.commit
    steps: list[str] = []

    def commit(connection: Any) -> None:
        if steps[-1:] == ["committing"] and steps.count("committing") == 2:
            if takes_place:
                genuine(connection)
            connection.close()
            raise psycopg.OperationalError("the connection was lost")
        genuine(connection)

    monkeypatch.setattr(psycopg.Connection, "commit", commit)
    assert stage.run(stage.sink(on_step=lambda step, _: steps.append(step))) is None
    assert steps.count("draining") == takes_place
    assert stage.values() == sorted([*numbered(0), *numbered(1)])


def test_a_new_checkpoint_is_refused_until_it_is_said_whom_it_follows(stage: Stage) -> None:
    stage.add(numbered(0))
    assert stage.run() is None
    stage.checkpoint = stage.folder / "another"
    (owner,) = stage.query("SELECT query_id FROM fencepost_ledger")
    sentence = reason(stage)
    assert "sink_id 'lines': the sink_id belongs to query" in sentence
    assert f'take_over="{owner}"' in sentence
    assert stage.values() == sorted(numbered(0))
    # With another id it is another sink, and writes what it reads.
    assert stage.run(stage.sink(sink_id="second")) is None
    assert stage.values() == sorted([*numbered(0), *numbered(0)])


def test_an_edited_checkpoint_is_refused_until_it_is_restored(stage: Stage) -> None:
    stage.add(numbered(0), numbered(1))
    assert stage.run() is None
    kept = offsets_of(stage.checkpoint, 1).read_text()
    edit(stage.checkpoint, 1, lambda offset: offset | {"logOffset": 0})
    stage.add(numbered(2))
    assert "does not begin where batch 1, the last one in the table, ended" in reason(stage)
    assert stage.values() == sorted(numbered(0) + numbered(1))
    offsets_of(stage.checkpoint, 1).write_text(kept)
    offsets_of(stage.checkpoint, 2).unlink(missing_ok=True)
    assert stage.run() is None
    assert stage.values() == sorted(numbered(0) + numbered(1) + numbered(2))


def test_a_database_of_before_is_refused(stage: Stage) -> None:
    stage.add(numbered(0), numbered(1))
    backup: list[Any] = []

    def back_up(step: str, batch: int) -> None:
        if (step, batch) == ("staging", 1):
            backup.extend(stage.query("SELECT query_id, batch_id, entry FROM fencepost_ledger"))

    assert stage.run(stage.sink(on_step=back_up)) is None
    stage.execute("DELETE FROM lines WHERE key LIKE '1-%%'")
    stage.execute(
        "UPDATE fencepost_ledger SET query_id = %s, batch_id = %s, entry = %s", *backup[0]
    )
    stage.add(numbered(2))
    sentence = reason(stage)
    assert "the last batch of this query in the table is 0" in sentence
    assert "the checkpoint continues with batch 2" in sentence
    stage.execute("DELETE FROM fencepost_ledger")
    assert "the database has no ledger row of this sink" in reason(stage)
    assert stage.values() == sorted(numbered(0))


def test_state_is_kept_when_its_batch_was_in_the_table_already(stage: Stage) -> None:
    stage.execute("CREATE TABLE counted (key text, value text)")
    stage.table = "counted"
    stage.add(["a", "b"])
    genuine = stage.sink()

    def die_afterwards(df: Any, batch: int) -> None:
        genuine(df, batch)
        raise RuntimeError("the driver is gone")

    assert stage.run(die_afterwards, counts, "update") is not None
    stage.add(["a"])
    assert stage.run(None, counts, "update") is None
    assert stage.values() == ["a=1", "a=2", "b=1"]


def test_a_second_call_and_a_caught_failure_are_refused_also_after_a_restart(
    stage: Stage,
) -> None:
    stage.add(numbered(0))
    sink = stage.sink()

    def twice(df: DataFrame, batch: int) -> None:
        sink(df.limit(3), batch)
        sink(df, batch)

    assert "union the DataFrames of a batch into one call" in reason(stage, twice)
    assert "the rows of its first call only" in reason(stage)
    assert len(stage.values()) == 3


def test_other_sessions_of_another_driver_decide_the_batch_first(stage: Stage) -> None:
    """The other driver commits between the copy and the merge."""
    stage.add(numbered(0), numbered(1))

    def overtake(step: str, batch: int) -> None:
        if (step, batch) == ("copied", 1):
            stage.execute("INSERT INTO lines SELECT 'x', '1-' || n FROM generate_series(0, 39) n")
            stage.execute(
                "UPDATE fencepost_ledger SET batch_id = 1, entry = jsonb_set(jsonb_set("
                "entry::jsonb - 'fingerprint', '{batchId}', '1'), '{runId}', '\"other\"')::text"
            )

    assert stage.run(stage.sink(on_step=overtake)) is None
    assert stage.values() == sorted([*numbered(0), *numbered(1)])
    assert stage.stages() == 0


def test_bad_input_is_one_sentence_and_writes_nothing(stage: Stage, postgres: Any) -> None:
    stage.add(numbered(0))
    name = stage.query("SELECT current_database()")[0]
    stage.execute("CREATE TABLE strict (key int, value text)")
    stage.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'could not extend file' USING ERRCODE = '53100'; END $$"
    )
    stage.execute("CREATE TABLE crowded (key text, value text)")
    stage.execute("CREATE TRIGGER full_disk BEFORE INSERT ON crowded EXECUTE FUNCTION full_disk()")
    read_only = postgres.dsn(database=name, options="'-c default_transaction_read_only=on'")
    cases = {
        "nothing listens there": PostgresSink("host=127.0.0.1 port=1 password=hush", "lines"),
        "does not exist; create it first": PostgresSink(postgres.dsn(database="nowhere"), "lines"),
        "is read-only": PostgresSink(read_only, "lines"),
        "the database has no table nothing": PostgresSink(stage.dsn, "nothing"),
        "column 'key' is text in the rows and integer in": PostgresSink(stage.dsn, "strict"),
        "has no primary key": PostgresSink(stage.dsn, "lines", mode="upsert"),
        "its disk is full: make room there": PostgresSink(stage.dsn, "crowded"),
        "no column 'at', which key= or order= names": PostgresSink(stage.dsn, "lines", order="at"),
    }
    for sentence, sink in cases.items():
        found = reason(stage, sink)
        assert sentence in found
        assert "\n" not in found
        assert "hush" not in found
    tables = ("lines", "strict", "crowded")
    assert [stage.query(f"SELECT count(*) FROM {table}") for table in tables] == [[0]] * 3
    # Nothing of it is in the way of a sink that is right.
    assert stage.run() is None
    assert stage.values() == sorted(numbered(0))
    assert stage.stages() == 0


def test_a_value_that_does_not_fit_and_types_without_one_are_named(stage: Stage) -> None:
    stage.execute("CREATE TABLE small (n smallint)")
    stage.table = "small"
    stage.add(["x"])
    found = reason(stage, None, lambda lines: lines.selectExpr("70000 AS n"))
    assert "on an executor: PostgreSQL at 127.0.0.1" in found
    assert 'COPY failed: value "70000" is out of range for type smallint' in found
    assert 'line 1, column n: "70000"' in found
    found = reason(stage, None, lambda lines: lines.selectExpr("struct(value) AS n"))
    assert "column 'n' is struct<value:string>, which has no type in PostgreSQL" in found
    found = reason(stage, None, lambda lines: lines.selectExpr("1 AS n", "2 AS n"))
    assert "two columns 'n'" in found
    assert stage.query("SELECT * FROM small") == []


def test_a_row_that_the_table_refuses_is_named_with_its_key(stage: Stage) -> None:
    stage.execute("CREATE TABLE once (n int PRIMARY KEY)")
    stage.execute("INSERT INTO once VALUES (7)")
    stage.table = "once"
    stage.add(["x"])
    found = reason(stage, None, lambda lines: lines.selectExpr("7 AS n"))
    assert 'duplicate key value violates unique constraint "once_pkey"' in found
    assert "Key (n)=(7) already exists" in found
    assert stage.query("SELECT * FROM once") == [7]


def test_a_table_that_changed_under_the_query_is_refused_by_name(stage: Stage) -> None:
    stage.add(numbered(0), numbered(1))

    def change(step: str, batch: int) -> None:
        if (step, batch) == ("dropped", 0):
            stage.execute("ALTER TABLE lines RENAME COLUMN key TO name")

    assert "public.lines has no column 'key'" in reason(stage, stage.sink(on_step=change))
    stage.execute("ALTER TABLE lines RENAME COLUMN name TO key")
    assert stage.run() is None
    assert stage.values() == sorted([*numbered(0), *numbered(1)])


def test_a_password_is_in_no_plan_log_or_exception(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.execute("CREATE TABLE small (n smallint)")
    stage.add(["x"])
    sink = PostgresSink(f"{stage.dsn} password=hush", "small")
    plans = []

    def call(df: DataFrame, batch: int) -> None:
        from fencepost.spark.postgres import copying

        task = copying._task(copying.CopyPlan(sink._destination.database, None))  # type: ignore[arg-type]
        copied = df.mapInArrow(task, "partition int")
        plans.append(copied._jdf.queryExecution().toString())
        sink(df, batch)

    with caplog.at_level(logging.DEBUG, logger="fencepost"):
        failure = stage.run(call, lambda lines: lines.selectExpr("70000 AS n"))
    assert failure is not None
    assert "out of range" in failure
    assert "hush" not in failure + caplog.text + plans[0] + repr(sink)


def test_outside_of_a_query_and_with_wrong_arguments_it_says_what_to_do(
    stage: Stage, spark: Any
) -> None:
    with pytest.raises(SinkRefused, match="outside of a streaming query"):
        stage.sink()(spark.range(1), 0)
    with pytest.raises(SinkRefused, match="needs the DataFrame of a batch"):
        stage.sink()([1], 0)
    with pytest.raises(ConfigError, match="must be 'append' or 'upsert'"):
        stage.sink(mode="replace")
    with pytest.raises(ConfigError, match="append inserts every row"):
        stage.sink(key="id")
    with pytest.raises(ConfigError, match="must be names of columns"):
        stage.sink(order=["a", "a"])
    with pytest.raises(DatabaseRefused, match="cannot be read"):
        PostgresSink("host=x passwrd=hush", "lines")
    assert stage.sink().ledger_statement.startswith("CREATE TABLE IF NOT EXISTS")
