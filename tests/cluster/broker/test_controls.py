"""Commands for faults, as a broker of a cluster understands them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.broker.faults.faults import LOSE_REPLY, Faults
from fencepost.cluster.broker.controls import Controls
from fencepost.wire.apis import ApiKey

CONTEXT: Any = SimpleNamespace(api_version=5, client_id=None)


class Broker:
    """Records what it was told."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.reach: list[str] = []
        self.points: list[str] = []
        self.controls = Controls(
            self.faults, down=self._down, up=self._up, die_at=self.points.append
        )

    async def _down(self) -> None:
        self.reach.append("down")

    async def _up(self) -> None:
        self.reach.append("up")

    def do(self, **command: Any) -> None:
        asyncio.run(self.controls.run(command))


def test_a_fault_is_set_by_kafkas_name_of_the_api() -> None:
    broker = Broker()
    broker.do(do="fail", api="EndTxn", error="NOT_COORDINATOR")
    broker.do(do="drop", api="EndTxn", effect=True)
    first = broker.faults.take(ApiKey.END_TXN, None, CONTEXT)
    second = broker.faults.take(ApiKey.END_TXN, None, CONTEXT)
    assert first is not None
    assert first.error is ErrorCode.NOT_COORDINATOR
    assert second is not None
    assert second.action == LOSE_REPLY


def test_a_broker_is_taken_down_and_up_again() -> None:
    broker = Broker()
    broker.do(do="down")
    broker.do(do="up")
    assert broker.reach == ["down", "up"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"do": "fail", "api": "EndTx", "error": "NOT_COORDINATOR"}, "no API 'EndTx'"),
        ({"do": "fail", "api": "EndTxn", "error": "OOPS"}, "no error 'OOPS'"),
        ({"do": "delay", "api": "EndTxn", "ms": -1}, "no command"),
        ({"do": "explode"}, "no command"),
        ({}, "no command"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_a_sentence(
    command: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FencepostError, match=sentence):
        Broker().do(**command)
