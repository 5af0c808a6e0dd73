"""Faults of a cluster's brokers, over a control socket that is a JSON round trip in one process."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.broker.faults import faults as mechanism
from fencepost.cluster.broker.controls import Controls
from fencepost.cluster.broker.remote_faults import RemoteFaults
from fencepost.testing.cluster_faults import ClusterFaults
from fencepost.testing.faults import UnfiredFault
from fencepost.wire.apis import ApiKey


async def nowhere() -> None:
    raise AssertionError("no test needs this")


class Brokers:
    """Two brokers, as far as faults are concerned."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.faults = ClusterFaults(self.ask)
        self.there: dict[int, mechanism.Faults] = {}
        self.controls: dict[int, Controls] = {}
        for broker in (1, 2):
            self.restart(broker)

    def restart(self, broker: int) -> None:
        self.there[broker] = mechanism.Faults()
        remote = RemoteFaults(self.there[broker], lambda: self.now_ms)
        self.controls[broker] = Controls(remote, die_at=print, down=nowhere, up=nowhere)

    def kill(self, broker: int) -> None:
        del self.controls[broker]

    def ask(self, broker: int, command: dict[str, Any]) -> Any:
        if broker not in self.controls:
            raise FencepostError(f"Broker {broker} does not run.")
        sent = json.loads(json.dumps(command))
        return json.loads(json.dumps(asyncio.run(self.controls[broker].run(sent))))

    def request(self, broker: int, client_id: str = "a") -> str | None:
        """What happens to an EndTxn."""
        self.now_ms += 1
        context: Any = SimpleNamespace(api_version=5, client_id=client_id)
        found = self.there[broker].take(ApiKey.END_TXN, None, context)
        if found is None:
            return None
        if found.hold is not None and found.action == mechanism.HOLD:
            found.hold(lambda: None)
        return found.action


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_a_fault_meets_requests_at_its_broker_alone_and_as_often_as_it_says(
    brokers: Brokers,
) -> None:
    fault = brokers.faults.on("EndTxn", broker=2, client_id="a").lose_reply().times(2)
    assert [brokers.request(1), brokers.request(2, "b")] == [None, None]
    assert [brokers.request(2) for _ in range(3)] == ["lose_reply", "lose_reply", None]
    assert fault.fired == 2
    assert str(fault) == "EndTxn (client_id='a') at broker 2: lose_reply()"
    assert brokers.faults.pending == []
    brokers.faults.check()


def test_a_probability_has_its_seed_in_the_process_of_the_broker(brokers: Brokers) -> None:
    def pattern(seed: int) -> list[str | None]:
        fault = brokers.faults.on("EndTxn", broker=1).lose_request()
        fault.with_probability(0.5, seed=seed)
        found = [brokers.request(1) for _ in range(50)]
        fault.remove()
        return found

    assert pattern(1) == pattern(1) != pattern(2)


def test_what_fired_is_in_the_order_in_which_it_happened_at_any_broker(brokers: Brokers) -> None:
    brokers.faults.on("EndTxn", broker=1).fail("NOT_COORDINATOR").times(2)
    brokers.faults.on("EndTxn", broker=2).throttle(5)
    for broker in (1, 2, 1):
        brokers.request(broker)
    assert [each.fault for each in brokers.faults.fired] == [
        "fail('NOT_COORDINATOR')",
        "throttle(5)",
        "fail('NOT_COORDINATOR')",
    ]


def test_a_fault_that_never_fired_fails_the_test_unless_it_is_optional(brokers: Brokers) -> None:
    fault = brokers.faults.on("EndTxn", broker=2).hold().on_call(3)
    brokers.request(2)
    with pytest.raises(UnfiredFault, match=r"at broker 2: hold.*1 request matched, and it waits"):
        brokers.faults.check()
    with pytest.raises(UnfiredFault, match="has not fired in 0 s"):
        fault.wait(0)
    fault.optional()
    brokers.faults.check()


def test_what_is_held_is_released_once_and_counted(brokers: Brokers) -> None:
    fault = brokers.faults.on("EndTxn", broker=2).hold().times(2)
    brokers.request(2)
    brokers.request(2)
    fault.wait(times=2)
    assert (fault.held, brokers.faults.held) == (2, 2)
    brokers.faults.release()
    assert fault.held == 0
    brokers.faults.check()


def test_a_removed_fault_meets_nothing_more(brokers: Brokers) -> None:
    fault = brokers.faults.on("EndTxn", broker=1).disconnect().always()
    assert brokers.request(1) == "lose_request"
    fault.remove()
    assert brokers.request(1) is None
    brokers.faults.reset()
    assert (brokers.faults.pending, brokers.faults.fired) == ([], [])


def test_a_fault_that_was_lost_with_its_broker_is_reported_and_not_taken_for_fired(
    brokers: Brokers,
) -> None:
    fired = brokers.faults.on("EndTxn", broker=2).lose_reply()
    brokers.request(2)
    assert fired.fired == 1
    brokers.faults.on("EndTxn", broker=2).lose_request()
    brokers.kill(2)
    with pytest.raises(UnfiredFault, match="cannot tell: Broker 2 does not run"):
        brokers.faults.check()
    brokers.restart(2)
    with pytest.raises(UnfiredFault, match=r"1 of the test's.*\n.*restarted since, and the fault"):
        brokers.faults.check()
    assert (fired.fired, len(brokers.faults.fired)) == (1, 1)
    brokers.faults.clear()
    brokers.faults.check()


def test_a_broker_that_does_not_run_gets_no_fault(brokers: Brokers) -> None:
    brokers.kill(1)
    with pytest.raises(FencepostError, match="does not run"):
        brokers.faults.on("EndTxn", broker=1).hold()
    brokers.faults.check()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda f: f.on("EndTxn"), "for one broker: add broker=2"),
        (lambda f: f.on("EndTx", broker=1), "did you mean 'EndTxn'"),
        (lambda f: f.on("EndTxn", broker=1, version=99), "no version 99"),
        (lambda f: f.on("EndTxn", broker=1).fail("NOPE"), "Kafka has no error 'NOPE'"),
        (lambda f: f.on("EndTxn", broker=1).do(print), "use another fault, or `fencepost.Broker`"),
        (lambda f: f.on("EndTxn", broker=2).crash(), r"`cluster.kill\(2\)`"),
        (lambda f: f.at("commit.prepare-appended"), "cannot crash at a step"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_in_a_sentence(
    brokers: Brokers, wrong: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        wrong(brokers.faults)
