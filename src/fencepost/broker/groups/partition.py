"""One partition of `__consumer_offsets` that this node serves: decisions become records.

    decide -> append -> apply -> decide the sequel -> answer when durable

All but the last step happen in one turn of the loop, so the next request decides on the newest
state. Answers wait until everything that this partition has appended so far is durable: a reply may
depend on an earlier record than its own.

`coordinators/log_loader.py` reads the last checkpoint and the log after it, and nothing is decided
before its end. What the log has before the checkpoint is not needed, and may be damaged.

Each group has one timer. It may fire early, when heartbeats have moved the deadline that it was set
for; then it is set again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError, WireError
from fencepost.base.limits import MAX_BATCH_BYTES
from fencepost.broker.coordinators.checkpoint_keeper import CheckpointKeeper, read_checkpoint
from fencepost.broker.coordinators.log_loader import LogLoader
from fencepost.broker.groups.saved_records import count_records, saved_records
from fencepost.broker.runtime import Runtime, TimerHandle
from fencepost.coordinator.group.apply import apply_entry, apply_record, stamped
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decide import on_sequel
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import AssignmentLost, JoinLost
from fencepost.coordinator.group.group import NEVER, Group
from fencepost.coordinator.group.removal import (
    decide_expiry,
    decide_stale,
    decide_topics_deleted,
)
from fencepost.coordinator.group.sessions import on_loaded, on_tick, on_unloaded, pass_time
from fencepost.coordinator.group.settings import GroupCoordinatorSettings
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.partition.partition import Partition
from fencepost.records.entry import Entry
from fencepost.records.group_log import LogRecord, encode_record

log = logging.getLogger(__name__)

CHECKED_PER_TURN: Final = 10_000
"""Offsets whose topics are checked before the loop gets a turn."""

TOMBSTONES_PER_BATCH: Final = 1_000
"""Tombstones need not be in one batch, and a batch has a limit."""

APPEND_REFUSED: Final = ErrorCode.NOT_COORDINATOR
"""The error when the disk refuses: clients find the coordinator again, and retry."""

_BATCH_OVERHEAD_BYTES: Final = 64 * 1024
"""For the header of a batch and the lengths within it."""


class Producer(NamedTuple):
    """The producer of the transaction that a record belongs to."""

    producer_id: int
    producer_epoch: int


class Alarm(NamedTuple):
    """The timer of a group, and when it fires."""

    due_ms: int
    timer: TimerHandle


class GroupPartition:
    """One partition that is served.

    Once it is given away or loaded again, it is `closed` and never served again.
    """

    __slots__ = (
        "_alarms",
        "_deleted_topics",
        "_end_offset",
        "_has_stale",
        "_loader",
        "_metadata",
        "_runtime",
        "_stale",
        "_unchecked",
        "_waiting",
        "checkpoint",
        "closed",
        "index",
        "partition",
        "state",
    )

    def __init__(
        self,
        runtime: Runtime,
        metadata: MetadataState,
        data: str,
        index: int,
        partition: Partition,
        settings: GroupCoordinatorSettings,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._alarms: dict[str, Alarm] = {}
        self._deleted_topics: set[str] = set()
        """Topics that were deleted or created during the load: offsets in the log of that name are
        older."""
        self._unchecked: list[str] | None = None
        """At the end of a load: the groups that may have offsets of deleted topics."""
        self._stale: list[LogRecord] = []
        """Tombstones that a load found missing."""
        self._has_stale = False
        """Whether the disk has refused tombstones."""
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._end_offset = partition.log_end_offset
        self.index = index
        self.partition = partition
        self.state = GroupCoordinatorState(settings)
        self.checkpoint = self._new_keeper()
        self.closed = False
        self._loader = LogLoader(
            runtime,
            partition,
            data,
            begin=self._begin_load,
            apply=self._load_entry,
            check=self._check_some,
            loaded=self._loaded,
        )

    def __repr__(self) -> str:
        return f"GroupPartition({self.index}, {self.state})"

    # -- loading ----------------------------------------------------------------------------------

    @property
    def is_refused(self) -> bool:
        """Whether the log is damaged, so that its groups are not served."""
        return self._loader.is_refused

    def load(self, *, held: bool = False) -> None:
        """Reads the log over several turns; with `held` now, raising StorageError if it cannot."""
        self._loader.start(held=held)

    def _begin_load(self) -> Iterator[Entry]:
        self.state = GroupCoordinatorState(self.state.settings)
        self._unchecked = None
        self._stale = []
        self.checkpoint = self._new_keeper()
        saved = read_checkpoint(self._runtime.disk, self.partition)
        self.checkpoint.unsaved = -saved.record_count
        entries = (
            Entry(offset, producer_id, -1, producer_id >= 0, key, value)
            for key, value, offset, producer_id in saved.records
        )
        return chain(entries, self.partition.whole_entries(saved.offset))

    def _new_keeper(self) -> CheckpointKeeper:
        return CheckpointKeeper(
            self._runtime,
            self.partition,
            view=partial(saved_records, self.state),
            size=partial(count_records, self.state),
        )

    def _load_entry(self, entry: Entry) -> bool:
        self.checkpoint.unsaved += 1
        try:
            apply_entry(self.state, entry)
        except WireError:
            return False
        return True

    def _check_some(self) -> bool:
        """Finds offsets of topics whose deletion left no tombstones; whether there is more."""
        if self._unchecked is None:
            offsets = self.state.offsets
            self._unchecked = list({**offsets.committed, **offsets.writers})
        count = 0
        while self._unchecked and count < CHECKED_PER_TURN:
            group_id = self._unchecked.pop()
            count += 1 + len(self.state.offsets.of_group(group_id))
            self._stale += decide_stale(self.state, group_id, self._metadata.topic_id).records
        return bool(self._unchecked)

    def _loaded(self) -> None:
        on_loaded(self.state, self._runtime.steady_ms())
        self.forget_topics(self._deleted_topics)
        self._write_tombstones(Decision(records=self._stale))
        self._stale = []
        for group in self.state.groups.values():
            self.arm(group)
        self.checkpoint.count(0)

    def close(self) -> None:
        """Stops serving; requests that wait are answered with an error."""
        self.closed = True
        self._loader.cancel()
        if not self.state.is_loading:
            self.checkpoint.close()
        for alarm in self._alarms.values():
            alarm.timer.cancel()
        self._alarms.clear()
        for ticket, reply in on_unloaded(self.state, self._runtime.steady_ms()):
            self._waiting.pop(ticket)(reply)
        assert not self._waiting, f"{self} leaves requests without an answer"

    # -- deciding ---------------------------------------------------------------------------------

    def wait(self, ticket: int, done: Callable[[Any], None]) -> None:
        """Answers the request of this ticket through `done`."""
        self._waiting[ticket] = done

    def run(self, group_id: str, decision: Decision, producer: Producer | None = None) -> ErrorCode:
        """Carries out a decision; an error means that nothing of it was written."""
        error = self._run(decision, producer)
        group = self.state.groups.get(group_id)
        if group is not None:
            self.arm(group)
        return error

    def _run(self, decision: Decision, producer: Producer | None = None) -> ErrorCode:
        error = self._append(decision.records, producer)
        self._answer(decision.answers)
        sequel = decision.then if error is ErrorCode.NONE else decision.otherwise
        if isinstance(sequel, JoinLost | AssignmentLost):
            sequel = replace(sequel, error=error)
        if sequel is not None:
            self._run(on_sequel(self.state, sequel, self._runtime.steady_ms()))
        return error

    def _append(self, records: Sequence[LogRecord], producer: Producer | None) -> ErrorCode:
        if not records:
            return ErrorCode.NONE
        now_ms = self._runtime.clock.now_ms()
        records = [stamped(record, now_ms) for record in records]
        pairs = [encode_record(record) for record in records]
        size = sum(len(key) + len(value or b"") for key, value in pairs)
        if self.partition.is_under_min_isr:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # As in Kafka; clients retry.
        if size > MAX_BATCH_BYTES - _BATCH_OVERHEAD_BYTES:
            log.error("%s: %d bytes do not fit into one batch", self.partition.name, size)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        producer_id, producer_epoch = producer or (-1, -1)
        try:
            self._end_offset = self.partition.append_records(
                pairs,
                now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer is not None,
            )
        except StorageError as problem:
            log.error("%s cannot be written: %s", self.partition.name, problem)
            return APPEND_REFUSED
        first_offset = self._end_offset - len(records)
        for offset, record in enumerate(records, start=first_offset):
            apply_record(self.state, record, offset, producer_id)
        self.checkpoint.count(len(records))
        return ErrorCode.NONE

    def run_tombstones(self, group_id: str, decision: Decision) -> ErrorCode:
        """Carries out a decision that only removes, in several batches if needed."""
        records = decision.records
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            part = replace(decision, records=records[start : start + TOMBSTONES_PER_BATCH])
            error = self.run(group_id, part)
            if error is not ErrorCode.NONE:
                return error
        self._sync_soon()
        return ErrorCode.NONE

    def forget_topics(self, names: Collection[str]) -> None:
        """Removes the offsets of deleted topics; during a load at its end.

        What the disk refuses is retried later. Until then topic ids distinguish those offsets from
        those of a new topic.
        """
        if self.state.is_loading:
            self._deleted_topics.update(names)
        elif names and not self.closed:
            self._write_tombstones(decide_topics_deleted(self.state, names))

    def topic_created(self, name: str) -> None:
        """Notes during a load that offsets of this name are those of an older topic."""
        if self.state.is_loading:
            self._deleted_topics.add(name)

    def _write_tombstones(self, decision: Decision) -> None:
        if self.run_tombstones("", decision) is not ErrorCode.NONE:
            self._has_stale = True

    def _forget_stale(self) -> None:
        """Removes offsets of deleted topics that the disk refused to remove before."""
        if not self._has_stale:
            return
        self._has_stale = False
        offsets = self.state.offsets
        for group_id in list({**offsets.committed, **offsets.writers}):
            self._write_tombstones(decide_stale(self.state, group_id, self._metadata.topic_id))

    def apply_marker(self, entry: Entry) -> None:
        """Applies a marker: settles or drops the pending offsets of its transaction."""
        self._end_offset = max(self._end_offset, entry.offset + 1)
        apply_entry(self.state, entry)
        self.checkpoint.count(1)

    # -- answering --------------------------------------------------------------------------------

    def _answer(self, answers: Sequence[Answer]) -> None:
        for ticket, reply in answers:
            done = self._waiting.pop(ticket)
            self.when_durable(partial(done, reply))

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Calls back once everything that was appended so far is durable."""
        self._runtime.when_durable(self.partition, self._end_offset, callback)

    def _sync_soon(self) -> None:
        """Requests a sync for records that no reply waits for."""
        self.when_durable(lambda: None)

    # -- time -------------------------------------------------------------------------------------

    def arm(self, group: Group) -> None:
        """Sets the timer of a group, if something is due before it would fire."""
        alarm = self._alarms.get(group.group_id)
        if group.alarm_ms == NEVER or (alarm is not None and alarm.due_ms <= group.alarm_ms):
            return
        if alarm is not None:
            alarm.timer.cancel()
        delay_ms = max(group.alarm_ms - self._runtime.steady_ms(), 0)
        timer = self._runtime.call_later(delay_ms, partial(self._on_alarm, group.group_id))
        self._alarms[group.group_id] = Alarm(group.alarm_ms, timer)

    def _on_alarm(self, group_id: str) -> None:
        del self._alarms[group_id]
        group = self.state.groups.get(group_id)
        if group is None:
            return
        now_ms = self._runtime.steady_ms()
        while group.alarm_ms <= now_ms:
            self._run(on_tick(self.state, group, now_ms))
        self.arm(group)
        self._sync_soon()

    def pass_time(self, passed_ms: int, is_connected: Callable[[str], bool]) -> None:
        """Ends the sessions of members without a connection that so much time would have ended."""
        for group in list(self.state.groups.values()):
            pass_time(group, passed_ms, is_connected)
            self.arm(group)
            if group.alarm_ms <= self._runtime.steady_ms():
                self._alarms[group.group_id].timer.cancel()
                self._on_alarm(group.group_id)

    def expire(self) -> None:
        """Removes offsets past offsets.retention.minutes, and those of deleted topics."""
        self._forget_stale()
        for group in list(self.state.groups.values()):
            decision = decide_expiry(self.state, group, self._runtime.clock.now_ms())
            if self.run_tombstones(group.group_id, decision) is not ErrorCode.NONE:
                return  # The disk is full; the next check retries.
