"""`fencepost.Broker` in the hands of somebody who writes tests."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError


def test_settings_may_be_values_of_python() -> None:
    config = {
        "auto.create.topics.enable": False,
        "num.partitions": 3,
        "log.cleanup.policy": ["compact", "delete"],
        "log.retention.ms": None,
    }
    with fencepost.Broker(config=config) as broker:
        taken = broker.call(lambda node: node.config)
        assert taken.auto_create_topics_enable is False
        assert taken.num_partitions == 3
        assert taken.log_cleanup_policy == ("compact", "delete")
        assert taken.log_retention_ms is None


def test_data_and_trace_may_be_paths_and_stay_when_the_broker_is_closed(tmp_path: Path) -> None:
    data, trace = tmp_path / "data", tmp_path / "trace.jsonl"
    with fencepost.Broker(data=data, trace=trace):
        pass
    assert (data / "meta.properties").exists()
    assert trace.exists()


def test_data_of_its_own_are_gone_when_it_is_closed_and_when_it_could_not_start() -> None:
    with fencepost.Broker() as broker:
        assert broker.data is not None
        folder = Path(broker.data)
        assert (folder / "meta.properties").exists()
    assert not folder.exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        unlucky = fencepost.Broker(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="Address already in use"):
            unlucky.start()
    assert unlucky.data is None


def test_it_comes_back_on_its_port_as_often_as_it_is_started() -> None:
    with fencepost.Broker() as broker:
        address = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers == address
        broker.stop()
        broker.stop()
        broker.start()
        assert broker.bootstrap_servers == address


def test_whoever_uses_it_when_it_does_not_run_is_told_how_to() -> None:
    broker = fencepost.Broker()
    uses: list[Callable[[], str]] = [
        lambda: broker.bootstrap_servers,
        lambda: broker.call(repr),
    ]
    for use in uses:
        with pytest.raises(FencepostError, match="not running: use `with Broker"):
            use()
    with broker, pytest.raises(FencepostError, match="running already"):
        broker.start()
    with pytest.raises(FencepostError, match="not running"):
        broker.call(repr)


def test_two_brokers_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        fencepost.Broker(data=tmp_path),
        pytest.raises(ConfigError, match="in use by another fencepost"),
    ):
        fencepost.Broker(data=tmp_path).start()
