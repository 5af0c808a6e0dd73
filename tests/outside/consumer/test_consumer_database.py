"""A database that fails, restarts, answers no commit, or goes back in time: applied once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.outside import (
    ConsumerFenced,
    DatabaseRefused,
    DatabaseUnavailable,
    PostgresConsumer,
)
from fencepost.outside.consumer import positions
from fencepost.outside.consumer.rule import Stored
from tests.outside.consumer.cutting import Cut, CuttingProxy
from tests.outside.consumer.stage import Stage, apply, insert, stop_at
from tests.outside.postgres import PostgresServer


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that is killed, stopped and restored."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def fragile(
    mortal: PostgresServer, broker: fencepost.Broker, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """A stage on that server, which runs again afterwards."""
    with psycopg.connect(mortal.dsn(), autocommit=True) as admin:
        admin.execute("DROP TABLE IF EXISTS applied, fencepost_offsets")
    with Stage(broker.bootstrap_servers, mortal.dsn(), f"fragile-{id(request)}") as stage:
        yield stage
    mortal.kill()
    mortal.start()


def restart(server: PostgresServer, how: str) -> None:
    if how == "killed":
        server.kill()
        server.start()
    else:
        server.restart()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_restart_between_two_batches_is_not_noticed(
    mortal: PostgresServer, fragile: Stage, how: str
) -> None:
    fragile.send("a", "b", "c")
    consumer = fragile.consumer(max_records=1)
    apply(next(consumer))
    restart(mortal, how)
    apply(next(consumer))
    batch = next(consumer)
    restart(mortal, how)
    apply(batch)
    assert fragile.applied() == ["a", "b", "c"]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_restart_inside_a_transaction_rolls_it_back(
    mortal: PostgresServer, fragile: Stage, how: str
) -> None:
    fragile.send("a")
    consumer = fragile.consumer()
    batch = next(consumer)
    with pytest.raises(psycopg.OperationalError), batch.transaction() as cursor:
        insert(batch, cursor)
        restart(mortal, how)
        cursor.execute("SELECT 1")
    assert fragile.applied() == []
    apply(next(consumer))
    assert (fragile.applied(), fragile.position()) == (["a"], 1)


def test_a_restart_before_the_update_of_positions_is_one_sentence(
    mortal: PostgresServer, fragile: Stage
) -> None:
    fragile.send("a")
    consumer = fragile.consumer()
    batch = next(consumer)
    failure = pytest.raises(DatabaseUnavailable, match="the update of positions failed")
    with failure, batch.transaction() as cursor:
        insert(batch, cursor)
        restart(mortal, "killed")
    apply(batch)
    assert (fragile.applied(), fragile.position()) == (["a"], 1)


@pytest.mark.parametrize("step", ["before the claim", "before the seek", "before the records"])
def test_a_restart_around_a_claim_is_not_noticed(
    mortal: PostgresServer, fragile: Stage, step: str
) -> None:
    fragile.send("a")
    consumer = fragile.consumer()
    stop_at(consumer, step)
    restart(mortal, "killed")
    apply(next(consumer))
    assert fragile.applied() == ["a"]


def test_a_database_that_stays_away_is_one_sentence(mortal: PostgresServer, fragile: Stage) -> None:
    fragile.send("a")
    consumer = fragile.consumer(database_seconds=0.0)
    batch = next(consumer)
    mortal.kill()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="nothing listens there"):
            apply(batch)
    with pytest.raises(DatabaseUnavailable, match="nothing listens there"):
        fragile.consumer()
    mortal.start()
    apply(batch)
    assert fragile.applied() == ["a"]


def test_a_commit_with_an_unknown_end_is_looked_up_later(
    mortal: PostgresServer, fragile: Stage
) -> None:
    fragile.send("a")
    consumer = fragile.consumer(database_seconds=0.0)
    batch = next(consumer)
    consumer.on_step = lambda step: mortal.kill() if step == "before the commit" else None
    with pytest.raises(DatabaseUnavailable, match="whether it took place is not known"):
        apply(batch)
    consumer.on_step = lambda _: None
    mortal.start()
    apply(next(consumer))
    assert (fragile.applied(), fragile.position()) == (["a"], 1)


def through(proxy: CuttingProxy, stage: Stage) -> PostgresConsumer:
    direct, stage.dsn = stage.dsn, f"{stage.dsn} port={proxy.port}"
    try:
        return stage.consumer()
    finally:
        stage.dsn = direct


def test_a_commit_whose_answer_was_lost_is_not_repeated(
    postgres: PostgresServer, stage: Stage
) -> None:
    stage.send("a")
    with CuttingProxy(postgres.port) as proxy:
        consumer = through(proxy, stage)
        batch = next(consumer)
        proxy.cut = Cut.AFTER
        apply(batch)
        assert (stage.applied(), stage.position()) == (["a"], 1)
        stage.send("b")
        apply(next(consumer))
        consumer.close()
    assert stage.applied() == ["a", "b"]


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.SILENT])
def test_a_commit_that_did_not_arrive_is_reported_and_repeated(
    postgres: PostgresServer, stage: Stage, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server learns nothing, the look waits until it ends the session by itself."""
    monkeypatch.setattr(positions, "ZOMBIE_MILLISECONDS", 300)
    stage.send("a")
    with CuttingProxy(postgres.port) as proxy:
        consumer = through(proxy, stage)
        batch = next(consumer)
        proxy.cut = cut
        with pytest.raises(DatabaseUnavailable, match="it did not take place"):
            apply(batch)
        assert (stage.applied(), stage.position()) == ([], 0)
        apply(batch)
        consumer.close()
    assert (stage.applied(), stage.position()) == (["a"], 1)


def test_a_lost_answer_after_a_later_claim_leaves_the_batch_to_its_owner(
    postgres: PostgresServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    with CuttingProxy(postgres.port) as proxy:
        consumer = through(proxy, stage)
        batch = next(consumer)
        proxy.cut = Cut.AFTER
        monkeypatch.setattr(consumer._positions, "read", claimed_before(stage, consumer))
        with pytest.raises(ConsumerFenced, match="applied once, by one of the two"):
            apply(batch)
        stage.send("b")
        apply(next(consumer))
        consumer.close()
    assert stage.applied() == ["a", "b"]


def claimed_before(stage: Stage, consumer: PostgresConsumer) -> Callable[..., Stored]:
    """The look at a row, just after another consumer has claimed it."""
    read = consumer._positions.read

    def look(*asked: Any, **more: Any) -> Stored:
        if more:
            stage.query("UPDATE fencepost_offsets SET epoch = epoch + 1, owner = 'another'")
        return read(*asked, **more)

    return look


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_a_restored_database_decides_where_to_go_on(
    mortal: PostgresServer, fragile: Stage, is_running: bool
) -> None:
    """What it forgot is applied again, to its older state: each record once."""
    fragile.send("a", "b")
    consumer = fragile.consumer(max_records=1)
    apply(next(consumer))
    mortal.stop()
    saved = mortal.snapshot()
    mortal.start()
    apply(next(consumer))
    if not is_running:
        consumer.close()
    mortal.stop()
    mortal.restore(saved)
    mortal.start()
    assert (fragile.applied(), fragile.position()) == (["a"], 1)
    fragile.send("c")
    if is_running:
        with pytest.raises(ConsumerFenced, match="says 1, not 2: it was changed, or restored"):
            apply(next(consumer))
    else:
        consumer = fragile.consumer(max_records=1)
    apply(next(consumer))
    apply(next(consumer))
    assert fragile.applied() == ["a", "b", "c"]


def test_a_read_only_database_is_refused(stage: Stage) -> None:
    stage.dsn += " options=-cdefault_transaction_read_only=on"
    with pytest.raises(DatabaseRefused, match="read-only"):
        stage.consumer()


def test_a_user_without_rights_is_told_so(stage: Stage) -> None:
    stage.query("CREATE ROLE reader LOGIN")
    stage.query("GRANT SELECT ON fencepost_offsets TO reader")
    stage.dsn = stage.dsn.replace("user=postgres", "user=reader")
    with pytest.raises(DatabaseRefused, match="grant this right to the user"):
        next(stage.consumer())


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_stricter_transactions_are_fenced_too(stage: Stage, level: str) -> None:
    database = stage.dsn.rpartition("dbname=")[2]
    stage.query(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with (
        pytest.raises(DatabaseUnavailable, match="serialize access"),
        batch.transaction() as cursor,
    ):
        insert(batch, cursor)
        stage.query("UPDATE fencepost_offsets SET epoch = epoch + 1")
    with pytest.raises(ConsumerFenced):
        apply(batch)
    apply(next(consumer))
    assert stage.applied() == ["a"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_claim_that_meets_another_one_is_made_again(stage: Stage, level: str) -> None:
    database = stage.dsn.rpartition("dbname=")[2]
    stage.query(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
    stage.send("a")
    with stage.consumer() as first:
        apply(next(first))
    stage.send("b")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    wanted = ["before the claim"]

    def meet(step: str) -> None:
        if step in wanted:
            wanted.clear()
            other.execute("UPDATE fencepost_offsets SET epoch = epoch + 1")
            threading.Thread(target=commit).start()

    def commit() -> None:
        while not stage.query(waiting):
            pass
        other.commit()

    with psycopg.connect(stage.dsn) as other:
        consumer = stage.consumer()
        consumer.on_step = meet
        apply(next(consumer))
    assert wanted == []
    assert stage.applied() == ["a", "b"]
