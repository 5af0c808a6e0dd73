"""The loads of a cluster: where producers send what, what is killed, and what is counted."""

from __future__ import annotations

import select
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.clusters import FencepostCluster, kafka_settings
from bench.generate import generate
from bench.generator.failover import at_share
from bench.generator.failover import main as fail_over
from bench.generator.job import Job
from bench.generator.routes import partitions_for
from bench.load import Scale
from bench.loads import brokers, failover, idle
from bench.sides import FENCEPOST
from fencepost.client.blocking import connect

pytestmark = [
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="the generator needs epoll"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

LEADERS = {0: 1, 1: 2, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("placement", "wanted"), [("any", (0, 1, 2, 3)), ("local", (1, 3)), ("remote", (0, 2))]
)
def test_a_producer_writes_to_the_partitions_of_its_placement(
    placement: Any, wanted: tuple[int, ...]
) -> None:
    job = Job("a:1,b:2", "tv2", placement=placement)

    assert partitions_for(job, 2, LEADERS) == wanted


def test_a_placement_without_partitions_is_refused() -> None:
    with pytest.raises(AssertionError, match="no local partition"):
        partitions_for(Job("a:1,b:2", "tv2", placement="local"), 3, LEADERS)


def test_only_the_first_process_of_apache_kafka_is_a_controller() -> None:
    first, second = (kafka_settings(broker_id, 3, 9000 + broker_id, 9100) for broker_id in (1, 2))

    assert first["process.roles"] == "broker,controller"
    assert second["process.roles"] == "broker"
    assert "CONTROLLER" not in second["listeners"]
    assert second["default.replication.factor"] == "3"
    assert second["transaction.state.log.min.isr"] == "2"
    assert kafka_settings(failover.VICTIM, 3, 9000, 9100)["process.roles"] == "broker"


def test_the_99th_percentile_is_where_the_slowest_hundredth_begins() -> None:
    assert at_share([float(n) for n in range(1, 101)], 0.99) == 100.0
    assert at_share([1.0, 2.0], 0.5) == 2.0
    assert at_share([1.0], 0.99) == 1.0


def test_a_round_of_two_brokers_has_every_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(*_: object, placement: str = "any", **__: object) -> dict[str, float]:
        return {
            "transactions_per_second": 100.0,
            "megabytes_per_second": 100.0,
            "broker_us": 30.0 if placement == "remote" else 20.0,
            "commit_p50_ms": 0.5 if placement == "remote" else 0.4,
        }

    monkeypatch.setattr(brokers, "generate_once", figures)
    monkeypatch.setattr(brokers, "_librdkafka", lambda *_: 1.0)
    server: Any = SimpleNamespace()

    values = brokers._round(server, server, Scale(quick=True), 0)

    assert {measure.name for measure in brokers.LOAD.measures} <= set(values)
    assert values["marker"] == pytest.approx(100)
    assert values["marker share"] == pytest.approx(0.2)
    assert values["marker cpu"] == pytest.approx(10)


@pytest.mark.slow
def test_three_idle_brokers_have_every_measure(tmp_path: Path) -> None:
    with idle.LOAD.session(FENCEPOST, Scale(quick=True), tmp_path) as run:
        values = run(0)

    assert {measure.name for measure in idle.LOAD.measures} <= set(values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_all_transactions_are_committed_after_their_coordinator_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FencepostCluster(tmp_path / "data", 3) as cluster:
        generate(
            cluster, "tv2", producers=3, partitions=3, topic="t", placement="remote", max_bytes=1
        )
        victim = cluster.pids()[2]
        arguments = ["--bootstrap", cluster.bootstrap_servers, "--topic", "t", "--count", "30"]

        status = fail_over([*arguments, "--victim", "2", "--victim-pid", str(victim)])

        said = capsys.readouterr()
        assert status == 0, said.err
        assert cluster.pids()[2] != victim
        with connect(cluster.bootstrap_servers) as client:
            found = client.list_transactions(pattern="failover-.*")
    assert [one.state for one in found] == ["CompleteCommit"] * 30
