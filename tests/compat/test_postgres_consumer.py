"""The consumer of PostgreSQL on both brokers: deaths and suspensions at every step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.conftest import Side
from tests.outside.conftest import dsn, postgres  # noqa: F401 - fixtures.
from tests.outside.consumer.scenarios import SUSPENDED_AT, kill_at_every_step, suspend_at
from tests.outside.consumer.stage import Stage, apply

SESSION_MS = 6_000
"""The least that Apache Kafka allows unless it is told otherwise."""


@pytest.fixture
def stage(side: Side, dsn: str, topic: str) -> Iterator[Stage]:  # noqa: F811
    group = f"group-{topic}"
    with Stage(side.bootstrap_servers, dsn, topic, session_ms=SESSION_MS, group=group) as made:
        yield made


def test_a_process_that_is_killed_at_any_step_applies_each_record_once(stage: Stage) -> None:
    kill_at_every_step(stage)


@pytest.mark.parametrize("step", SUSPENDED_AT)
def test_a_process_that_was_suspended_applies_nothing_twice(stage: Stage, step: str) -> None:
    suspend_at(stage, step)


def test_the_new_protocol_of_groups_works(
    apache_kafka: Side,
    dsn: str,  # noqa: F811
    topic: str,
) -> None:
    """KIP-848, which fencepost has not."""
    with Stage(apache_kafka.bootstrap_servers, dsn, topic, group=f"group-{topic}") as stage:
        stage.config = {"group.protocol": "consumer"}
        stage.send("a", "b")
        with stage.consumer() as one:
            apply(next(one))
        two = stage.consumer()
        stage.send("c")
        apply(next(two))
        assert stage.applied() == ["a", "b", "c"]
        assert stage.query("SELECT epoch FROM fencepost_offsets") == [(2,)]
