"""How many connections there may be, and how fast they may come."""

from __future__ import annotations

import pytest

from fencepost.broker.network.limits import MOST_WAIT_SECONDS, ConnectionLimits


def limits(**changes: int) -> ConnectionLimits:
    return ConnectionLimits(
        most=4,
        most_of_listener={"INSIDE": 4, "OUTSIDE": 2},
        most_per_ip=changes.get("most_per_ip", 3),
        overrides={"10.0.0.7": 1},
    )


def test_connections_are_limited_in_all_and_those_that_left_do_not_count() -> None:
    found = limits()
    for number in range(4):
        assert found.joined("INSIDE", f"10.0.0.{number}") is None
    assert "max.connections)" in (found.joined("INSIDE", "10.0.0.5") or "")
    found.left("INSIDE", "10.0.0.5")
    found.left("INSIDE", "10.0.0.1")
    assert found.joined("INSIDE", "10.0.0.5") is None


def test_one_listener_may_have_a_limit_of_its_own() -> None:
    found = limits()
    assert found.joined("OUTSIDE", "a") is None
    assert found.joined("OUTSIDE", "b") is None
    assert "listener OUTSIDE has already 2" in (found.joined("OUTSIDE", "c") or "")
    assert found.joined("INSIDE", "c") is None


def test_connections_of_one_address_are_limited() -> None:
    found = limits(most_per_ip=2)
    assert found.joined("INSIDE", "10.0.0.1") is None
    assert found.joined("INSIDE", "::ffff:10.0.0.1") is None
    assert "10.0.0.1 has already 2 (max.connections.per.ip)" in (
        found.joined("INSIDE", "10.0.0.1") or ""
    )
    assert found.joined("INSIDE", "10.0.0.2") is None


def test_an_address_may_have_a_limit_of_its_own() -> None:
    found = limits()
    assert found.joined("INSIDE", "10.0.0.7") is None
    assert "10.0.0.7 has already 1" in (found.joined("INSIDE", "10.0.0.7") or "")


def test_a_forgotten_address_takes_no_memory() -> None:
    found = limits()
    for number in range(1000):
        found.joined("INSIDE", f"10.0.{number}.1")
        found.left("INSIDE", f"10.0.{number}.1")
    assert found._of_ip == {}


def test_connections_beyond_the_rate_wait_one_behind_the_other() -> None:
    found = ConnectionLimits(most=100, most_of_listener={}, rate=10)

    def come(count: int, now: float) -> list[float | None]:
        return [found.wait_seconds("INSIDE", now) for _ in range(count)]

    assert come(10, 100.0) == pytest.approx([0.0] * 10)
    assert come(3, 100.0) == pytest.approx([0.1, 0.2, 0.3])
    # After a second without any, a second's worth may come at once again.
    assert come(11, 110.0) == pytest.approx([0.0] * 10 + [0.1])


def test_a_flood_keeps_nobody_waiting_after_it() -> None:
    own = {"INSIDE": 1_000, "OUTSIDE": 10}
    found = ConnectionLimits(most=100, most_of_listener={}, rate=100, rate_of_listener=own)
    waits = [found.wait_seconds("OUTSIDE", 100.0) for _ in range(100_000)]
    served = [each for each in waits if each is not None]
    assert max(served) <= MOST_WAIT_SECONDS
    assert len(served) == 10 * (1 + MOST_WAIT_SECONDS)
    # Those that were refused took no turn: not of the listener, and not of the broker.
    assert found.wait_seconds("INSIDE", 100.0) == 0
    assert found.wait_seconds("OUTSIDE", 100.0 + MOST_WAIT_SECONDS) == pytest.approx(0.1)
