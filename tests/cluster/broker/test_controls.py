"""Commands for faults, as a broker of a cluster understands them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.failures import FencepostError
from fencepost.broker.faults.faults import LOSE_REPLY, Faults
from fencepost.cluster.broker.controls import Controls
from fencepost.cluster.broker.remote_faults import RemoteFaults
from fencepost.wire.apis import ApiKey

CONTEXT: Any = SimpleNamespace(api_version=5, client_id=None)


class Broker:
    """Records what it was told."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.remote = RemoteFaults(self.faults, lambda: 1)
        self.reach: list[str] = []
        self.points: list[str] = []
        self.controls = Controls(
            self.remote, down=self._down, up=self._up, die_at=self.points.append
        )

    async def _down(self) -> None:
        self.reach.append("down")

    async def _up(self) -> None:
        self.reach.append("up")

    def do(self, **command: Any) -> Any:
        return asyncio.run(self.controls.run(command))


FAULT: dict[str, Any] = {
    "api": "EndTxn", "action": "fail", "error": "NOT_COORDINATOR", "delay_ms": 0,
    "disconnect": True, "match": {}, "first": 1, "count": 1, "probability": 1.0, "seed": 0,
}  # fmt: skip


def test_a_fault_is_armed_counted_and_ended_by_its_number() -> None:
    broker = Broker()
    for number, action in ((7, "lose_reply"), (8, "hold"), (9, "lose_request")):
        broker.do(do="fault", id=number, fault={**FAULT, "action": action})
    broker.do(do="unfault", id=9)
    first, second, third = (broker.faults.take(ApiKey.END_TXN, None, CONTEXT) for _ in range(3))
    assert first is not None
    assert first.action == LOSE_REPLY
    assert second is not None
    assert second.hold is not None
    assert third is None
    resumed: list[str] = []
    second.hold(lambda: resumed.append("x"))
    found = broker.do(do="faults")
    assert {number: each["fired"] for number, each in found["faults"].items()} == {
        "7": 1,
        "8": 1,
        "9": 0,
    }
    assert found["faults"]["8"]["held"] == 1
    assert [each["number"] for each in found["fired"]] == [7, 8]
    broker.do(do="release", ids=[8, 99])
    broker.do(do="release", ids=[8])
    assert resumed == ["x"]


def test_a_broker_is_taken_down_and_up_again() -> None:
    broker = Broker()
    broker.do(do="down")
    broker.do(do="up")
    assert broker.reach == ["down", "up"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"do": "fault", "id": 1, "fault": {**FAULT, "api": "EndTx"}}, "no API 'EndTx'"),
        ({"do": "fault", "id": 1, "fault": {**FAULT, "error": "OOPS"}}, "no error 'OOPS'"),
        ({"do": "fault", "id": 1, "fault": {**FAULT, "action": "crash"}}, "no fault 'crash'"),
        ({"do": "fault", "id": 1, "fault": {**FAULT, "match": {"a": 1}}}, "This is not a fault"),
        ({"do": "fault", "id": 1, "fault": {}}, "This is not a fault"),
        ({"do": "fault", "id": "1", "fault": FAULT}, "no command"),
        ({"do": "explode"}, "no command"),
        ({}, "no command"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_a_sentence(
    command: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FencepostError, match=sentence):
        Broker().do(**command)
