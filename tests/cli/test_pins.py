"""`fencepost pins`, and `txn fence`, `abort`, `commit`, `find-hanging` and `producers` beside it.

The situations are those of tests/forensics/situations, on an embedded broker.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.cli.app import app
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from tests.cli.screen import assert_screen, on_terminal
from tests.forensics.situations.open_transactions import (
    create_topic,
    end,
    forgotten_hanging_transaction,
    hanging_transaction,
    pinned_partition,
    several_producers,
    stuck_marker_on_fencepost,
    write_committed,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as running:
        yield running


@pytest.fixture(scope="module")
def servers(broker: fencepost.Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def rows(servers: str, *arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(
        app, [*arguments, "--json", "--bootstrap-servers", servers], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    assert (result.return_value or 0) == code, result.output
    return json.loads(result.stdout)


def test_a_pinned_partition_is_shown_with_its_holder_and_how_to_end_it(
    servers: str, name: str
) -> None:
    with pinned_partition(servers, name, name, hidden=3) as opened:
        (row,) = rows(servers, "pins", name)
    assert (row["topic"], row["partition"], row["kind"]) == (name, 0, "open")
    assert (row["last_stable_offset"], row["high_watermark"], row["hidden_offsets"]) == (0, 4, 4)
    assert row["transactional_id"] == name
    assert row["producer_id"] == opened.identity.producer_id
    assert row["producer_epoch"] == opened.identity.producer_epoch
    assert (row["client_id"], row["client_host"]) == ("fencepost", "127.0.0.1")
    assert 0 < row["ends_in_at_least_ms"]["value"] <= 60_000
    assert row["ends_in_at_most_ms"]["value"] == row["ends_in_at_least_ms"]["value"] + 10_000
    assert row["next_last_stable_offset"]["value"] == 4
    assert row["compaction_waits"]["value"] is False
    assert row["command"] == f"fencepost txn fence {name} --bootstrap-servers {servers}"


def test_the_proposed_command_ends_it(servers: str, name: str) -> None:
    with pinned_partition(servers, name, name):
        (row,) = rows(servers, "pins", name)
        _, *arguments = row["command"].split()
        assert main.run([*arguments, "--yes"]) == 0
        assert rows(servers, "pins", name) == []


def test_a_client_that_is_not_known_any_more_is_not_made_up(name: str) -> None:
    with fencepost.Broker() as own, pinned_partition(own.bootstrap_servers, name, name):
        own.restart()
        (row,) = rows(own.bootstrap_servers, "pins", name)
        assert (row["transactional_id"], row["client_host"]) == (name, None)


def test_the_next_holder_decides_where_the_last_stable_offset_goes(servers: str, name: str) -> None:
    ids = [f"{name}-{index}" for index in range(3)]
    with several_producers(servers, name, ids):
        (row,) = rows(servers, "pins", name)
        assert (row["transactional_id"], row["open_producers"]) == (ids[0], 3)
        assert row["next_last_stable_offset"]["value"] == 1
        rows(servers, "txn", "commit", ids[0], "--yes")
        (row,) = rows(servers, "pins", name)
        assert (row["transactional_id"], row["last_stable_offset"]) == (ids[1], 1)


def test_internal_topics_and_compaction_are_included(servers: str, name: str) -> None:
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic(name, 1, 1, {"cleanup.policy": "compact,delete"})])
        identity = cluster.init_producer_id(name)
        place = TopicPartition(name, 0)
        cluster.txn_offset_commit(identity, name, {place: CommittedOffset(0)})
        found = [row for row in rows(servers, "pins") if row["transactional_id"] == name]
        assert [row["topic"] for row in found] == ["__consumer_offsets"]
        assert found[0]["compaction_waits"]["value"] is True
        end(cluster, name)


def test_hanging_and_stuck_transactions_are_told_apart_from_open_ones(
    broker: fencepost.Broker, servers: str, name: str
) -> None:
    with ExitStack() as stack:
        stack.enter_context(pinned_partition(servers, f"{name}-a", f"{name}-a"))
        stack.enter_context(hanging_transaction(servers, f"{name}-b"))
        stack.enter_context(forgotten_hanging_transaction(servers, f"{name}-c"))
        stack.enter_context(stuck_marker_on_fencepost(broker, f"{name}-d", f"{name}-d"))
        kinds = {
            row["topic"].removeprefix(name): row["kind"]
            for row in rows(servers, "pins")
            if row["topic"].startswith(name)
        }
    assert kinds == {"-a": "open", "-b": "hanging", "-c": "hanging", "-d": "ending"}


def test_check_exits_with_3_only_if_a_partition_is_pinned_for_longer(
    servers: str, name: str
) -> None:
    with pinned_partition(servers, name, name):
        assert len(rows(servers, "pins", name, "--check", code=3)) == 1
        assert rows(servers, "pins", name, "--check", "--older-than", "1h") == []
    assert rows(servers, "pins", name, "--check") == []


def test_records_without_a_transaction_pin_nothing(servers: str, name: str) -> None:
    with connect(servers) as cluster:
        (place,) = create_topic(cluster, name)
        write_committed(cluster, place, 5)
    assert rows(servers, "pins", name) == []


def test_an_unknown_topic_is_said(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pins", "nowhere", "--bootstrap-servers", servers]) == 1
    assert "topic 'nowhere'" in capsys.readouterr().err


class Deny:
    """Refuses some operations."""

    def __init__(self, *denied: tuple[str, str]) -> None:
        self._denied = denied

    def authorize(self, principal: str, operation: str, kind: str, name: str) -> bool:
        return (operation, kind) not in self._denied


@pytest.mark.parametrize(
    ("denied", "kind", "why"),
    [
        ([("READ", "TOPIC")], "cannot tell", "TOPIC_AUTHORIZATION_FAILED"),
        ([("DESCRIBE", "TRANSACTIONAL_ID")], "cannot tell", "may not describe every"),
        ([("DESCRIBE", "CLUSTER")], "cannot tell", "may not list the ACLs"),
        ([("DESCRIBE_CONFIGS", "TOPIC"), ("DESCRIBE_CONFIGS", "CLUSTER")], "hanging", "no auth"),
    ],
)
def test_missing_permissions_make_a_holder_unknown_and_fail_nothing(
    broker: fencepost.Broker,
    servers: str,
    name: str,
    denied: list[tuple[str, str]],
    kind: str,
    why: str,
) -> None:
    with pinned_partition(servers, f"{name}-other", f"{name}-other"):
        pass  # Without any transactional id there is nothing to hide.
    with forgotten_hanging_transaction(servers, name):
        allow_all = broker.call(lambda node: node.services.authorizer)
        broker.call(lambda node: setattr(node.services, "authorizer", Deny(*denied)))
        try:
            (row,) = rows(servers, "pins", name)
            found = rows(servers, "txn", "find-hanging", name)
            arguments = ["txn", "abort", f"{name}:0", "--start-offset", "0", "--yes"]
            code = main.run([*arguments, "--bootstrap-servers", servers])
        finally:
            broker.call(lambda node: setattr(node.services, "authorizer", allow_all))
        assert (row["kind"], row["hidden_offsets"]) == (kind, 1)
        assert why in row["why"]
        assert [each["verdict"] for each in found] == ([] if "TOPIC" in why else [kind])
        assert code == (0 if kind == "hanging" else 1)


def test_find_hanging_has_the_verdict_and_the_command(servers: str, name: str) -> None:
    with forgotten_hanging_transaction(servers, name) as opened:
        (row,) = rows(servers, "txn", "find-hanging", name, "--check", code=3)
        assert row["verdict"] == "hanging"
        assert row["producer_id"] == opened.identity.producer_id
        assert row["last_write_age_ms"]["value"] >= 3_600_000
        assert rows(servers, "txn", "find-hanging", name, "--max-timeout", "2h")[0]["verdict"] == (
            "suspect"
        )
        assert len(rows(servers, "txn", "find-hanging", "--broker", "1")) >= 1
        _, *arguments = row["command"].split()
        assert main.run([*arguments, "--yes"]) == 0
        assert rows(servers, "txn", "find-hanging", name, "--check") == []


def test_find_hanging_of_a_broker_that_does_not_exist_is_refused(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run(["txn", "find-hanging", "--broker", "9", "--bootstrap-servers", servers])
    assert code == 1
    assert "no live broker 9; its brokers are 1" in capsys.readouterr().err


def test_an_open_transaction_is_never_called_hanging(servers: str, name: str) -> None:
    with pinned_partition(servers, name, name):
        assert rows(servers, "txn", "find-hanging", name, "--max-timeout", "0s") == []


def test_producers_are_listed_with_their_ids(servers: str, name: str) -> None:
    with several_producers(servers, name, [f"{name}-1", f"{name}-2"]) as opened:
        found = rows(servers, "txn", "producers", f"{name}:0")
        assert found == rows(servers, "txn", "producers", name) or len(found) == 2
    assert [row["transactional_id"] for row in found] == [f"{name}-1", f"{name}-2"]
    assert [row["producer_id"] for row in found] == [each.identity.producer_id for each in opened]
    assert [(row["start_offset"], row["pins"]) for row in found] == [(0, True), (1, False)]
    assert [row["last_sequence"] for row in found] == [0, 0]
    assert found[0]["coordinator_epoch"] is None


def test_without_a_yes_nothing_is_changed(servers: str, name: str) -> None:
    with pinned_partition(servers, name, name):
        for words in (["fence", name], ["abort", name], ["commit", name]):
            arguments = ["txn", *words, "--bootstrap-servers", servers]
            code, shown = on_terminal(*arguments, answer="n\n")
            assert code == 1
            assert shown.strip().endswith("fencepost: Nothing was changed.")
        assert len(rows(servers, "pins", name)) == 1


def test_a_yes_on_the_terminal_is_enough(servers: str, name: str) -> None:
    with pinned_partition(servers, name, name):
        arguments = ["txn", "fence", name, "--bootstrap-servers", servers]
        code, shown = on_terminal(*arguments, answer="y\n")
        assert (code, "Continue? [y/N]" in shown) == (0, True)
        assert rows(servers, "pins", name) == []


def test_a_second_run_says_that_nothing_is_open(servers: str, name: str) -> None:
    with pinned_partition(servers, name, name):
        assert rows(servers, "txn", "fence", name, "--yes")["changed"] is True
        again = rows(servers, "txn", "fence", name, "--yes")
        assert again["changed"] is False
        assert "Nothing is open" in again["found"]


def test_all_open_producers_of_a_partition_are_counted(servers: str, name: str) -> None:
    with several_producers(servers, name, [f"{name}-{index}" for index in range(20)]):
        (row,) = rows(servers, "pins", name)
        assert row["open_producers"] == 20


@pytest.fixture(scope="module")
def scene() -> Iterator[str]:
    """A broker with one of each kind of pinned partition."""
    with fencepost.Broker() as own, ExitStack() as stack:
        servers = own.bootstrap_servers
        # The tests of all screens may take longer than the usual timeout.
        long = {"timeout_ms": 900_000}
        stack.enter_context(pinned_partition(servers, "orders", "refunds-1", partitions=2, **long))
        payers = ["billing-1", "billing-2"]
        stack.enter_context(several_producers(servers, "payments", payers, **long))
        stack.enter_context(hanging_transaction(servers, "audit"))
        stack.enter_context(stuck_marker_on_fencepost(own, "shipments", "shipping-7"))
        yield servers


@pytest.mark.parametrize(
    ("columns", "words", "code"),
    [
        (80, "pins", 0),
        (80, "txn list", 0),
        (80, "txn producers payments", 0),
        (80, "txn find-hanging", 0),
        (80, "txn describe refunds-1", 0),
        (80, "txn fence shipping-7", 1),
        (80, "txn abort orders:0 --start-offset 0", 1),
        (120, "pins", 0),
        (120, "txn list", 0),
        (120, "txn producers payments", 0),
        # The last one: it changes the scene.
        (80, "txn fence refunds-1 --yes", 0),
    ],
)
def test_a_screen_is_as_kept(scene: str, columns: int, words: str, code: int) -> None:
    arguments = [*words.split(), "--bootstrap-servers", scene]
    result, shown = on_terminal(*arguments, columns=columns)
    assert result == code, shown
    # A slow machine takes longer than a second.
    shown = "".join(
        line for line in shown.splitlines(keepends=True) if "waiting for an answer" not in line
    )
    kept = words.removesuffix(" --yes").replace(" ", "-").replace(":", "-")
    assert_screen(f"{kept}-{columns}", shown, servers=scene)
