"""Refunds from table to table: the service, and the audit that finds every planted error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.groups import CommittedOffset
from fencepost.outside import OutboxRelay
from fencepost.outside.connection import Database
from fencepost.records.opened import Record
from fencepost.spark.ledger.entry import group_of
from fencepost_examples.refunds.postgres import audit
from fencepost_examples.refunds.postgres.service import PER_TRANSACTION, run_service
from fencepost_examples.refunds.postgres.tables import (
    DSN_VARIABLE,
    OUTBOX,
    PAYMENTS,
    REQUESTS,
    create_tables,
)
from fencepost_examples.refunds.spark.loader import committed_end, read_range
from fencepost_examples.refunds.spark.pipeline import decide, rules_table, transactional_id
from fencepost_examples.refunds.spark.settlements import (
    APPROVED,
    SETTLEMENT_SCHEMA,
    generate,
)
from tests.outside.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.refunds.conftest import Place

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]

COUNT = 60


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as found:
        create_tables(Database(found.dsn()))
        yield found


def rows(server: PostgresServer, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_service_that_loses_its_database_writes_every_request_once(
    server: PostgresServer,
) -> None:
    requests = list(generate(COUNT))
    asked: list[int] = []
    is_half, goes_on = threading.Event(), threading.Event()

    def may_write(count: int) -> bool:
        asked.append(count)
        if count > COUNT // 2:
            is_half.set()
            goes_on.wait(60)
        return True

    service = threading.Thread(
        target=run_service, args=(Database(server.dsn()), "t", requests, 0, may_write)
    )
    service.start()
    assert is_half.wait(60)
    server.kill()
    server.start()
    goes_on.set()
    service.join(60)
    assert not service.is_alive()
    found = rows(server, f"SELECT refund_id FROM {REQUESTS} ORDER BY refund_id")
    assert found == [(each.refund_id,) for each in requests]
    # The transaction in which the database died was written again.
    assert len(asked) > COUNT // PER_TRANSACTION
    assert rows(server, "SELECT count(*) FROM outbox") == [(0,)]


def test_the_audit_finds_nothing_in_a_right_run_and_every_planted_error(
    server: PostgresServer,
    place: Place,
    cluster: Cluster,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DSN_VARIABLE, server.dsn())
    topics = place.topics
    run_service(Database(server.dsn()), topics.settlements, list(generate(COUNT)), 0)
    OutboxRelay(server.dsn(), cluster, OUTBOX).run(until_caught_up=True)
    decide_and_pay(server, place, cluster, spark)

    right = audit.find_all(spark, place.bootstrap, COUNT, place.prefix)
    assert right.wrong == dict.fromkeys(right.wrong, 0)
    paid = right.rows["refunds"]
    assert right.rows == {"settlements": COUNT, "decisions": COUNT, "refunds": paid}
    assert paid > 10

    ids = [row[0] for row in rows(server, f"SELECT refund_id FROM {PAYMENTS} ORDER BY 1")]
    rows(server, f"INSERT INTO {PAYMENTS} SELECT * FROM {PAYMENTS} WHERE refund_id = '{ids[0]}'")
    rows(server, f"UPDATE {PAYMENTS} SET amount_paise = 1 WHERE refund_id = '{ids[1]}'")
    rows(server, f"DELETE FROM {PAYMENTS} WHERE refund_id = '{ids[2]}'")
    rows(server, f"DELETE FROM {REQUESTS} WHERE refund_id = 'refund-0000000'")
    wrong = audit.find_all(spark, place.bootstrap, COUNT, place.prefix).wrong
    assert wrong[audit.OUT] == 3
    assert wrong["refunds paid more than once"] == 1
    assert wrong["refunds of another amount than settled"] == 1
    assert wrong["approvals without their refund"] == 1
    # The request that is gone, and that there is one less than was asked for.
    assert wrong[audit.IN] == 2


def decide_and_pay(
    server: PostgresServer, place: Place, cluster: Cluster, spark: SparkSession
) -> None:
    """As the queries would, without them."""
    topics = place.topics
    end = committed_end(cluster, topics.settlements)
    settlements = read_range(spark, place.bootstrap, SETTLEMENT_SCHEMA, {}, end)
    decided = decide(settlements, rules_table(spark)).collect()
    assert len(decided) == COUNT
    audited, refunds = [], []
    for row in decided:
        found = row.asDict()
        of_request = {name: found[name] for name in asdict(next(generate(1)))}
        source = {"source_partition": found["partition"], "source_offset": found["offset"]}
        audited.append(of_request | {"decision": found["decision"]} | source)
        if found["decision"] == APPROVED:
            refunds.append({k: found[k] for k in ("refund_id", "merchant", "amount_paise")})
    for topic, values in ((topics.audit, audited), (topics.refunds, refunds)):
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            records = [Record(value=json.dumps(each).encode()) for each in values]
            writer.write_records(TopicPartition(topic, 0), records)
            writer.flush()
    offsets = {tp: CommittedOffset(offset) for tp, offset in end.items()}
    cluster.offset_commit(group_of(transactional_id(place.prefix)), offsets)
    with psycopg.connect(server.dsn()) as connection:
        connection.cursor().executemany(
            f"INSERT INTO {PAYMENTS} VALUES (%s, %s, %s)",
            [tuple(each.values()) for each in refunds],
        )
