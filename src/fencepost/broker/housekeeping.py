"""Periodic work: retention, compaction, expiry of producers, checkpoints.

It runs on the loop in small steps, a partition or a megabyte at a time, with a turn of the loop
between steps, so that clients do not wait long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.log.compaction import Compacted, compaction, plan_round
from fencepost.log.durability import PendingSync
from fencepost.partition.partition import Partition

if TYPE_CHECKING:
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.background import Background, Flusher
    from fencepost.broker.transactions.coordinator import TransactionCoordinator

log = logging.getLogger(__name__)

_BY_CLOCK: Final = ("expiry", "retention", "compaction")
"""The work that depends on the time of records."""

Steps = Iterator[PendingSync | None]
"""The loop gets a turn between steps. A sync that a step yields runs in a thread before the next
step."""


class Housekeeping:
    """The periodic work of one node."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        partitions: LocalPartitions,
        background: Background,
        flusher: Flusher,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._local = partitions
        self._background = background
        self._flusher = flusher
        self._groups = groups
        self._transactions = transactions
        self._coordinators: Mapping[str, GroupCoordinator | TransactionCoordinator] = {
            CONSUMER_OFFSETS_TOPIC: groups,
            TRANSACTION_STATE_TOPIC: transactions,
        }
        self._on_fatal = on_fatal
        self._timers: dict[str, TimerHandle] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._under_way: set[str] = set()
        self._wanted: dict[str, list[Callable[[], None]]] = {}
        """By work, who waits for the next time that it is done from its beginning."""
        self._cut: dict[Partition, None] = {}
        """Partitions whose log start offset DeleteRecords has moved."""
        self._stopped = False

    def start(self) -> None:
        """Starts the timers."""
        config = self._config
        self._every("retention", config.log_retention_check_interval_ms, self._retain)
        self._every("compaction", config.log_cleaner_backoff_ms, self._compact)
        self._every(
            "expiry", config.producer_id_expiration_check_interval_ms, self._expire_producers
        )
        self._every("checkpoint", config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)

    def stop(self) -> None:
        """Cancels the timers; work that has begun ends before its next step."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def retain_soon(self, partition: Partition) -> None:
        """Runs retention for a partition soon: segments below its new log start offset must go."""
        name = "retention after a deletion of records"
        self._cut[partition] = None
        if name not in self._timers:

            def start() -> None:
                self._step(name, self._retain_cut(), lambda: self._timers.pop(name, None))

            self._timers[name] = self._runtime.call_later(0, start)

    def _retain_cut(self) -> Steps:
        while self._cut:
            partition = next(iter(self._cut))
            del self._cut[partition]
            yield from self._retain_one(partition)
            yield None

    def run_now(self, done: Callable[[], None]) -> None:
        """Does once what the time of records decides, for a clock that jumps; then calls `done`.

        What is under way when it is called was begun at the old time, so it is done again after it.
        """
        left = len(_BY_CLOCK)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for name in _BY_CLOCK:
            self._wanted.setdefault(name, []).append(one_done)
            if name not in self._under_way:
                self._timers[name].cancel()
                self._starts[name]()

    def _every(self, name: str, interval_ms: int, work: Callable[[], Steps]) -> None:
        def start() -> None:
            self._under_way.add(name)
            waiting = self._wanted.pop(name, [])
            self._step(name, work(), partial(finish, waiting))

        def finish(waiting: list[Callable[[], None]]) -> None:
            self._under_way.discard(name)
            self._timers[name] = self._runtime.call_later(
                0 if name in self._wanted else interval_ms, start
            )
            for callback in waiting:
                callback()

        self._starts[name] = start
        finish([])

    def _step(
        self,
        name: str,
        steps: Steps,
        then: Callable[[], object],
        problem: Exception | None = None,
    ) -> None:
        """Runs one step, given the outcome of the sync before it; calls `then` after the last."""
        if self._stopped:
            return
        try:
            sync = next(steps) if problem is None else _throw(steps, problem)
        except StopIteration:
            then()
        except AssertionError:
            log.critical("an internal assertion failed; stopping", exc_info=True)
            self._on_fatal("an internal assertion failed")
        except SyncError as failed:
            self._runtime.sync_failed(failed)
        except Exception:
            log.exception("%s failed", name)
            then()
        else:
            if sync is None:
                again = partial(self._step, name, steps, then)
                self._timers[name] = self._runtime.call_later(0, again)
            else:
                self._background.run(sync.run, partial(self._step, name, steps, then))

    def _partitions(self) -> Iterator[Partition]:
        """All partitions, without those that are closed before their turn."""
        open_now = self._local.by_name
        for name in list(open_now):
            if name in open_now:
                yield open_now[name]

    def _retain(self) -> Steps:
        for partition in self._partitions():
            yield from self._retain_one(partition)
            yield None

    def _retain_one(self, partition: Partition) -> Steps:
        with _alone("retention", partition):
            steps = partition.retention(self._runtime.clock.now_ms())
            removed = 0
            while self._local.by_name.get(partition.name) is partition:
                try:
                    sync = next(steps)
                except StopIteration as done:
                    removed = done.value
                    break
                yield sync
            if removed:
                log.info("%s: removed %d segments past their retention", partition.name, removed)

    def _compact(self) -> Steps:
        if not self._config.log_cleaner_enable:
            return
        for partition in self._partitions():
            if partition.log.config.is_compacted:
                yield None
                with _alone("compaction", partition):
                    yield from self._compact_one(partition)

    def _compact_one(self, partition: Partition) -> Steps:
        upper_offset, now_ms = partition.last_stable_offset, self._runtime.clock.now_ms()
        ratio = partition.log.config.min_cleanable_dirty_ratio
        if not plan_round(partition.log, upper_offset, now_ms).is_worth_it(ratio):
            return
        if not self._is_folded(partition):
            return
        coordinator = self._coordinators.get(partition.name.topic)
        if coordinator is not None:
            coordinator.before_compaction(partition)
        steps = compaction(
            partition.log,
            upper_offset=upper_offset,
            now_ms=now_ms,
            last_records=partition.last_records(),
        )
        done = yield from self._while_folded(partition, steps)
        if coordinator is not None and not partition.log.is_sound:
            # Compaction has found damage after the checkpoint was removed.
            coordinator.on_damage(partition)
        if done is not None:
            log.info(
                "%s: compacted %d bytes to %d",
                partition.name,
                done.bytes_before,
                done.bytes_after,
            )

    def _while_folded(
        self, partition: Partition, steps: Generator[PendingSync | None, None, Compacted | None]
    ) -> Generator[PendingSync | None, None, Compacted | None]:
        """The steps of a round, which ends early if a coordinator starts to read the log again."""
        problem: StorageError | None = None
        while True:
            try:
                sync = next(steps) if problem is None else steps.throw(problem)
            except StopIteration as end:
                done: Compacted | None = end.value
                return done
            problem = None
            try:
                yield sync
            except StorageError as failed:  # The round removes its new files.
                problem = failed
            if not self._is_folded(partition):
                steps.close()
                return None

    def _is_folded(self, partition: Partition) -> bool:
        """False while a coordinator loads the log, so that it misses no tombstone."""
        topic, index = partition.name
        if topic == CONSUMER_OFFSETS_TOPIC:
            return self._groups.is_loaded(index)
        if topic == TRANSACTION_STATE_TOPIC:
            return self._transactions.is_served(partition)
        return True

    def _expire_producers(self) -> Steps:
        expiration_ms = self._config.producer_id_expiration_ms
        for partition in self._partitions():
            partition.expire_producers(self._runtime.clock.now_ms(), expiration_ms)
            yield None

    def _checkpoint(self) -> Steps:
        self._flusher.save()
        yield None
        for partition in self._partitions():
            if partition.is_worth_saving:
                partition.save_point()
                yield None


@contextmanager
def _alone(what: str, partition: Partition) -> Iterator[None]:
    """Logs a failure of one partition, so that the others still get their turn."""
    try:
        yield
    except SyncError:
        raise
    except (OSError, StorageError) as problem:
        log.error("%s of %s failed: %s", what, partition.name, problem)


def _throw(steps: Steps, problem: Exception) -> PendingSync | None:
    """Raises in a generator the problem of the sync that it yielded."""
    assert isinstance(steps, Generator)
    sync: PendingSync | None = steps.throw(problem)
    return sync
