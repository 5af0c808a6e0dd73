"""A kill or a power loss at every disk call of housekeeping: clients continue correctly.

Method: a broker with open, committed and aborted transactions, and with producers in the middle of
their sequences, is prepared so that housekeeping has work to do. Each story runs from a copy of
that disk and ends at its n-th disk call, for every n: by a kill (written data stay) or by a loss of
power (synced data stay). Then the broker is started again, and everything that clients rely on is
checked:

- producers continue with their next sequence, and end their open transactions;
- coordinator and partitions agree: nothing stays open, the last stable offset reaches the high
  watermark;
- acknowledged records are read once and in order, unless retention has deleted them; aborted and
  deleted records are not.

In `os` mode a power loss may lose acknowledged records, different ones in each log. Then
producers initialise their ids again, nothing stays open, new records are read, and the remaining
ones are in order, without aborted or partial ones.

The second half fails each call once instead, and continues with the same broker.

`make test` and `make test-compiled` each take half of the calls (`tests/halves.py`).
"""

from __future__ import annotations

import errno
import pickle
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.simulation.disk import UnsyncedDisk
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker import requests
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topic, create_topics, produce
from tests.halves import EVERY_CALL, half_of
from tests.log.batches import SeededRandomness
from tests.transactions.protocol import TV1, TV2
from tests.transactions.requests import init_request
from tests.transactions.wire import NONE, RETRIABLE, WireProducer, committed_offset, consume

pytestmark = pytest.mark.usefixtures("quiet")

AN_HOUR_MS = 3_600_000
SETTINGS = {
    "log.retention.check.interval.ms": "1000000000",
    "log.cleaner.backoff.ms": "1000000000",
    "log.flush.offset.checkpoint.interval.ms": "1000000000",
    "producer.id.expiration.check.interval.ms": "100000000",
    "producer.id.expiration.ms": "1000000000",
    "transaction.max.timeout.ms": "100000000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000000000",
    "transaction.state.log.segment.bytes": "600",
    "offsets.topic.segment.bytes": "600",
}
SMALL = {"internal.segment.bytes": "300"}
LONG_MS = 90_000_000
TRIES = 100
"""One per second, which is longer than any disk in these tests fails."""
IDEMPOTENT: dict[str, Any] = {"producer_id": 4_000_000, "epoch": 0}


class Clients:
    """The clients of the broker, with known and unknown outcomes of their requests."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.a = WireProducer(stage, "a", TV1)
        self.b = WireProducer(stage, "b", TV2)
        self.written = 0
        self.history: list[tuple[str, bytes]] = []
        """The values of topic t in log order, each committed, aborted, open or unsure."""
        self.fresh: list[bytes] = []
        """Committed values that retention may not have deleted."""
        self.keys: dict[bytes, set[bytes]] = {}
        """Topic c: the possible values of each key."""
        self.start_offset = 0
        self.group_offset = -1
        """The last offset that group g committed in a transaction."""

    def move_to(self, stage: Stage) -> None:
        self.stage = stage
        self.a.client = self.b.client = stage

    def value(self, who: str) -> bytes:
        return b"%s %d" % (who.encode(), len(self.history) + self.written)

    # -- the idempotent producer

    def write(self) -> None:
        """Retries until it is acknowledged; the value is unsure in the meantime."""
        value = b"p %d" % self.written
        self.history.append(("unsure", value))
        place = len(self.history) - 1
        self.try_write(value)
        self.history[place] = ("committed", value)
        self.fresh.append(value)
        self.written += 1

    def try_write(self, value: bytes) -> None:
        for _ in range(TRIES):
            now_ms = self.stage.clock.now_ms()
            batch = batch_of(value, sequence=self.written, timestamp_ms=now_ms, **IDEMPOTENT)
            outcome = produce(self.stage, "t", batch)
            if outcome.error_code == NONE:
                return
            assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode(
                outcome.error_code
            )
            self.stage.advance(1_000)
        raise AssertionError("the disk works again, but the write is still refused")

    # -- transactions

    def transaction(self, producer: WireProducer, *, commit: bool) -> None:
        """One whole transaction over both topics and a group, retried as a client does."""
        name = producer.transactional_id
        value = self.value(name)
        self.history.append(("unsure", value))
        place = len(self.history) - 1
        key = b"k %s" % name.encode()
        if commit:
            self.keys.setdefault(key, set()).add(value)
        self.insist(producer, lambda: self._send(producer, "t", value, None))
        self.insist(producer, lambda: self._send(producer, "c", value, key))
        producer.send_offsets("g", {("t", 0): place})
        self.insist(producer, lambda: producer.end(commit=commit))
        self.history[place] = ("committed" if commit else "aborted", value)
        if commit:
            self.fresh.append(value)
            self.keys[key] = {value}
            self.group_offset = place

    def _send(self, producer: WireProducer, topic: str, value: bytes, key: bytes | None) -> int:
        if producer.protocol.adds_explicitly and (error := producer.add_one(topic)) != NONE:
            return error
        now_ms = self.stage.clock.now_ms()
        return int(producer.produce(topic, value, key=key, timestamp_ms=now_ms).error_code)

    def insist(self, producer: WireProducer, attempt: Callable[[], int]) -> None:
        passing = RETRIABLE | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS}
        for _ in range(TRIES):
            error = attempt()
            if error == NONE:
                return
            assert error in passing, (producer.transactional_id, ErrorCode(error))
            self.stage.advance(1_000)
        raise AssertionError("the disk works again, but the request is still refused")

    def begin_b(self) -> None:
        """Leaves a transaction open."""
        value = self.value("open")
        self.history.append(("open", value))
        self.b.produce("t", value, timestamp_ms=self.stage.clock.now_ms())
        key = b"open"
        self.keys.setdefault(key, set()).add(value)
        self.b.produce("c", value, key=key, timestamp_ms=self.stage.clock.now_ms())

    # -- what must hold

    def go_on(self) -> None:
        """After a restart: all clients repeat requests with an unknown outcome, and continue."""
        self.stage.advance(1_000)
        if self.history and self.history[-1][0] == "unsure" and self.history[-1][1][:2] == b"p ":
            place = len(self.history) - 1
            self.try_write(self.history[-1][1])
            self.history[place] = ("committed", self.history[-1][1])
            self.fresh.append(self.history[-1][1])
            self.written += 1
        self.write()
        value = self.value("open too")
        self.insist(self.b, lambda: int(self.b.produce("t", value).error_code))
        self.insist(self.b, lambda: self.b.end(commit=True))
        self.history = [
            ("committed" if kind == "open" else kind, value) for kind, value in self.history
        ]
        self.history.append(("committed", value))
        self.a.initialise()  # Aborts its open transaction.
        for producer in (self.a, self.b):
            self.transaction(producer, commit=False)
            self.transaction(producer, commit=True)

    def check(self) -> None:
        self.agree(self.stage)
        seen = [v for v in consume(self.stage, "t", offset=self.log_start("t")).values if v]
        aborted = {value for kind, value in self.history if kind == "aborted"}
        assert not aborted & set(seen)
        assert len(seen) == len(set(seen)), "a record was read twice"
        sure = [value for kind, value in self.history if kind == "committed"]
        unsure = {value for kind, value in self.history if kind == "unsure"}
        known = [value for value in seen if value not in unsure]
        assert known == [v for v in sure if v in set(known)], "the order has changed"
        assert set(known) >= set(self.fresh), "an acknowledged record is lost"
        assert self.log_start("t") >= self.start_offset, "deleted records came back"
        assert committed_offset(self.stage, "g", "t") == self.group_offset
        table: dict[bytes, bytes] = {}
        for record in consume(self.stage, "c", offset=self.log_start("c")).records:
            if record.key is not None and record.value is not None:
                table[record.key] = record.value
        for key, values in self.keys.items():
            assert table.get(key) in values, key

    def log_start(self, topic: str) -> int:
        partition = self.stage.partition(topic, 0)
        return partition.log_start_offset

    @staticmethod
    def agree(stage: Stage) -> None:
        """Coordinator and partitions agree: no transaction is open."""
        stage.settle()
        for coordinator in stage.node.transactions.coordinators():
            assert not coordinator.state.open, "the coordinator has an open transaction"
        for name, partition in stage.node.partitions.by_name.items():
            assert len(partition.open_txns) == 0, name
            assert partition.last_stable_offset == partition.high_watermark, name


# -- stories ---------------------------------------------------------------------------------------


def roll(clients: Clients) -> None:
    for _ in range(4):
        clients.write()


def transactions(clients: Clients) -> None:
    clients.transaction(clients.a, commit=True)
    clients.transaction(clients.a, commit=False)


def keep_house(clients: Clients, what: str) -> None:
    """One round of housekeeping."""
    housekeeping = clients.stage.node.housekeeping
    done: list[int] = []

    def start() -> None:
        housekeeping._step(what, getattr(housekeeping, what)(), lambda: done.append(1))

    clients.stage.loop.call_soon(start)
    for _ in range(100):
        clients.stage.settle()
        if done or clients.stage.fatal or clients.stage.problems:
            return
        clients.stage.advance(1)
    raise AssertionError(f"{what} does not finish")


def retention(clients: Clients) -> None:
    """Retention deletes everything."""
    clients.fresh.clear()
    clients.stage.advance(2 * AN_HOUR_MS)
    keep_house(clients, "_retain")
    clients.write()


def some_retention(clients: Clients) -> None:
    """The oldest records are past their retention, but not the newest."""
    clients.fresh.clear()
    clients.stage.advance(AN_HOUR_MS * 2 / 3)
    for _ in range(4):
        clients.write()
    clients.stage.advance(AN_HOUR_MS * 2 / 3)
    keep_house(clients, "_retain")


def delete_records(clients: Clients) -> None:
    partition = clients.stage.partition("t", 0)
    wanted = partition.high_watermark
    clients.fresh.clear()
    for _ in range(TRIES):
        error = requests.delete_records(clients.stage, "t", wanted)
        if error == NONE:
            break
        assert error == ErrorCode.KAFKA_STORAGE_ERROR
        clients.stage.advance(1_000)
    else:
        raise AssertionError("the disk works again, but nothing can be deleted")
    clients.start_offset = wanted
    clients.stage.settle()
    clients.write()


def compaction(clients: Clients) -> None:
    clients.transaction(clients.a, commit=True)
    keep_house(clients, "_compact")


def checkpoint(clients: Clients) -> None:
    clients.write()
    keep_house(clients, "_checkpoint")


def delete_topic(clients: Clients) -> None:
    stage = clients.stage
    stage.call(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="d")]))
    stage.settle()
    create_topics(stage, "d", partitions=2)
    clients.write()


STORIES: tuple[Callable[[Clients], None], ...] = (
    roll,
    transactions,
    retention,
    some_retention,
    delete_records,
    compaction,
    checkpoint,
    delete_topic,
)


@cache
def prepared(durability: str) -> tuple[UnsyncedDisk, Clients, int]:
    """A disk on which a broker was killed, and its clients."""
    stage = Stage(durability=durability, settings=SETTINGS).start()
    create_topic(stage, "t", settings={**SMALL, "retention.ms": str(AN_HOUR_MS)})
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(stage, "c", settings={**SMALL, **compacted})
    create_topic(stage, "d", 2)
    clients = Clients(stage)
    clients.a.initialise(timeout_ms=LONG_MS)
    clients.b.initialise(timeout_ms=LONG_MS)
    for number in range(3):
        clients.transaction(clients.a, commit=True)
        clients.write()
        clients.transaction(clients.b, commit=number > 0)
        clients.transaction(clients.a, commit=False)
    produce(stage, "d", batch_of(b"doomed"))
    clients.begin_b()
    clients.write()
    clients.write()
    now_ms = stage.clock.now_ms()
    stage.advance(2_000)
    stage.kill()
    return stage.disk, clients, now_ms + 2_000


@cache
def prepared_bytes(durability: str) -> bytes:
    """What every story gets a copy of. To unpickle takes a tenth of the time of a deep copy."""
    disk, clients, _ = prepared(durability)
    known = {k: v for k, v in vars(clients).items() if k not in ("stage", "a", "b")}
    return pickle.dumps((known, disk, clients.stage.randomness))


def started(durability: str) -> Clients:
    """A broker and its clients, as prepared."""
    _, clients, now_ms = prepared(durability)
    known, disk, randomness = pickle.loads(prepared_bytes(durability))
    mine = Clients.__new__(Clients)
    mine.__dict__.update(known)
    mine.a, mine.b = clients.a.twin(), clients.b.twin()
    stage = Stage(
        durability=durability,
        settings=SETTINGS,
        disk=disk,
        now_ms=now_ms + 1,
        randomness=randomness,
    ).start()
    mine.move_to(stage)
    stage.advance(1_500)
    return mine


def some_of(kinds: Sequence[str]) -> Sequence[int]:
    """Call numbers: one per kind in a story, and one after the last, which is never reached."""
    if EVERY_CALL:
        return range(1, len(kinds) + 2)
    chosen = {len(kinds) + 1}
    for turn, kind in enumerate(sorted(set(kinds))):
        places = [number for number, each in enumerate(kinds, start=1) if each == kind]
        chosen.add(places[(len(places) * (1 + turn % 3)) // 4])
    return sorted(chosen)


@cache
def calls_of(story: Callable[[Clients], None], durability: str) -> list[str]:
    """The kinds of a story's disk calls, in order."""
    clients = started(durability)
    kinds = clients.stage.disk.kinds = []
    story(clients)
    clients.stage.advance(2_000)
    clients.stage.disk.kinds = None
    clients.stage.abandon()
    return kinds


Story = Callable[[Clients], None]


def nothing_more(clients: Clients) -> None:
    """For stories without outcomes that only they know."""


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_clients_continue_after_a_crash_at_sampled_disk_calls(
    story: Story, durability: str, crash: str
) -> None:
    crash_at_calls(story, durability, crash)


def crash_at_calls(
    story: Story, durability: str, crash: str, check_first: Story = nothing_more
) -> None:
    """Ends a story at each of its disk calls, starts again, and checks what clients rely on."""
    calls = some_of(calls_of(story, durability))
    for call in half_of(calls, story.__name__, durability, crash):
        clients = started(durability)
        stage = clients.stage
        stage.disk.lose_power_at(call)
        try:
            story(clients)
            stage.advance(2_000)
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            assert stage.disk._power_lost_at is not None
            assert stage.disk.calls >= stage.disk._power_lost_at, (
                "the story failed before the crash"
            )
        is_lossy = (durability, crash) == ("os", "lose_power")
        if crash == "kill":
            stage.kill()
        else:
            stage.lose_power(CountingRandomness() if call % 2 else None)
        again = stage.again()
        clients.move_to(again)
        try:
            check_first(clients)
            if is_lossy:
                go_on_after_a_loss(clients)
            else:
                clients.go_on()
                clients.check()
            assert clients.stage.fatal == again.fatal == []
        except Exception as problem:
            raise AssertionError(
                f"{story.__name__}, {crash} at call {call}: {problem!r}"
            ) from problem
        clients.stage.abandon()


def go_on_after_a_loss(clients: Clients) -> None:
    """Records may be lost.

    The rest is consistent: nothing stays open, no id is stuck, no aborted record is visible.
    """
    stage = clients.stage
    stage.advance(1_000)
    assert clients.b.end(commit=True) != NONE, "part of a transaction was committed"
    for producer in (clients.a, clients.b):
        producer.initialise(timeout_ms=LONG_MS)
    check_what_is_left(clients)
    written = [write_as_somebody_new(clients), write_after_the_loss(clients)]
    for producer in (clients.a, clients.b):
        clients.transaction(producer, commit=False)
        clients.transaction(producer, commit=True)
        written.append(clients.history[-1][1])
    for _ in range(2):
        check_what_is_left(clients)
        seen = consume(clients.stage, "t", offset=clients.log_start("t")).values
        assert set(written) <= set(seen), "an acknowledged record is lost"
        clients.move_to(clients.stage.kill().again())


def check_what_is_left(clients: Clients) -> None:
    stage = clients.stage
    Clients.agree(stage)
    never = {value for kind, value in clients.history if kind in ("aborted", "open")}
    for topic in ("t", "c"):
        seen = consume(stage, topic, offset=clients.log_start(topic)).values
        assert not never & set(seen), f"{topic} shows aborted records"
        assert len(seen) == len(set(seen)), "a record was read twice"
        order = [value for _, value in clients.history if value in set(seen)]
        assert topic == "c" or [v for v in seen if v in set(order)] == order, (
            "the order has changed"
        )


def write_as_somebody_new(clients: Clients) -> bytes:
    """A new idempotent producer: its first batch is not treated as a duplicate."""
    stage = clients.stage
    reply = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(None))
    known = {
        producer.producer_id
        for partition in stage.node.partitions.by_name.values()
        for producer in partition.producers
    }
    assert reply.producer_id not in known
    now_ms = stage.clock.now_ms()
    batch = batch_of(
        b"new", sequence=0, producer_id=reply.producer_id, epoch=0, timestamp_ms=now_ms
    )
    assert produce(stage, "t", batch).error_code == NONE
    clients.history.append(("committed", b"new"))
    return b"new"


def write_after_the_loss(clients: Clients) -> bytes:
    """The old idempotent producer continues, or gets an error for the gap and bumps its epoch."""
    now_ms = clients.stage.clock.now_ms()
    given = {"timestamp_ms": now_ms, "producer_id": IDEMPOTENT["producer_id"]}
    batch = batch_of(b"after", sequence=clients.written + 1, epoch=0, **given)
    told = produce(clients.stage, "t", batch).error_code
    if told != NONE:
        assert told == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode(told)
        batch = batch_of(b"after", sequence=0, epoch=1, **given)
        assert produce(clients.stage, "t", batch).error_code == NONE
    clients.history.append(("committed", b"after"))
    return b"after"


@pytest.mark.parametrize("seed", half_of(range(200 if EVERY_CALL else 12)))
def test_clients_continue_after_a_power_loss_that_removes_any_tails(seed: int) -> None:
    clients = started("os")
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 9)):
        what = rng.randrange(6)
        if what == 0:
            clients.write()
        elif what == 1:
            keep_house(clients, "_checkpoint")
        else:
            clients.transaction(clients.a, commit=what % 2 == 0)
    stage = clients.stage
    clients.move_to(stage.lose_power(SeededRandomness(seed)).again())
    go_on_after_a_loss(clients)
    clients.stage.abandon()


def test_a_crash_at_sampled_disk_calls_of_a_reconciliation_is_recovered_by_the_next_start() -> None:
    for call in half_of(range(1, 400, 1 if EVERY_CALL else 23)):
        clients = started("os")
        transactions(clients)
        lost = clients.stage.lose_power(SeededRandomness(call))
        lost.disk.lose_power_at(call)
        dies_at = lost.disk._power_lost_at
        assert dies_at is not None
        try:
            lost.again().kill()
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            assert lost.disk.calls >= dies_at, "the start failed before the crash"
            lost.disk.kill()
        clients.move_to(lost.again())
        go_on_after_a_loss(clients)
        clients.stage.abandon()


# -- calls that fail once --------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "short write"][0 if EVERY_CALL else 1 :])
def test_after_one_failed_call_at_sampled_disk_calls_the_broker_continues_or_stops_with_a_reason(
    story: Story, durability: str, failure: str
) -> None:
    """`test_failed_steps.py` does it with EIO, before each other operation."""
    fail_at_calls(story, durability, failure)


def fail_at_calls(
    story: Story, durability: str, failure: str, check_first: Story = nothing_more
) -> None:
    """Fails each disk call of a story once; the same broker continues, or stops for a reason."""
    error = errno.EIO if failure == "EIO" else errno.ENOSPC
    kinds = calls_of(story, durability)
    calls = some_of(kinds)
    if failure == "short write":
        calls = [call for call in calls if kinds[call - 1 : call] == ["append"]]
    for call in half_of(calls, story.__name__, durability, failure):
        clients = started(durability)
        stage = clients.stage
        stage.disk.fail_call(call, error, short=failure == "short write")
        try:
            try:
                story(clients)
                stage.advance(2_000)
            except (DiedError, ClosedError):
                assert stage.fatal, "a connection was closed, but the broker is running"
            stage.disk.heal()
            if stage.fatal:
                assert "sync" in stage.fatal[0], stage.fatal
                clients.move_to(stage.kill().again())
            check_first(clients)
            clients.go_on()
            clients.check()
            clients.move_to(clients.stage.kill().again())
            clients.stage.advance(1_000)
            clients.check()
            check_first(clients)
            assert clients.stage.fatal == []
        except Exception as problem:
            raise AssertionError(f"{story.__name__}, call {call} failed: {problem!r}") from problem
        clients.stage.abandon()
