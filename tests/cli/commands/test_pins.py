"""`fencepost pins` on an embedded broker, with the situations of tests/forensics/situations."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from tests.cli.running import Commands
from tests.forensics.situations.open_transactions import (
    end,
    forgotten_hanging_transaction,
    hanging_transaction,
    pinned_partition,
    stuck_marker_on_fencepost,
)


def test_a_pinned_partition_is_shown_with_its_holder_and_how_to_end_it(
    servers: str, commands: Commands, name: str
) -> None:
    with pinned_partition(servers, name, name, hidden=3) as opened:
        (row,) = commands.json("pins", name)
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


def test_the_proposed_command_ends_it(servers: str, commands: Commands, name: str) -> None:
    with pinned_partition(servers, name, name):
        (row,) = commands.json("pins", name)
        _, *arguments = row["command"].split()
        assert main.run([*arguments, "--yes"]) == 0
        assert commands.json("pins", name) == []


def test_a_client_that_is_no_longer_known_is_not_made_up(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fencepost.Broker() as own, pinned_partition(own.bootstrap_servers, name, name):
        own.restart()
        (row,) = Commands(own.bootstrap_servers, capsys).json("pins", name)
        assert (row["transactional_id"], row["client_host"]) == (name, None)


def test_internal_topics_and_compaction_are_included(
    servers: str, commands: Commands, name: str
) -> None:
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic(name, 1, 1, {"cleanup.policy": "compact,delete"})])
        identity = cluster.init_producer_id(name)
        place = TopicPartition(name, 0)
        cluster.txn_offset_commit(identity, name, {place: CommittedOffset(0)})
        found = [row for row in commands.json("pins") if row["transactional_id"] == name]
        assert [row["topic"] for row in found] == ["__consumer_offsets"]
        assert found[0]["compaction_waits"]["value"] is True
        end(cluster, name)


def test_hanging_and_stuck_transactions_are_told_apart_from_open_ones(
    broker: fencepost.Broker, servers: str, commands: Commands, name: str
) -> None:
    with ExitStack() as stack:
        stack.enter_context(pinned_partition(servers, f"{name}-a", f"{name}-a"))
        stack.enter_context(hanging_transaction(servers, f"{name}-b"))
        stack.enter_context(forgotten_hanging_transaction(servers, f"{name}-c"))
        stack.enter_context(stuck_marker_on_fencepost(broker, f"{name}-d", f"{name}-d"))
        kinds = {
            row["topic"].removeprefix(name): row["kind"]
            for row in commands.json("pins")
            if row["topic"].startswith(name)
        }
    assert kinds == {"-a": "open", "-b": "hanging", "-c": "hanging", "-d": "ending"}


def test_check_exits_with_3_only_if_a_partition_is_pinned_for_longer(
    servers: str, commands: Commands, name: str
) -> None:
    with pinned_partition(servers, name, name):
        assert len(commands.json("pins", name, "--check", code=3)) == 1
        assert commands.json("pins", name, "--check", "--older-than", "1h") == []
    assert commands.json("pins", name, "--check") == []


class Deny:
    """Refuses some operations."""

    def __init__(self, *denied: tuple[str, str]) -> None:
        self._denied = denied

    def authorize(self, principal: str, host: str, operation: str, kind: str, name: str) -> bool:
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
    commands: Commands,
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
            (row,) = commands.json("pins", name)
            found = commands.json("txn", "find-hanging", name)
            arguments = ["txn", "abort", f"{name}:0", "--start-offset", "0", "--yes"]
            code = main.run([*arguments, "--bootstrap-servers", servers])
        finally:
            broker.call(lambda node: setattr(node.services, "authorizer", allow_all))
        assert (row["kind"], row["hidden_offsets"]) == (kind, 1)
        assert why in row["why"]
        assert [each["verdict"] for each in found] == ([] if "TOPIC" in why else [kind])
        assert code == (0 if kind == "hanging" else 1)
