"""Names that do not exist are refused with the nearest; waits end when something is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

import fencepost
from fencepost.base.failures import ConfigError, FencepostError


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    config = {"group.initial.rebalance.delay.ms": 0}
    with fencepost.Broker(config=config) as started:
        yield started


def read(broker: fencepost.Broker, group: str, topic: str, count: int) -> None:
    """Reads that many records and commits what was read."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            while (message := consumer.poll(0.1)) is None:
                pass
            assert message.error() is None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


# -- names -----------------------------------------------------------------------------------------


def test_a_misspelt_group_is_refused_with_the_one_that_there_is(broker: fencepost.Broker) -> None:
    broker.produce("t", "a")
    read(broker, "refunds", "t", 1)
    assert broker.groups() == ["refunds"]
    typo = broker.group("refnuds")
    for ask in (lambda: typo.offsets, lambda: typo.lag, lambda: typo.members):
        with pytest.raises(FencepostError, match=r"no group 'refnuds'.*did you mean 'refunds'?"):
            ask()
    with pytest.raises(FencepostError, match="no group 'refnuds'"):
        typo.expire("anyone")


def test_a_misspelt_transactional_id_is_not_fenced(broker: fencepost.Broker) -> None:
    broker.produce("t", "a", transactional_id="refunds-1")
    with pytest.raises(FencepostError, match=r"'refnuds-1': did you mean 'refunds-1'?"):
        broker.fence("refnuds-1")
    assert [each.transactional_id for each in broker.transactions()] == ["refunds-1"]
    broker.fence("refunds-1")


def test_a_misspelt_topic_is_refused_with_the_one_that_there_is(broker: fencepost.Broker) -> None:
    broker.create_topic("payments")
    with pytest.raises(FencepostError, match=r"no topic 'paymnets': did you mean 'payments'?"):
        broker.records("paymnets")


# -- records ---------------------------------------------------------------------------------------


def test_records_are_written_with_headers_and_a_time(broker: fencepost.Broker) -> None:
    broker.produce("t", "a", ("k", "b"), headers={"one": "1", "none": None}, timestamp_ms=1_000)
    for record in broker.records("t"):
        assert record.headers == (("one", b"1"), ("none", None))
        assert record.timestamp_ms == 1_000
    for wrong in (-1, 1.5, "now", True):
        with pytest.raises(ConfigError, match="timestamp_ms"):
            broker.produce("t", "a", timestamp_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        broker.produce("t", "a", headers={"one": 1})  # type: ignore[dict-item]


# -- waits -----------------------------------------------------------------------------------------


def test_wait_for_returns_when_the_records_are_there(broker: fencepost.Broker) -> None:
    later = threading.Timer(0.1, lambda: broker.produce("later", "a", "b"))
    later.start()
    assert [each.value for each in broker.wait_for("later", 2)] == [b"a", b"b"]
    later.join()


def test_wait_for_says_what_there_is(broker: fencepost.Broker) -> None:
    with pytest.raises(AssertionError, match="no such topic"):
        broker.wait_for("never", 1, timeout_seconds=0)
    broker.produce("t", "a")
    broker.produce("t", "b", transactional_id="x", commit=False)
    with pytest.raises(AssertionError, match=r"1 committed records.*not 2.*1 aborted"):
        broker.wait_for("t", 2, timeout_seconds=0)


def test_a_group_has_caught_up_when_it_has_committed_all_that_it_can_see(
    broker: fencepost.Broker,
) -> None:
    broker.create_topic("t", partitions=1)
    broker.produce("t", "a", "b", transactional_id="x")
    group = broker.group("g")
    with pytest.raises(AssertionError, match="no such group"):
        group.wait_until_caught_up(timeout_seconds=0)
    service = threading.Thread(target=read, args=(broker, "g", "t", 2))
    service.start()
    group.wait_until_caught_up()
    service.join()
    broker.produce("t", "never seen", transactional_id="x", commit=False)
    group.wait_until_caught_up(timeout_seconds=0)
    broker.produce("t", "c")
    with pytest.raises(AssertionError, match="1 records of t-0"):
        group.wait_until_caught_up(timeout_seconds=0)


# -- what completion shows
# -----------------------------------------------------------------------------


def test_completion_shows_what_is_public_and_nothing_else(broker: fencepost.Broker) -> None:
    assert {each for each in dir(fencepost) if not each.startswith("__")} == {
        each for each in fencepost.__all__ if each != "__version__"
    }
    shown = {name for name in dir(broker) if not name.startswith("__")}
    assert not {name for name in shown if name.startswith("_")}
    assert not shown & {"node", "call"}
    assert {"produce", "committed", "group", "faults", "clock", "snapshot", "restore"} <= shown
    assert all(hasattr(broker.faults, name) for name in dir(broker.faults))
    assert dir(broker.faults) == [
        *("at", "check", "clear", "fired", "held", "on", "pending", "release", "reset", "steps")
    ]
