"""Traces written by hand."""

from __future__ import annotations

from typing import Any

from fencepost.forensics.tap.swimlane.conclusion import Conclusion, Outcome, conclude
from fencepost.forensics.tap.swimlane.story import Story

ID = "refunds-1"
START_US = 1_800_000_000_000_000


class Script:
    """The lines of a trace, written by hand."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.number = 0
        self.lines: list[dict[str, Any]] = [
            {"format": "fencepost-tap", "version": 1, "kind": "start", "time_us": START_US}
        ]

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)

    def ask(self, api: str, body: dict[str, Any], connection: int = 1, broker: int = 1) -> int:
        self.number += 1
        self.now_us += 100
        self._add("request", api, connection, broker, self.number, body=body)
        return self.number

    def answer(self, number: int, body: dict[str, Any], *errors: str) -> None:
        self.now_us += 900
        sent = next(
            line
            for line in self.lines
            if line["kind"] == "request" and line["correlation_id"] == number
        )
        self._add(
            "reply",
            sent["api"],
            sent["connection"],
            sent["broker"],
            number,
            duration_us=self.now_us - sent["time_us"],
            errors=list(errors),
            body=body,
        )

    def close(self, connection: int, reason: str = "the broker has closed it") -> None:
        self.now_us += 100
        self.lines.append(
            {
                "time_us": self.now_us,
                "kind": "connection",
                "event": "closed",
                "connection": connection,
                "client": f"127.0.0.1:{50_000 + connection}",
                "reason": reason,
            }
        )

    def tick(self, seconds: float = 0.05) -> None:
        """Something else happens: the trace goes on."""
        self.wait(seconds)
        self.lines.append({"time_us": self.now_us, "kind": "connection", "event": "opened"})

    def call(
        self, api: str, body: dict[str, Any], reply: dict[str, Any], *errors: str, **where: int
    ) -> None:
        self.answer(self.ask(api, body, **where), reply, *errors)

    def init(self, epoch: int, **where: int) -> None:
        asked = {"transactional_id": ID, "transaction_timeout_ms": 30_000}
        self.call("InitProducerId", asked, {"producer_id": 7, "producer_epoch": epoch}, **where)

    def end(self, epoch: int, *errors: str, **where: int) -> None:
        body = {"transactional_id": ID, "producer_id": 7, "producer_epoch": epoch}
        self.call("EndTxn", {**body, "committed": True}, {}, *errors, **where)

    def _add(
        self, kind: str, api: str, connection: int, broker: int, number: int, **more: Any
    ) -> None:
        self.lines.append(
            {
                "time_us": self.now_us,
                "kind": kind,
                "connection": connection,
                "client": f"127.0.0.1:{50_000 + connection}",
                "address": f"kafka-{broker}:9092",
                "broker": broker,
                "client_id": f"worker-{connection % 10}",
                "api": api,
                "api_version": 4,
                "correlation_id": number,
                "size_bytes": 100,
                **more,
            }
        )


def written(partition: int, epoch: int, sequence: int = 0) -> dict[str, Any]:
    batch = {
        "record_count": 5,
        "producer_id": 7,
        "producer_epoch": epoch,
        "base_sequence": sequence,
    }
    data = {"index": partition, "records": {"size_bytes": 99, "batches": [batch]}}
    return {"transactional_id": ID, "topic_data": [{"name": "payments", "partition_data": [data]}]}


def a_timeout() -> Script:
    """A producer writes, is silent for 47.2 s, and comes too late."""
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.end(0)
    script.call("Produce", written(0, 0, 5), {}, connection=2, broker=2)
    script.wait(47.2)
    script.ask("Produce", written(0, 0, 10), connection=2, broker=2)
    script.end(0, "PRODUCER_FENCED")
    return script


def is_fenced(story: Story) -> bool:
    return conclude(story)[0].outcome is Outcome.FENCED


def fence_of(story: Story) -> Conclusion:
    """The first conclusion, which must be a fence."""
    found = conclude(story)[0]
    assert found.outcome is Outcome.FENCED
    assert found.call is not None
    return found
