"""Whether the client of a transactional id is connected: `txn list`, `describe`, `pins`, `top`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.client.blocking import connect
from tests.forensics import situations
from tests.forensics.running import run
from tests.forensics.situations.open_transactions import until

GONE = "gone since "


def described(servers: str, transactional_id: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(run(servers, "txn", "describe", transactional_id, "--json"))
    return row


def await_connection(servers: str, transactional_id: str, wanted: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def reached() -> bool:
        found.update(described(servers, transactional_id))
        return bool(found["client_connection"] == wanted)

    until(reached, seconds=20)
    return found


def test_every_command_says_whether_the_producer_is_connected(servers: str) -> None:
    with connect(servers, {"client.id": "shop"}) as cluster:
        found = situations.begin(cluster, 2)
        name, topic = found.transactional_id, found.partition.topic
        row = await_connection(servers, name, "connected")
        assert (row["client_id"], row["client_gone_at_ms"]) == ("shop", None)
        assert "client 'shop' at 127.0.0.1, connected" in " ".join(
            run(servers, "pins", topic).split()
        )
    row = await_connection(servers, name, "gone")
    assert row["start_ms"] <= row["client_gone_at_ms"]
    (listed,) = json.loads(run(servers, "txn", "list", "--pattern", name, "--json"))
    (pin,) = json.loads(run(servers, "pins", topic, "--json"))
    frame = json.loads(run(servers, "top", "--once", "--json"))
    (opened,) = [each for each in frame["open"] if each["transactional_id"] == name]
    for each in (listed, pin, opened):
        assert each["client_connection"] == "gone"
        assert each["client_gone_at_ms"] == row["client_gone_at_ms"]
    for said in (
        run(servers, "txn", "list", "--pattern", name),
        run(servers, "txn", "describe", name),
        run(servers, "pins", topic),
        run(servers, "top", "--once"),
    ):
        assert GONE in " ".join(said.split()), said


def test_a_client_that_came_back_over_a_new_connection_is_connected(servers: str) -> None:
    with connect(servers, {"client.id": "shop"}) as cluster:
        found = situations.begin(cluster, 2)
    await_connection(servers, found.transactional_id, "gone")
    with connect(servers, {"client.id": "shop"}) as cluster:
        cluster.end_txn(found.identity, commit=True)
        await_connection(servers, found.transactional_id, "connected")


def test_the_commit_of_an_operator_does_not_make_the_producer_look_alive(servers: str) -> None:
    with connect(servers, {"client.id": "shop"}) as cluster:
        found = situations.begin(cluster, 1)
    await_connection(servers, found.transactional_id, "gone")
    with connect(servers, {"client.id": "fencepost-txn-commit"}) as operator:
        operator.end_txn(found.identity, commit=True)
        row = described(servers, found.transactional_id)
    assert (row["client_id"], row["client_connection"]) == ("shop", "gone")


def test_the_next_transaction_does_not_name_the_administrator_of_the_last(servers: str) -> None:
    with connect(servers) as cluster:
        found = situations.begin(cluster, 1)
        name = found.transactional_id
        with connect(servers, {"client.id": "fencepost-txn-abort"}) as operator:
            operator.end_txn(found.identity, commit=False)
        operators = "User:ANONYMOUS with fencepost-txn-abort from 127.0.0.1"
        assert described(servers, name)["administrator"] == operators
        situations.write(cluster, found.identity, found.partition)
        assert described(servers, name)["administrator"] is None


def test_a_fenced_zombie_does_not_look_like_the_owner_of_the_id(servers: str) -> None:
    with (
        connect(servers, {"client.id": "new"}) as cluster,
        connect(servers, {"client.id": "zombie"}) as zombie,
    ):
        found = situations.begin(zombie, 1)
        cluster.init_producer_id(found.transactional_id)
        with pytest.raises(FencepostError):
            zombie.end_txn(found.identity, commit=True)
        assert described(servers, found.transactional_id)["client_id"] == "new"


def test_after_a_restart_it_is_unknown_until_the_producer_speaks() -> None:
    with fencepost.Broker() as broker:
        servers = broker.bootstrap_servers
        with connect(servers, {"client.id": "shop"}) as cluster:
            found = situations.begin(cluster, 1)
            broker.restart()
            row = await_connection(servers, found.transactional_id, None)
            assert (row["client_id"], row["client_host"]) == (None, None)
            assert "unknown" in run(servers, "txn", "list")
            cluster.end_txn(found.identity, commit=True)
            row = await_connection(servers, found.transactional_id, "connected")
            assert row["client_id"] == "shop"


def test_of_several_brokers_the_connection_to_the_coordinator_counts() -> None:
    """The producer talks to its coordinator, and leaders of its partitions may be elsewhere."""
    with fencepost.Cluster(brokers=3) as brokers:
        servers = brokers.bootstrap_servers
        with connect(servers, {"client.id": "shop"}) as cluster:
            found = [situations.begin(cluster, 2) for _ in range(6)]
            for each in found:
                await_connection(servers, each.transactional_id, "connected")
        for each in found:
            await_connection(servers, each.transactional_id, "gone")
