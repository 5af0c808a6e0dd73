"""The brokers of the demo."""

from __future__ import annotations

from pathlib import Path

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost_examples.demo.cluster import OwnBroker
from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.processes import Supervisor
from tests.spark.conftest import environment


def test_a_killed_broker_of_the_demo_is_restarted_with_its_data_at_its_address(
    tmp_path: Path,
) -> None:
    with (
        Interruption() as interruption,
        Supervisor(interruption, tmp_path, environment()) as supervisor,
    ):
        broker = OwnBroker(supervisor, tmp_path / "data")
        broker.start()
        address = broker.address
        with connect(address) as cluster:
            cluster.create_topics([NewTopic("kept", 1)])
            broker.kill()
            broker.start()
            assert broker.address == address
            assert cluster.find_topic("kept") is not None
