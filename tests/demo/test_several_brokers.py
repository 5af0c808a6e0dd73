"""Which of several brokers the demo hits."""

from __future__ import annotations

from random import Random

import pytest

import fencepost
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost_examples.demo.plan import (
    Aim,
)
from fencepost_examples.demo.several_brokers import Target, choose


@pytest.mark.parametrize(
    ("aim", "role"),
    [
        (Aim.COORDINATOR, "the transaction coordinator of 'refunds'"),
        (Aim.LEADER, "the leader of refund-audit-0"),
        (Aim.ANY, ""),
    ],
)
def test_the_broker_to_hit_is_the_one_that_has_the_role(aim: Aim, role: str) -> None:
    with fencepost.Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("refund-audit", 1)])
        cluster.init_producer_id("refunds")
        (broker_id,) = cluster.metadata().brokers

        def target(serving: list[int]) -> Target:
            return choose(
                aim,
                cluster,
                serving,
                transactional_id="refunds",
                topic="refund-audit",
                rng=Random(1),
            )

        assert target([broker_id]) == Target(broker_id, role)
        # If that one does not serve at the moment, another is hit.
        assert target([broker_id + 1]) == Target(broker_id + 1)
