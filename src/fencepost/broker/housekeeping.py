"""What a broker does when nobody asks: retention, compaction, expiry of producers, checkpoints.

Everything runs on the loop in small steps, a partition or a megabyte at a time with a turn of the loop between two
of them, so that no client waits long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencepost.base.failures import StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.log.compaction import Compacted, compaction, plan_round
from fencepost.partition.partition import Partition

if TYPE_CHECKING:
    from fencepost.broker.node import Node, TimerHandle

log = logging.getLogger(__name__)


class Housekeeping:
    """The periodic work of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timers: dict[str, TimerHandle] = {}

    def start(self) -> None:
        config = self._node.config
        self._every("retention", config.log_retention_check_interval_ms, self._retain)
        self._every("compaction", config.log_cleaner_backoff_ms, self._compact)
        self._every(
            "expiry", config.producer_id_expiration_check_interval_ms, self._expire_producers
        )
        self._every("checkpoint", config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _every(self, name: str, interval_ms: int, work: Callable[[], Iterator[None]]) -> None:
        def start() -> None:
            step(work())

        def wait() -> None:
            self._timers[name] = self._node.call_later(interval_ms, start)

        def step(steps: Iterator[None]) -> None:
            try:
                next(steps)
            except StopIteration:
                wait()
            except AssertionError:
                log.critical("a rule of our own was broken; stopping", exc_info=True)
                self._node.fatal("an internal assertion failed")
            except Exception:
                log.exception("%s failed", name)
                wait()
            else:
                self._timers[name] = self._node.call_later(0, lambda: step(steps))

        wait()

    def _partitions(self) -> Iterator[Partition]:
        """Those that are still open when their turn comes."""
        open_now = self._node.shard.partitions
        for name in list(open_now):
            if name in open_now:
                yield open_now[name]

    def _retain(self) -> Iterator[None]:
        for partition in self._partitions():
            with _alone("retention", partition):
                removed = partition.retain(self._node.clock.now_ms())
                if removed:
                    log.info("%s: %d segments are past their retention", partition.name, removed)
            yield

    def _compact(self) -> Iterator[None]:
        if not self._node.config.log_cleaner_enable:
            return
        for partition in self._partitions():
            if partition.log.config.is_compacted:
                yield
                with _alone("compaction", partition):
                    yield from self._compact_one(partition)

    def _compact_one(self, partition: Partition) -> Iterator[None]:
        upper_offset, now_ms = partition.last_stable_offset, self._node.clock.now_ms()
        ratio = partition.log.config.min_cleanable_dirty_ratio
        if not plan_round(partition.log, upper_offset, now_ms).is_worth_it(ratio):
            return
        if not self._is_folded(partition):
            return
        if partition.name.topic == TRANSACTION_STATE_TOPIC:
            self._node.transactions.before_compaction(partition)
        steps = compaction(
            partition.log,
            upper_offset=upper_offset,
            now_ms=now_ms,
            last_records=partition.last_records(),
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: Compacted | None = end.value
                break
            yield
            if not self._is_folded(partition):
                steps.close()
                return
        if done is not None:
            log.info(
                "%s: compacted %d bytes to %d",
                partition.name,
                done.bytes_before,
                done.bytes_after,
            )

    def _is_folded(self, partition: Partition) -> bool:
        """False while a coordinator reads the log: a tombstone must not go between it and the record that it removes."""
        topic, index = partition.name
        if topic == CONSUMER_OFFSETS_TOPIC:
            return self._node.groups.is_loaded(index)
        if topic == TRANSACTION_STATE_TOPIC:
            return self._node.transactions.is_served(partition)
        return True

    def _expire_producers(self) -> Iterator[None]:
        expiration_ms = self._node.config.producer_id_expiration_ms
        for partition in self._partitions():
            partition.expire_producers(self._node.clock.now_ms(), expiration_ms)
            yield

    def _checkpoint(self) -> Iterator[None]:
        self._node.layout.save_checkpoints(list(self._partitions()))
        yield


@contextmanager
def _alone(what: str, partition: Partition) -> Iterator[None]:
    """A partition that the disk refuses to serve does not keep the others from their turn."""
    try:
        yield
    except (OSError, StorageError) as problem:
        log.error("%s of %s failed: %s", what, partition.name, problem)
