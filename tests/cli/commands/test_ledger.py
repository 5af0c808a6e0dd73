"""`fencepost ledger` on an embedded broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli.app import app
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.failures import ProducerFenced
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.entry import LedgerEntry, encode_entry
from fencepost.spark.ledger.rule import Batch, Verdict
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.ledger.topic import LEDGER_TOPIC
from fencepost.spark.ledger.writer import append_record
from tests.spark.ledger.ledgers import FakeMicroBatch, LedgerCluster, embedded_ledger, enter


@pytest.fixture(scope="module")
def home() -> Iterator[LedgerCluster]:
    with embedded_ledger() as found:
        found.cluster.create_topics([NewTopic("in", 2, 1), NewTopic("out", 1, 1)])
        found.store("id")
        yield found


def run(home: LedgerCluster, *arguments: str, answer: str | None = None) -> str:
    command = ["ledger", *arguments, "--bootstrap-servers", home.cluster.options.bootstrap[0]]
    result = CliRunner().invoke(app, [str(word) for word in command], input=answer)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def run_json(home: LedgerCluster, *arguments: str) -> Any:
    return json.loads(run(home, *arguments, "--json"))


def write(
    home: LedgerCluster, name: str, batch_id: int, query_id: str = "q", open_ms: int = 50
) -> None:
    """Commits a batch of a query that reads topic `in`."""
    store = home.store(name)
    identity = home.begin(name)
    micro_batch = FakeMicroBatch(query_id, batch_id, '{"in": {"0": 42, "1": 7}}')
    view = store.peek()
    enter(store, identity, micro_batch, view, open_ms=open_ms, is_stateful=False)
    home.cluster.end_txn(identity, commit=True)


def test_create_makes_a_compacted_topic_and_can_be_repeated(home: LedgerCluster) -> None:
    first = run_json(home, "create", "--topic", "a-teams", "--partitions", "3")
    assert (first["created"], first["partitions"]) == (True, 3)
    found = home.cluster.describe_configs(ResourceType.TOPIC, "a-teams")
    assert found["cleanup.policy"].value == "compact"
    assert found["segment.bytes"].value == str(first["segment_bytes"])
    again = run_json(home, "create", "--topic", "a-teams")
    assert (again["created"], again["partitions"]) == (False, 3)
    with pytest.raises(SinkRefused, match=r"cleanup\.policy=delete"):
        run(home, "create", "--topic", "out")


def test_list_shows_every_id_with_its_last_batch(home: LedgerCluster) -> None:
    write(home, "list-a", 0)
    write(home, "list-a", 1)
    write(home, "list-b", 0, "other")
    rows = {row["transactional_id"]: row for row in run_json(home, "list")}
    assert (rows["list-a"]["query_id"], rows["list-a"]["last_batch"]) == ("q", 1)
    assert rows["list-b"]["query_id"] == "other"
    assert rows["list-a"]["written_ms"] > 1_700_000_000_000
    table = run(home, "list")
    assert "UTC" in table
    assert "list-b" in table


def test_list_reports_an_empty_or_missing_topic(home: LedgerCluster) -> None:
    run_json(home, "create", "--topic", "bare", "--partitions", "1")
    assert run(home, "list", "--topic", "bare").strip() == "Topic bare holds no record."
    with pytest.raises(FencepostError, match="fencepost ledger create"):
        run(home, "list", "--topic", "nowhere")


def test_show_prints_how_a_new_query_would_continue(home: LedgerCluster) -> None:
    write(home, "shown", 0, "p")
    row = run_json(home, "show", "shown")
    assert (row["query_id"], row["last_batch"], row["take_over"]) == ("p", 0, "p")
    assert json.loads(row["starting_offsets"]) == {"in": {"0": 42, "1": 7}}
    assert row["state"] == "CompleteCommit"
    text = run(home, "show", "shown")
    assert '{"in":{"0":42,"1":7}}' in text
    with pytest.raises(FencepostError, match="has no record of 'nobody'"):
        run(home, "show", "nobody")


def test_adopt_lets_another_query_continue_after_the_given_batch(home: LedgerCluster) -> None:
    write(home, "adopted", 4, "p")
    store = home.store("adopted")
    batch = Batch("q", 7)
    assert store.decide(store.peek(), batch, SourceUse()).verdict is Verdict.REFUSE
    row = run_json(home, "adopt", "adopted", "--query-id", "q", "--last-batch", "6", "--yes")
    assert (row["query_id"], row["last_batch"]) == ("q", 6)
    assert row["starting_offsets"] is None
    assert store.decide(store.peek(), batch, SourceUse()).verdict is Verdict.WRITE


def test_adopt_works_for_an_id_without_a_record(home: LedgerCluster) -> None:
    row = run_json(home, "adopt", "brand-new", "--query-id", "q", "--last-batch", "-1", "--yes")
    assert row["last_batch"] == -1
    store = home.store("brand-new")
    assert store.decide(store.peek(), Batch("q", 0), SourceUse()).verdict is Verdict.WRITE


def test_commands_that_change_the_ledger_ask_first(home: LedgerCluster) -> None:
    write(home, "asked", 4)
    with pytest.raises(FencepostError, match="Nothing was changed"):
        run(home, "forget", "asked", answer="n\n")
    assert home.batch_in("asked") == 4
    run(home, "forget", "asked", answer="y\n")
    assert home.batch_in("asked") is None


def test_a_forgotten_id_can_be_used_by_another_query(home: LedgerCluster) -> None:
    from fencepost.spark.transaction.sparing import check_ledger

    write(home, "forgotten", 4)
    with pytest.raises(SinkRefused, match="belongs to query q"):
        check_ledger(home.store("forgotten"), Batch("another", 0))
    run(home, "forget", "forgotten", "--yes")
    check_ledger(home.store("forgotten"), Batch("another", 0))
    with pytest.raises(FencepostError, match="no record of 'forgotten'"):
        run(home, "forget", "forgotten", "--yes")


@pytest.mark.parametrize("how", ["forget", "adopt"])
def test_an_open_transaction_is_left_alone_without_force(home: LedgerCluster, how: str) -> None:
    name = f"open-{how}"
    write(home, name, 4)
    identity = home.begin(name)
    home.write(identity, 5)
    command = [how, name, "--yes"]
    if how == "adopt":
        command += ["--query-id", "q", "--last-batch", "4"]
    with pytest.raises(FencepostError, match=r"a transaction of .* is open \(state Ongoing\)"):
        run(home, *command)
    assert run_json(home, "show", name)["is_settled"] is False
    run(home, *command, "--force")
    with pytest.raises(ProducerFenced):
        home.cluster.end_txn(identity, commit=True)
    assert home.batch_in(name) == (4 if how == "adopt" else None)


def test_a_record_in_an_unknown_format_is_shown_and_can_be_replaced(home: LedgerCluster) -> None:
    identity = home.begin("future")
    append_record(home.cluster, identity, home.place_of("future"), b'{"v":99,"x":1}')
    home.cluster.end_txn(identity, commit=True)
    row = run_json(home, "show", "future")
    assert "a newer fencepost has written it" in row["problem"]
    assert row["value"] == '{"v":99,"x":1}'
    assert next(r for r in run_json(home, "list") if r["transactional_id"] == "future")["problem"]
    run(home, "adopt", "future", "--query-id", "q", "--last-batch", "3", "--yes")
    assert home.batch_in("future") == 3


def test_two_records_of_one_id_are_merged_into_one(home: LedgerCluster) -> None:
    places = [TopicPartition(LEDGER_TOPIC, index) for index in (2, 9)]
    for serial, place in enumerate(places):
        identity = home.begin("twice")
        entry = LedgerEntry("q", serial, serial=serial)
        append_record(home.cluster, identity, place, encode_entry(entry))
        home.cluster.end_txn(identity, commit=True)
    run(home, "adopt", "twice", "--query-id", "q", "--last-batch", "5", "--yes")
    assert home.view("twice").place == places[1]
    run(home, "forget", "twice", "--yes")
    assert home.batch_in("twice") is None


def test_the_ledger_command_needs_no_spark() -> None:
    """Administrators need not install the spark extra."""
    code = """
import sys
for name in ("pyspark", "pyarrow", "py4j", "numpy", "pandas", "numba"):
    sys.modules[name] = None
import fencepost.cli.commands.ledger, fencepost.spark.ledger.admin
"""
    subprocess.run([sys.executable, "-c", code], check=True)
