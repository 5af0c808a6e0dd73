"""The refunds processor: the rows of a settlement, and every branch of the error handling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    Kafka,
    KafkaFailure,
    Message,
    Place,
    RetriableError,
)
from fencepost_examples.refunds.processor.processor import (
    MAX_ATTEMPTS,
    RefundsProcessor,
    next_offsets,
)
from fencepost_examples.refunds.processor.rows import SETTLEMENTS, Audit, Refund, read_settlement
from tests.transactions.refunds_stage import settlement

# -- the rows of a settlement ----------------------------------------------------------------------


def test_a_settlement_becomes_a_refund_and_an_audit_row() -> None:
    assert read_settlement(settlement(7), "settlements-0@7") == (
        Refund("RFD-7", 250_007, "merchant-1"),
        Audit("RFD-7", "system", "merchant-initiated"),
    )


def test_a_settlement_may_have_a_reason() -> None:
    value = json.dumps(
        {"refund_id": "R", "amount_paise": 1, "merchant": "m", "reason": "chargeback"}
    )
    _, audit = read_settlement(value.encode(), "")
    assert audit.reason == "chargeback"


@pytest.mark.parametrize(
    "value", [None, b"", b"not json", b"[]", b"7", b"null", b"{}", b'{"refund_id": "R"}', b"\xff"]
)
def test_an_unreadable_settlement_is_audited_and_not_paid(value: bytes | None) -> None:
    refund, audit = read_settlement(value, "settlements-0@3")
    assert refund is None
    assert audit.refund_id == "settlements-0@3"
    assert audit.reason.startswith("unreadable")


@pytest.mark.parametrize("amount", [0, -5])
def test_nothing_is_refunded_if_nothing_is_due(amount: int) -> None:
    value = json.dumps({"refund_id": "R", "amount_paise": amount, "merchant": "m"}).encode()
    assert read_settlement(value, "") == (None, Audit("R", "system", "nothing to refund"))


# -- the flow, with a scripted client --------------------------------------------------------------


class ScriptedKafka:
    """Fails as scripted: the n-th call of a method raises the n-th entry; None is a success."""

    def __init__(self, **script: Sequence[KafkaFailure | Exception | None]) -> None:
        self.script = {name: list(entries) for name, entries in script.items()}
        self.calls: list[str] = []
        self.position = 0
        self.committed = 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        entries = self.script.get(name)
        problem = entries.pop(0) if entries else None
        if problem is not None:
            raise problem

    def init_transactions(self) -> None:
        self._call("init_transactions")

    def poll(self) -> Sequence[Message]:
        self._call("poll")
        start, self.position = self.position, 2
        return [Message(SETTLEMENTS, 0, offset, settlement(offset)) for offset in range(start, 2)]

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._call("send")

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        assert offsets == {(SETTLEMENTS, 0): 2}
        self._call("send_offsets")

    def commit(self) -> None:
        self._call("commit")
        self.committed = 2

    def abort(self) -> None:
        self._call("abort")

    def rewind(self) -> None:
        self._call("rewind")
        self.position = self.committed

    def close(self) -> None:
        self._call("close")


def processor(kafka: Kafka, pauses: list[float] | None = None) -> RefundsProcessor:
    taken: list[float] = []
    return RefundsProcessor(kafka, pause=(taken if pauses is None else pauses).append)


WHOLE: Final = ["poll", "begin", "send", "send", "send", "send", "send_offsets", "commit"]


def test_a_transaction_has_writes_offsets_and_a_commit() -> None:
    kafka = ScriptedKafka()
    assert processor(kafka).process_some() == 2
    assert kafka.calls == WHOLE


def test_without_settlements_there_is_no_transaction() -> None:
    kafka = ScriptedKafka()
    kafka.position = 2
    assert processor(kafka).process_some() == 0
    assert kafka.calls == ["poll"]


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_a_fenced_processor_closes_without_an_abort(where: str) -> None:
    kafka = ScriptedKafka(**{where: [FencedError()]})
    with pytest.raises(FencedError):
        processor(kafka).process_some()
    assert kafka.calls[-2:] == [where, "close"]
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_an_abortable_error_leads_to_an_abort_and_a_retry(where: str) -> None:
    kafka = ScriptedKafka(**{where: [AbortableError()]})
    shard = processor(kafka)
    assert shard.process_some() == 0
    assert kafka.calls[-3:] == [where, "abort", "rewind"]
    kafka.calls.clear()
    assert shard.process_some() == 2
    assert kafka.calls == WHOLE


@pytest.mark.parametrize("where", ["poll", "send", "send_offsets", "commit", "init_transactions"])
def test_a_retriable_error_repeats_the_call_after_a_growing_pause(where: str) -> None:
    kafka = ScriptedKafka(**{where: [RetriableError()] * 3})
    pauses: list[float] = []
    shard = processor(kafka, pauses)
    shard.start()
    assert shard.process_some() == 2
    assert pauses == [0.05, 0.1, 0.2]
    first = kafka.calls.index(where)
    assert kafka.calls[first : first + 4] == [where] * 4
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("where", ["abort", "rewind"])
def test_abort_and_rewind_are_also_retried(where: str) -> None:
    kafka = ScriptedKafka(send_offsets=[AbortableError()], **{where: [RetriableError()] * 2})
    assert processor(kafka).process_some() == 0
    assert kafka.calls.count(where) == 3


@pytest.mark.parametrize("where", ["poll", "send", "send_offsets", "commit"])
def test_too_many_retries_stop_the_processor_without_an_abort(where: str) -> None:
    """After a commit with an unknown outcome an abort is a guess; the next instance finds out."""
    kafka = ScriptedKafka(**{where: [RetriableError()] * MAX_ATTEMPTS})
    with pytest.raises(RetriableError):
        processor(kafka).process_some()
    assert kafka.calls.count(where) == MAX_ATTEMPTS
    assert kafka.calls[-1] == "close"
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_a_fatal_error_aborts_and_stops_the_processor(where: str) -> None:
    kafka = ScriptedKafka(**{where: [FatalError("why")]})
    with pytest.raises(FatalError, match="why"):
        processor(kafka).process_some()
    assert kafka.calls[-3:] == [where, "abort", "close"]


@pytest.mark.parametrize("problem", [FatalError("no"), FencedError("no"), RetriableError("no")])
def test_a_fatal_error_is_reported_even_if_the_abort_fails(problem: KafkaFailure) -> None:
    kafka = ScriptedKafka(commit=[FatalError("why")], abort=[problem])
    with pytest.raises(FatalError, match="why"):
        processor(kafka).process_some()
    assert kafka.calls[-1] == "close"


@pytest.mark.parametrize("problem", [FatalError(), FencedError(), AbortableError()])
def test_an_abort_that_fails_for_good_stops_the_processor(problem: KafkaFailure) -> None:
    kafka = ScriptedKafka(commit=[AbortableError()], abort=[problem])
    with pytest.raises(type(problem)):
        processor(kafka).process_some()
    assert kafka.calls[-2:] == ["abort", "close"]


def test_a_bug_stops_the_processor() -> None:
    kafka = ScriptedKafka(send=[ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        processor(kafka).process_some()
    assert kafka.calls[-1] == "close"


@pytest.mark.parametrize("problem", [FatalError(), FencedError()])
def test_a_processor_that_cannot_take_over_the_id_does_not_start(problem: KafkaFailure) -> None:
    kafka = ScriptedKafka(init_transactions=[problem])
    with pytest.raises(type(problem)):
        processor(kafka).start()
    assert kafka.calls == ["init_transactions", "close"]


def test_a_processor_runs_until_it_is_stopped() -> None:
    kafka = ScriptedKafka()
    answers = iter([False, False, True])
    processor(kafka).run(stop=lambda: next(answers))
    assert kafka.calls == [*WHOLE, "poll", "close"]


def test_the_next_offset_follows_the_last_message_of_each_partition() -> None:
    messages = [Message("s", 0, 4, None), Message("s", 1, 9, None), Message("s", 0, 7, None)]
    assert next_offsets(messages) == {("s", 0): 8, ("s", 1): 10}
