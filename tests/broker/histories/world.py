"""One random history of one broker, from a seed; the same seed gives the same history.

    History(seed).run()     raises ViolationError if the broker breaks a promise

Method. Clients (`clients.py`) are generators. A scheduler lets one of them send a request, runs the
broker for some turns of its loop, passes replies on, lets time pass, and now and then something
happens: the process is killed, at once or at one of its next disk calls; the power fails (in fsync
mode); the broker is stopped and started; the disk fails for a while or is full; a connection is
cut; the clock is set; the scrub begins; the coordinators are loaded again. Retention, compaction,
checkpoints and timeouts run by their timers.

At the end the disk works again, the clients finish, and everything that they rely on is checked
(`checks.py`), before and after another kill.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from fencepost.wire.codec import decode_response
from tests.broker.histories.checks import check_all
from tests.broker.histories.clients import (
    Administrator,
    Client,
    Committer,
    IdempotentProducer,
    Life,
    LostError,
    Reader,
    Request,
    Rest,
    Shout,
    TransactionalProducer,
)
from tests.broker.histories.model import Model, require
from tests.broker.node_stage import DiedError, Line, Stage
from tests.broker.raw import ClosedError
from tests.log.batches import SeededRandomness
from tests.transactions.protocol import TV1, TV2

STEPS: Final = 400
PATIENCE_STEPS: Final = 4_000
SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600 * SECOND_MS
SETTINGS: Final = {
    "log.message.timestamp.after.max.ms": str(1_000 * HOUR_MS),
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "3000",
    "log.flush.offset.checkpoint.interval.ms": "4000",
    "producer.id.expiration.ms": str(500 * HOUR_MS),
    "transactional.id.expiration.ms": str(3 * HOUR_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.segment.bytes": "900",
    "offsets.topic.segment.bytes": "900",
    "offsets.retention.minutes": "1000000",
    "offsets.retention.check.interval.ms": "30000",
}
BROKEN: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (errno.EIO, ()),
    (errno.EIO, ("append",)),
    (errno.ENOSPC, ("append", "make_dir", "rename")),
    (errno.EIO, ("read", "view", "read_file", "size")),
    (errno.EMFILE, ("open", "read_file", "list_dir", "sync_dir")),
    (errno.EIO, ("sync", "sync_new", "sync_dir")),
    (errno.EACCES, ("rename", "remove", "remove_tree")),
    (errno.EIO, ("truncate",)),
)
"""How a disk fails: the error, and the kinds of calls."""


class Actor:
    """A client in its life: what it waits for."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.life: Life = client.life()
        self.line: Line | None = None
        self.request: Request | None = None
        self.number: int | None = None
        self.rests_until = 0.0
        self.is_done = False

    @property
    def is_waiting(self) -> bool:
        return self.request is not None


class World:
    """The broker, its clients, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_durable = self.rng.random() < 0.5
        self.model = Model()
        self.is_over = False
        self.latest_ms = 0
        self.events: list[str] = []
        """What happened, for the report of a failure."""
        ongoing = {"transaction.recovery.ongoing": "abort" if seed % 4 == 2 else "resume"}
        self.stage = Stage(
            durability="fsync" if self.is_durable else "os",
            settings=SETTINGS | ongoing,
            disk=UnsyncedDisk(),
        ).start()
        self._cut: set[Line] = set()
        clients: list[Client] = [
            Administrator(self, "admin"),
            IdempotentProducer(self, "p0"),
            IdempotentProducer(self, "p1"),
            TransactionalProducer(self, "x", TV1),
            TransactionalProducer(self, "y", TV2),
            TransactionalProducer(self, "z", TV2),
            Committer(self, "committer"),
            Reader(self, "r0"),
            Reader(self, "r1"),
        ]
        self.actors = [Actor(client) for client in clients]

    def now_ms(self) -> int:
        now_ms = self.stage.clock.now_ms()
        self.latest_ms = max(self.latest_ms, now_ms)
        return now_ms

    # -- the history

    def run(self) -> None:
        happenings: list[tuple[float, Callable[[], None]]] = [
            (2, self.kill),
            (4, self.die_soon),
            (2, self.restart_cleanly),
            (2 if self.is_durable else 0, self.lose_power),
            (4, self.break_disk),
            (2, self.fill_disk),
            (4, self.mend_disk),
            (5, self.cut_connection),
            (2, self.set_clock),
            (1, self.scrub),
            (2, self.load_coordinators),
        ]
        weights = [weight for weight, _ in happenings]
        for _ in range(STEPS):
            self.step()
            if self.rng.random() < 0.08:
                (happening,) = self.rng.choices([each for _, each in happenings], weights)
                happening()
        self.finish()

    def step(self) -> None:
        ready = [each for each in self.actors if self._is_ready(each)]
        if ready and self.rng.random() < 0.8:
            self._continue(self.rng.choice(ready), None)
        for _ in range(self.rng.choice((0, 1, 1, 2, 3, 10))):
            self.turn()
        if self.rng.random() < 0.25:
            self.advance(self.rng.choice((1, 5, 50, 500, 2_000)))

    def _is_ready(self, actor: Actor) -> bool:
        is_rested = actor.rests_until <= self.stage.loop.time()
        return not actor.is_waiting and not actor.is_done and is_rested

    def turn(self) -> None:
        self.stage.loop.turn()
        self.hear()

    def advance(self, milliseconds: int) -> None:
        self.stage.advance(milliseconds)
        self.now_ms()
        self.hear()

    # -- requests and replies

    def _continue(self, actor: Actor, reply: Any) -> None:
        """The client gets a reply, or an exception, and does what comes next."""
        actor.request = actor.number = None
        try:
            is_lost = isinstance(reply, LostError)
            following = actor.life.throw(reply) if is_lost else actor.life.send(reply)
        except StopIteration:
            actor.is_done = True
            return
        if isinstance(following, Shout):
            self.stage.loop.call_soon(self._shout, following, self.stage)
            self._continue(actor, None)
        elif isinstance(following, Rest):
            actor.rests_until = self.stage.loop.time() + following.milliseconds / 1000
        else:
            actor.request = following
            self.stage.loop.call_soon(self._send, actor, following, self.stage)

    def _send(self, actor: Actor, request: Request, stage: Stage) -> None:
        if actor.request is not request or stage is not self.stage:
            return
        if actor.line is None or actor.line.is_closed:
            actor.line = stage.connect()
        with contextlib.suppress(DiedError):  # `hear` notices it.
            actor.number = actor.line.send(request.api, request.version, request.form)

    def _shout(self, request: Request, stage: Stage) -> None:
        if stage is self.stage and not self.is_dead():
            stage.connect().send(request.api, request.version, request.form)

    def hear(self) -> None:
        """Passes replies on. What a process says after its death was never heard."""
        if self.is_dead():
            self.revive(self.rng.random() < 0.5)
            return
        require(not self.stage.problems, f"a callback failed: {self.stage.problems}")
        for actor in self.actors:
            line, request = actor.line, actor.request
            if line is None or request is None or actor.number is None:
                continue
            if actor.number in line.replies:
                frame = line.replies.pop(actor.number)
                self._continue(actor, decode_response(request.api, request.version, frame)[1])
            elif line.is_closed:
                require(line in self._cut, f"the connection of {actor.client.name} was closed")
                self._continue(actor, LostError())

    # -- what happens

    def note(self, what: str) -> None:
        self.events.append(f"{self.stage.loop.time():.3f}: {what}")

    def is_dead(self) -> bool:
        disk = self.stage.disk
        if disk._power_lost_at is not None and disk.calls >= disk._power_lost_at:
            return True
        if self.stage.fatal:
            require(
                "sync" in self.stage.fatal[0], f"the broker ended itself: {self.stage.fatal[0]}"
            )
            return True
        return False

    def kill(self) -> None:
        self.note("killed")
        self.revive(loses_power=False)

    def lose_power(self) -> None:
        self.note("lost power")
        self.revive(loses_power=True)

    def die_soon(self) -> None:
        """The process dies at one of its next disk calls."""
        call = self.rng.randint(1, 60)
        self.note(f"will die at call {call}")
        self.stage.disk.lose_power_at(call)

    def restart_cleanly(self) -> None:
        self.note("stopped")
        try:
            self.stage.stop()
        except PowerLost:
            self.note("died while it stopped")
        self.revive(loses_power=False)

    def revive(self, loses_power: bool) -> None:
        """The process is dead, and is started again, maybe on a disk that fails."""
        if loses_power and self.is_durable:
            some = SeededRandomness(self.rng.randrange(1 << 30))
            kept = self.rng.random()
            self.stage.lose_power(some if kept < 0.7 else None, is_in_order=kept < 0.3)
        else:
            self.stage.kill()
        self.stage.disk.empty()
        if self.rng.random() < 0.3 and not self.is_over:
            self._start_badly()
        self.stage = self.stage.again()
        self.note("started")
        for actor in self.actors:
            actor.line, actor.rests_until = None, 0.0
        for actor in self.actors:
            if actor.is_waiting:
                self._continue(actor, LostError())

    def _start_badly(self) -> None:
        """A start that dies, or that a failing disk refuses."""
        disk = self.stage.disk
        call = self.rng.randint(1, 120)
        if self.rng.random() < 0.5:
            self.note(f"a start that dies at call {call}")
            disk.lose_power_at(call)
        else:
            error, kinds = self.rng.choice(BROKEN)
            self.note(f"a start with errno {error} from call {call} on")
            disk.fail_for_a_while(call, self.rng.randint(1, 5), error, kinds=kinds)
        try:
            started = self.stage.again()
            started.advance(self.rng.choice((1, 1_000)))
        except FencepostError:
            disk.kill()
        except Exception:  # noqa: BLE001 - the process is dead: how it fails means nothing.
            require(disk._power_lost_at is not None, "a start failed without a sentence")
            disk.kill()
        else:
            self.stage = started.kill()

    def break_disk(self) -> None:
        error, kinds = self.rng.choice(BROKEN)
        first, count = self.rng.randint(1, 20), self.rng.choice((1, 1, 5, 30))
        self.note(f"the disk fails: errno {error}, {kinds}, {first} to {first + count - 1}")
        self.stage.disk.fail_for_a_while(first, count, error, kinds=kinds)

    def fill_disk(self) -> None:
        self.note("the disk is full")
        self.stage.disk.fill(self.rng.choice((0, 100, 1_000)))

    def mend_disk(self) -> None:
        self.note("the disk works")
        self.stage.disk.empty()
        self.stage.disk.heal()

    def cut_connection(self) -> None:
        actor = self.rng.choice(self.actors)
        if actor.line is not None and not actor.line.is_closed:
            self.note(f"{actor.client.name} loses its connection")
            self._cut.add(actor.line)
            actor.line.wire.close()

    def set_clock(self) -> None:
        self.now_ms()
        by_ms = self.rng.choice((-2 * HOUR_MS, -60_000, 60_000, 2 * HOUR_MS, 4 * HOUR_MS))
        self.note(f"the clock is set by {by_ms} ms")
        self.stage.clock.jump(by_ms)
        self.now_ms()

    def load_coordinators(self) -> None:
        """As when their partitions move away and back: a load drops what was served before."""
        self.note("the coordinators are loaded again")
        self.stage.loop.call_soon(self.stage.node.coordinators.load_all)

    def scrub(self) -> None:
        self.stage.loop.call_soon(self.stage.node.scrub._begin)

    # -- the end

    def finish(self) -> None:
        """Everything works again: the clients come to their end, and nothing stays open."""
        self.note("the end begins")
        self.is_over = True
        if self.is_dead():
            self.revive(loses_power=False)
        self.mend_disk()
        self.stage.disk._power_lost_at = None
        for _ in range(PATIENCE_STEPS):
            for actor in self.actors:
                if self._is_ready(actor):
                    self._continue(actor, None)
            self.advance(50)
            if all(actor.is_done for actor in self.actors):
                break
        stuck = [actor.client.name for actor in self.actors if not actor.is_done]
        require(not stuck, f"clients that wait for ever: {stuck}")
        self.settle_everything()
        check_all(self)
        self.note("killed at the end")
        self.stage = self.stage.kill().again()
        self.settle_everything()
        check_all(self)
        self.stage.stop()
        self.stage = self.stage.again()
        self.settle_everything()
        check_all(self)
        self.stage.abandon()

    def settle_everything(self) -> None:
        """Transactions that were left open reach their timeout, by the latest clock they saw."""
        self.stage.clock.jump(max(0, self.latest_ms - self.stage.clock.now_ms()))
        for _ in range(4):
            self.stage.advance(30_000)
        self.now_ms()
        require(not self.stage.fatal, f"the broker ended itself: {self.stage.fatal}")
        require(not self.stage.problems, f"a callback failed: {self.stage.problems}")


class History:
    """A history by its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.events: list[str] = []

    def run(self) -> None:
        world = World(self.seed)
        self.events = world.events
        try:
            world.run()
        except (DiedError, ClosedError) as problem:
            raise AssertionError(f"the test itself lost its broker: {problem!r}") from problem
        finally:
            world.stage.abandon()
