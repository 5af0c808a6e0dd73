"""`fencepost cluster` on a cluster of two brokers, and on a single broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect

NAMES = {"id", "pid", "address", "state", "leads", "coordinates", "restarts"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[fencepost.Cluster]:
    with fencepost.Cluster(2) as made:
        with connect(made.bootstrap_servers) as client:
            client.create_topics([NewTopic("refunds", partitions=2)])
        yield made


Run = Any


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main.run(["cluster", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_command


def place(cluster: fencepost.Cluster, option: str) -> list[str]:
    """The two ways to name a cluster."""
    return {
        "--data": ["--data", str(cluster.data)],
        "--bootstrap-servers": ["--bootstrap-servers", cluster.bootstrap_servers],
    }[option]


WAYS = pytest.mark.parametrize("option", ["--data", "--bootstrap-servers"])


@WAYS
def test_status_shows_processes_and_leaders(
    cluster: fencepost.Cluster, run: Run, option: str
) -> None:
    code, shown, problem = run("status", "--json", *place(cluster, option))
    assert (code, problem) == (0, "")
    found = json.loads(shown)
    assert found == cluster.status()
    names = {"cluster", "data", "controller", "brokers", "leaderless", "unfinished"}
    assert set(found) == names
    assert [set(broker) for broker in found["brokers"]] == [NAMES] * 2
    assert found["data"] == cluster.data
    code, shown, problem = run("status", *place(cluster, option))
    assert (code, problem) == (0, "")
    for broker in cluster.brokers:
        assert f"{broker.pid}" in shown
        assert str(broker.address) in shown


@WAYS
def test_move_makes_a_broker_the_leader(cluster: fencepost.Cluster, run: Run, option: str) -> None:
    for to in (1, 2):
        ended = run("move", "refunds:1", "--to", str(to), *place(cluster, option))
        assert ended == (0, f"broker {to} leads refunds-1\n", "")
        assert cluster.leader_of("refunds", 1) == to


def test_a_move_to_an_unknown_broker_or_of_an_unknown_partition_is_refused(
    cluster: fencepost.Cluster, run: Run
) -> None:
    where = place(cluster, "--data")
    code, _, problem = run("move", "refunds:0", "--to", "7", *where)
    assert (code, "no live broker 7; its live brokers are 1, 2" in problem) == (1, True)
    code, _, problem = run("move", "refunds:9", "--to", "1", *where)
    assert (code, "has no partition 9" in problem) == (1, True)


def test_kill_restart_pause_and_resume_say_what_they_did(
    cluster: fencepost.Cluster, run: Run
) -> None:
    where = place(cluster, "--bootstrap-servers")
    ended = run("kill", "2", *where)
    assert ended == (0, "broker 2 is dead, and others lead its partitions\n", "")
    assert cluster.brokers[1].state == "dead"
    code, shown, problem = run("roll", *where)
    assert (code, shown) == (1, "")
    assert "Broker 2 is dead." in problem
    assert run("restart", "2", *where) == (0, "broker 2 serves\n", "")
    where = place(cluster, "--data")
    assert run("pause", "1", *where) == (0, "broker 1 is paused\n", "")
    assert cluster.brokers[0].state == "paused"
    assert run("resume", "1", *where) == (0, "broker 1 goes on\n", "")
    code, _, problem = run("kill", "7", *where)
    assert (code, problem) == (1, "fencepost: There is no broker 7; the brokers are 1, 2.\n")


def test_roll_prints_a_line_for_each_broker(cluster: fencepost.Cluster, run: Run) -> None:
    before = [broker.pid for broker in cluster.brokers]
    code, shown, problem = run("roll", *place(cluster, "--data"))
    assert (code, problem) == (0, "")
    first, second = shown.splitlines()
    assert first.startswith("broker 1 rolled in ")
    assert second.endswith("(2 of 2)")
    after = [broker.pid for broker in cluster.brokers]
    assert not set(before) & set(after)
    code, shown, problem = run("roll", "1", "7", *place(cluster, "--data"))
    assert (code, shown) == (1, "")
    assert "There is no broker 7" in problem


def test_status_of_a_single_broker_shows_what_the_wire_tells(run: Run) -> None:
    with fencepost.Broker() as broker:
        where = ["--bootstrap-servers", broker.bootstrap_servers]
        with connect(broker.bootstrap_servers) as client:
            client.create_topics([NewTopic("refunds", partitions=2)])
            cluster_id = client.describe_cluster().cluster_id
        code, shown, problem = run("status", "--json", *where)
        assert (code, problem) == (0, "")
        assert json.loads(shown) == {
            "cluster": cluster_id,
            "data": None,
            "controller": {"pid": None},
            "brokers": [
                {
                    "id": 1,
                    "pid": None,
                    "address": broker.bootstrap_servers,
                    "state": "serving",
                    "leads": 2,
                    "coordinates": 0,
                    "restarts": None,
                }
            ],
            "leaderless": 0,
            "unfinished": None,
        }
        code, shown, problem = run("kill", "1", *where)
        assert (code, shown) == (1, "")
        assert "cannot be commanded" in problem
        ended = run("move", "refunds:0", "--to", "1", *where)
        assert ended == (0, "broker 1 leads refunds-0\n", "")
