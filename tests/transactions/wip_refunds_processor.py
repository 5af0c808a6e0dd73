"""The refunds processor: every branch of its error handling, and three client libraries against a broker with faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

import fencepost
from examples.refunds_processor.__main__ import CLIENTS, connect
from examples.refunds_processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    Kafka,
    KafkaFailure,
    Message,
    Place,
    RetriableError,
)
from examples.refunds_processor.processor import MAX_ATTEMPTS, RefundsProcessor, next_offsets
from examples.refunds_processor.refunds import (
    REFUND_AUDIT,
    REFUNDS_EMITTED,
    SETTLEMENTS,
    Audit,
    Refund,
    read_settlement,
)
from fencepost.base.seams import Clock
from fencepost.broker.node import Node
from fencepost.wire.apis import ApiKey
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.wire import (
    GROUP,
    await_coordinator,
    committed_offset,
    committed_offsets,
    values,
)

GROUP_NAME: Final = "refunds-processor"
SHARD: Final = "refunds-processor-0"


def settlement(number: int) -> bytes:
    fields = {
        "refund_id": f"RFD-{number}",
        "amount_paise": 250_000 + number,
        "merchant": f"merchant-{number % 3}",
    }
    return json.dumps(fields).encode()


# -- what a settlement becomes ----------------------------------------------------------------------------------


def test_a_settlement_becomes_a_refund_and_an_audit_row() -> None:
    assert read_settlement(settlement(7), "settlements-0@7") == (
        Refund("RFD-7", 250_007, "merchant-1"),
        Audit("RFD-7", "system", "merchant-initiated"),
    )


def test_a_settlement_may_name_its_reason() -> None:
    value = json.dumps(
        {"refund_id": "R", "amount_paise": 1, "merchant": "m", "reason": "chargeback"}
    )
    _, audit = read_settlement(value.encode(), "")
    assert audit.reason == "chargeback"


@pytest.mark.parametrize(
    "value",
    [None, b"", b"not json", b"[]", b"7", b"null", b"{}", b'{"refund_id": "R"}', b"\xff"],
)
def test_what_cannot_be_read_is_audited_and_not_paid(value: bytes | None) -> None:
    refund, audit = read_settlement(value, "settlements-0@3")
    assert refund is None
    assert audit.refund_id == "settlements-0@3"
    assert audit.reason.startswith("unreadable")


@pytest.mark.parametrize("amount", [0, -5])
def test_nothing_is_refunded_where_nothing_is_due(amount: int) -> None:
    value = json.dumps({"refund_id": "R", "amount_paise": amount, "merchant": "m"}).encode()
    assert read_settlement(value, "") == (None, Audit("R", "system", "nothing to refund"))


# -- the flow, with a client that does as it is told ------------------------------------------------------------


class ScriptedKafka:
    """Fails as the script says: the n-th call of a method raises the n-th entry, None for success."""

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


def test_a_transaction_is_its_writes_its_offsets_and_its_commit() -> None:
    kafka = ScriptedKafka()
    assert processor(kafka).process_some() == 2
    assert kafka.calls == WHOLE


def test_without_settlements_there_is_no_transaction() -> None:
    kafka = ScriptedKafka()
    kafka.position = 2
    assert processor(kafka).process_some() == 0
    assert kafka.calls == ["poll"]


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_fenced_it_closes_and_stops_and_aborts_nothing(where: str) -> None:
    kafka = ScriptedKafka(**{where: [FencedError()]})
    with pytest.raises(FencedError):
        processor(kafka).process_some()
    assert kafka.calls[-2:] == [where, "close"]
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_abortable_it_aborts_and_goes_back_and_does_it_again(where: str) -> None:
    kafka = ScriptedKafka(**{where: [AbortableError()]})
    shard = processor(kafka)
    assert shard.process_some() == 0
    assert kafka.calls[-3:] == [where, "abort", "rewind"]
    kafka.calls.clear()
    assert shard.process_some() == 2
    assert kafka.calls == WHOLE


@pytest.mark.parametrize("where", ["poll", "send", "send_offsets", "commit", "init_transactions"])
def test_retriable_it_makes_the_same_call_again_after_a_growing_pause(where: str) -> None:
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
def test_an_abort_and_a_way_back_are_retried_too(where: str) -> None:
    kafka = ScriptedKafka(send_offsets=[AbortableError()], **{where: [RetriableError()] * 2})
    assert processor(kafka).process_some() == 0
    assert kafka.calls.count(where) == 3


@pytest.mark.parametrize("where", ["poll", "send", "send_offsets", "commit"])
def test_what_is_retried_too_often_ends_the_instance_without_an_abort(where: str) -> None:
    """After a commit whose outcome is open an abort would be a guess; the next instance finds out."""
    kafka = ScriptedKafka(**{where: [RetriableError()] * MAX_ATTEMPTS})
    with pytest.raises(RetriableError):
        processor(kafka).process_some()
    assert kafka.calls.count(where) == MAX_ATTEMPTS
    assert kafka.calls[-1] == "close"
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("where", ["begin", "send", "send_offsets", "commit"])
def test_fatal_it_aborts_if_it_can_and_tells_people(where: str) -> None:
    kafka = ScriptedKafka(**{where: [FatalError("why")]})
    with pytest.raises(FatalError, match="why"):
        processor(kafka).process_some()
    assert kafka.calls[-3:] == [where, "abort", "close"]


@pytest.mark.parametrize("problem", [FatalError("no"), FencedError("no"), RetriableError("no")])
def test_fatal_and_without_an_abort_either_it_still_tells_the_first_reason(
    problem: KafkaFailure,
) -> None:
    kafka = ScriptedKafka(commit=[FatalError("why")], abort=[problem])
    with pytest.raises(FatalError, match="why"):
        processor(kafka).process_some()
    assert kafka.calls[-1] == "close"


@pytest.mark.parametrize("problem", [FatalError(), FencedError(), AbortableError()])
def test_an_abort_that_fails_for_good_ends_the_instance(problem: KafkaFailure) -> None:
    kafka = ScriptedKafka(commit=[AbortableError()], abort=[problem])
    with pytest.raises(type(problem)):
        processor(kafka).process_some()
    assert kafka.calls[-2:] == ["abort", "close"]


def test_a_bug_of_ours_ends_the_instance_too() -> None:
    kafka = ScriptedKafka(send=[ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        processor(kafka).process_some()
    assert kafka.calls[-1] == "close"


@pytest.mark.parametrize("problem", [FatalError(), FencedError()])
def test_whoever_cannot_take_the_id_over_does_not_start(problem: KafkaFailure) -> None:
    kafka = ScriptedKafka(init_transactions=[problem])
    with pytest.raises(type(problem)):
        processor(kafka).start()
    assert kafka.calls == ["init_transactions", "close"]


def test_it_runs_until_it_is_told_to_stop() -> None:
    kafka = ScriptedKafka()
    answers = iter([False, False, True])
    processor(kafka).run(stop=lambda: next(answers))
    assert kafka.calls == [*WHOLE, "poll", "close"]


def test_the_next_offset_is_behind_the_last_message_of_each_partition() -> None:
    messages = [Message("s", 0, 4, None), Message("s", 1, 9, None), Message("s", 0, 7, None)]
    assert next_offsets(messages) == {("s", 0): 8, ("s", 1): 10}


# -- three client libraries against a broker ------------------------------------------------------------------


class World:
    """A broker with the three topics, and everything that is read back from it."""

    def __init__(self, broker: fencepost.Broker, client_name: str) -> None:
        self.broker = broker
        self._client_name = client_name
        self.raw = RawClient(broker.bootstrap_servers)
        self._made: list[Kafka] = []
        self.settled = 0
        for topic in (SETTLEMENTS, REFUNDS_EMITTED, REFUND_AUDIT):
            create_topic(self.raw, topic)
        await_coordinator(self.raw, GROUP_NAME, GROUP)
        await_coordinator(self.raw, SHARD)

    def settle(self, count: int) -> None:
        """That many new settlements."""
        numbers = range(self.settled, self.settled + count)
        produce(self.raw, SETTLEMENTS, batch_of(*map(settlement, numbers)))
        self.settled += count

    def connect(self, **options: Any) -> Kafka:
        kafka = connect(
            self._client_name,
            self.broker.bootstrap_servers,
            transactional_id=SHARD,
            group=GROUP_NAME,
            source=[(SETTLEMENTS, 0)],
            **options,
        )
        self._made.append(kafka)
        return kafka

    def work(self, kafka: Kafka | None = None) -> None:
        """A new instance settles all that there is to settle."""
        shard = RefundsProcessor(kafka or self.connect())
        shard.start()
        self.finish(shard)

    def finish(self, shard: RefundsProcessor) -> None:
        for _ in range(50):
            if self.offset() == self.settled:
                return
            shard.process_some()
        raise AssertionError(f"only {self.offset()} of {self.settled} settlements are settled")

    def offset(self) -> int:
        """How far the group has come, as far as that is decided."""
        (told,) = committed_offsets(self.raw, GROUP_NAME, SETTLEMENTS)
        return max(0, int(told.committed_offset))

    def rows(self, topic: str, *, committed: bool = True) -> list[str]:
        return [
            json.loads(value)["refund_id"]
            for value in values(self.raw, topic, committed=committed)
            if value is not None
        ]

    def assert_exactly_once(self) -> None:
        expected = [f"RFD-{number}" for number in range(self.settled)]
        assert self.rows(REFUNDS_EMITTED) == expected
        assert self.rows(REFUND_AUDIT) == expected
        assert committed_offset(self.raw, GROUP_NAME, SETTLEMENTS) == self.settled

    def close(self) -> None:
        self.raw.close()
        for kafka in self._made:
            kafka.close()


@pytest.fixture(params=CLIENTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    settings = {
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
    }
    with fencepost.Broker(config=settings) as broker:
        made = World(broker, request.param)
        try:
            yield made
        finally:
            made.close()


def test_settlements_become_refunds_audit_rows_and_offsets(world: World) -> None:
    world.settle(25)
    world.work()
    world.assert_exactly_once()
    first, *_ = values(world.raw, REFUNDS_EMITTED)
    assert json.loads(first or b"") == {
        "refund_id": "RFD-0",
        "amount_paise": 250_000,
        "merchant": "merchant-0",
    }
    first, *_ = values(world.raw, REFUND_AUDIT)
    assert json.loads(first or b"") == {
        "refund_id": "RFD-0",
        "actor": "system",
        "reason": "merchant-initiated",
    }


def test_an_aborted_transaction_shows_in_one_isolation_level_only(world: World) -> None:
    world.settle(3)
    kafka = world.connect()
    kafka.init_transactions()
    messages: list[Message] = []
    while len(messages) < 3:
        messages += kafka.poll()
    kafka.begin()
    kafka.send(REFUNDS_EMITTED, b"k", settlement(99))
    kafka.send_offsets(next_offsets(messages))
    kafka.abort()
    kafka.rewind()
    assert world.rows(REFUNDS_EMITTED) == []
    assert committed_offset(world.raw, GROUP_NAME, SETTLEMENTS) == -1
    world.finish(RefundsProcessor(kafka))
    world.assert_exactly_once()
    seen = world.rows(REFUNDS_EMITTED, committed=False)
    assert seen in (["RFD-99", "RFD-0", "RFD-1", "RFD-2"], ["RFD-0", "RFD-1", "RFD-2"])


def test_what_cannot_be_written_now_is_aborted_and_written_later(world: World) -> None:
    """Abortable, by a real broker: for a while the audit may not be written."""
    world.settle(4)

    class NoAudit:
        def authorize(self, principal: str, operation: str, kind: str, name: str) -> bool:
            return (operation, name) != ("WRITE", REFUND_AUDIT)

    def change(authorizer: Any) -> Callable[[Node], None]:
        def set_it(node: Node) -> None:
            node.authorizer = authorizer

        return set_it

    allowing = world.broker.call(lambda node: node.authorizer)
    kafka = Watched(world.connect())
    shard = RefundsProcessor(kafka)
    shard.start()
    world.broker.call(change(NoAudit()))
    while "abort" not in kafka.calls:
        assert shard.process_some() == 0
    assert world.rows(REFUNDS_EMITTED) == world.rows(REFUND_AUDIT) == []
    world.broker.call(change(allowing))
    world.finish(shard)
    world.assert_exactly_once()


class Watched:
    """A client whose calls are remembered."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._kafka, name)


def test_a_zombie_is_fenced_and_what_it_wrote_is_never_seen(world: World) -> None:
    world.settle(5)
    zombie = world.connect()
    zombie.init_transactions()
    messages: list[Message] = []
    while not messages:
        messages = list(zombie.poll())
    zombie.begin()
    zombie.send(REFUNDS_EMITTED, b"k", settlement(77))
    world.work()
    with pytest.raises(FencedError):
        zombie.send_offsets(next_offsets(messages))
        zombie.commit()
    world.assert_exactly_once()


def test_a_zombie_that_is_a_processor_closes_and_stops(world: World) -> None:
    world.settle(2)
    shard = RefundsProcessor(world.connect())
    shard.start()
    world.finish(shard)
    world.settle(2)
    world.work()
    world.settle(2)
    with pytest.raises(FencedError):
        for _ in range(20):
            shard.process_some()
    world.work()
    world.assert_exactly_once()


class Ahead:
    """A clock that is ahead of another one."""

    def __init__(self, clock: Clock, milliseconds: int) -> None:
        self._clock = clock
        self._milliseconds = milliseconds

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._milliseconds


def test_a_transaction_that_takes_too_long_is_aborted_and_a_new_instance_does_it_again(
    world: World,
) -> None:
    world.settle(3)
    slow = world.connect()
    slow.init_transactions()
    messages: list[Message] = []
    while not messages:
        messages = list(slow.poll())
    slow.begin()
    slow.send(REFUNDS_EMITTED, b"k", settlement(88))
    slow.send_offsets(next_offsets(messages))

    def let_time_pass(node: Node) -> None:
        node.clock = Ahead(node.clock, 120_000)
        node.transactions.clock.abort_timed_out()

    world.broker.call(let_time_pass)
    with pytest.raises(KafkaFailure) as told:
        slow.commit()
    assert isinstance(told.value, (FencedError, AbortableError, FatalError))
    world.work()
    world.assert_exactly_once()


# -- crashes --------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)


@pytest.mark.parametrize("effect", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_a_connection_that_breaks_at_any_request_loses_and_doubles_nothing(
    world: World, api: ApiKey, effect: bool
) -> None:
    world.settle(3)
    world.broker.call(lambda node: node.faults.drop(api, effect=effect))
    world.work()
    assert world.broker.call(lambda node: not node.faults), "the fault was used"
    world.assert_exactly_once()


class Died(BaseException):
    """The process of a processor is gone."""


class DyingKafka:
    """A client whose process dies at its n-th call, before the call or right after its effect."""

    def __init__(self, kafka: Kafka, lives_for: int, *, after: bool = False) -> None:
        self._kafka = kafka
        self._left = lives_for
        self._after = after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "close":  # The dead do not close anything.
            return lambda: None
        real = getattr(self._kafka, name)

        def call(*arguments: Any) -> Any:
            if self._left == 0 and not self._after:
                raise Died
            result = real(*arguments)
            if self._left == 0:
                raise Died
            self._left -= name != "poll" or bool(result)  # An empty poll does not count.
            return result

        return call


def test_a_process_that_dies_at_any_call_loses_and_doubles_nothing(world: World) -> None:
    """init, poll, begin, four writes, offsets, commit: with the next instance at work, all is as it should be."""
    deaths = [(number, False) for number in range(9)] + [(8, True)]
    for lives_for, after in deaths:
        world.settle(2)
        shard = RefundsProcessor(DyingKafka(world.connect(), lives_for, after=after))
        with pytest.raises(Died):
            shard.start()
            for _ in range(50):
                shard.process_some()
        world.work()
        world.assert_exactly_once()


def test_the_broker_may_be_restarted_at_any_time(world: World) -> None:
    world.settle(3)
    shard = RefundsProcessor(world.connect())
    shard.start()
    world.finish(shard)
    world.settle(3)
    world.raw.close()
    world.broker.restart()
    world.raw = RawClient(world.broker.bootstrap_servers)
    world.finish(shard)
    world.assert_exactly_once()
