"""The group coordinator of one node: requests find the partition of their group.

The node that leads the partition of `__consumer_offsets` that a group id hashes to coordinates the
group. `coordinator.group` decides; `partition.py` appends the decisions to the log. A request that
may have to wait for the log or for other members is answered through `done`, exactly once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, NO_SEQUENCE, coordinator_partition
from fencepost.base.seams import Randomness
from fencepost.broker.groups.partition import GroupPartition, Producer
from fencepost.broker.peers import Answer, FirstWrite
from fencepost.broker.runtime import Runtime, TimerHandle
from fencepost.broker.settings.config import BrokerConfig
from fencepost.coordinator.group.commit import decide_commit
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.events import (
    Commit,
    CommitReply,
    DeleteOffsets,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Sync,
    SyncReply,
)
from fencepost.coordinator.group.join import on_join, refuse_join
from fencepost.coordinator.group.removal import (
    decide_delete_group,
    decide_delete_offsets,
)
from fencepost.coordinator.group.sessions import on_heartbeat, on_leave
from fencepost.coordinator.group.settings import GroupCoordinatorSettings
from fencepost.coordinator.group.sync import on_sync
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.partition.partition import Partition
from fencepost.partition.verification import Guard
from fencepost.records.entry import Entry

NONE: Final = ErrorCode.NONE
LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

_VERIFICATION_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NETWORK_EXCEPTION: LOADING,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""Errors of the transaction coordinator, translated for clients of the group coordinator."""


class GroupCoordinator:
    """The groups that this node coordinates."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        randomness: Randomness,
        metadata: MetadataState,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._randomness = randomness
        self._metadata = metadata
        self._partitions: dict[int, GroupPartition] = {}
        self._last_ticket = 0
        self._expiry: TimerHandle | None = None
        self.settings = GroupCoordinatorSettings(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            offset_metadata_max_size=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        )

    # -- partitions -------------------------------------------------------------------------------

    def load(self, partition_index: int, partition: Partition, *, held: bool = False) -> None:
        """Reads the log of a partition, and serves it from then on; with `held` it is read now."""
        self.unload(partition_index)
        loaded = GroupPartition(
            self._runtime,
            self._metadata,
            self._config.data,
            partition_index,
            partition,
            self.settings,
        )
        self._partitions[partition_index] = loaded
        loaded.load(held=held)
        if self._expiry is None:
            self._schedule_expiry()

    def unload(self, partition_index: int) -> None:
        """Stops serving a partition."""
        known = self._partitions.pop(partition_index, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Stops serving all partitions."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for index in list(self._partitions):
            self.unload(index)

    def dangling(self, partition_index: int) -> list[int]:
        """Producers with pending offsets but without an open transaction in the partition."""
        known = self._partitions[partition_index]
        pending = known.state.offsets.pending
        producers = known.partition.producers
        return [
            producer_id
            for producer_id in pending
            if (state := producers.get(producer_id)) is None or not state.in_txn
        ]

    def is_loaded(self, partition_index: int) -> bool:
        """Whether the log of a partition has been read to the end."""
        known = self._partitions.get(partition_index)
        return known is not None and not known.state.is_loading

    def before_compaction(self, partition: Partition) -> None:
        """Prepares a loaded log for compaction: no checkpoint may need the removed tombstones."""
        self._partitions[partition.name.partition].checkpoint.before_compaction()

    def on_damage(self, partition: Partition) -> None:
        """Saves the state of a loaded log that was found damaged: the next start needs it."""
        if self.is_loaded(partition.name.partition):
            self._partitions[partition.name.partition].checkpoint.save_durably()

    def find(self, group_id: str) -> GroupPartition | ErrorCode:
        """The partition of a group, or the error if it is not served here."""
        count = self._metadata.partition_count(CONSUMER_OFFSETS_TOPIC)
        if count == 0:
            return ErrorCode.NOT_COORDINATOR
        found = self._partitions.get(coordinator_partition(group_id, count))
        if found is None:
            return ErrorCode.NOT_COORDINATOR
        if found.is_refused:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return LOADING if found.state.is_loading else found

    def states(self) -> list[GroupCoordinatorState] | ErrorCode:
        """The state of every partition here; an error while one of them is loading.

        Damaged partitions are left out: an error would hide all others until they are repaired.
        """
        states = [known.state for known in self._partitions.values() if not known.is_refused]
        return LOADING if any(state.is_loading for state in states) else states

    @property
    def is_loading(self) -> bool:
        """Whether a partition is still being loaded."""
        return isinstance(self.states(), ErrorCode)

    # -- membership -------------------------------------------------------------------------------

    def new_ticket(self) -> int:
        """A new number for a request that may wait."""
        self._last_ticket += 1
        return self._last_ticket

    def new_member_id(self, prefix: str) -> str:
        """A new member id: the client id or group instance id, and a random part."""
        return f"{prefix}-{uuid.UUID(bytes=self._randomness.bytes(16), version=4)}"

    def join(self, event: Join, done: Callable[[JoinReply], None]) -> None:
        """JoinGroup."""
        error = refuse_join(event, self.settings)
        found = self.find(event.group_id) if error is None else error
        if isinstance(found, ErrorCode):
            done(JoinReply(found, event.member_id))
            return
        found.wait(event.ticket, done)
        found.run(event.group_id, on_join(found.state, event, self._runtime.steady_ms()))

    def sync(self, event: Sync, done: Callable[[SyncReply], None]) -> None:
        """SyncGroup."""
        found = self._find_named(event.group_id)
        if isinstance(found, ErrorCode):
            done(SyncReply(found))
            return
        found.wait(event.ticket, done)
        found.run(event.group_id, on_sync(found.state, event, self._runtime.steady_ms()))

    def heartbeat(self, event: Heartbeat) -> ErrorCode:
        """Heartbeat."""
        found = self._find_named(event.group_id)
        if isinstance(found, ErrorCode):
            # Members are still members when the group is loaded; they need not join again.
            return NONE if found is LOADING else found
        error = on_heartbeat(found.state, event, self._runtime.steady_ms())
        group = found.state.groups.get(event.group_id)
        if group is not None:
            found.arm(group)
        return error

    def leave(self, event: Leave, done: Callable[[LeaveReply | ErrorCode], None]) -> None:
        """LeaveGroup."""
        found = self._find_named(event.group_id)
        if isinstance(found, ErrorCode):
            done(found)
            return
        decision = on_leave(found.state, event, self._runtime.steady_ms())
        error = found.run(event.group_id, decision)
        reply = decision.reply
        assert isinstance(reply, LeaveReply)
        found.when_durable(lambda: done(reply if error is NONE else error))

    def _find_named(self, group_id: str) -> GroupPartition | ErrorCode:
        return self.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # -- offsets ----------------------------------------------------------------------------------

    def commit(self, event: Commit, done: Callable[[CommitReply], None]) -> None:
        """OffsetCommit; the empty group id may commit, as in Kafka."""
        found = self.find(event.group_id)
        if isinstance(found, ErrorCode):
            done(CommitReply(found))
        else:
            self._commit(found, event, None, done)

    def _commit(
        self,
        found: GroupPartition,
        event: Commit,
        producer: Producer | None,
        done: Callable[[CommitReply], None],
    ) -> None:
        decision = decide_commit(found.state, event, self._runtime.clock.now_ms())
        reply = decision.reply
        assert isinstance(reply, CommitReply)
        error = found.run(event.group_id, decision, producer)
        found.when_durable(partial(done, reply if error is NONE else CommitReply(error)))

    def commit_in_transaction(
        self,
        group_id: str,
        transactional_id: str,
        producer: Producer,
        *,
        add: bool,
        verify: Callable[[FirstWrite, Answer], None],
        read: Callable[[], Commit],
        done: Callable[[CommitReply], None],
    ) -> None:
        """TxnOffsetCommit: keeps offsets pending until the transaction ends, if it is open.

        `verify` asks the transaction coordinator; with `add` (TV2) the partition joins the
        transaction by this. `read` returns the offsets in the turn in which they are appended: a
        topic may be deleted while the coordinator is asked.
        """
        found = self._find_named(group_id)
        if isinstance(found, ErrorCode):
            done(CommitReply(found))
            return
        partition = found.partition
        # Before the transaction coordinator is called (KAFKA-18042).
        if refusal := partition.producers.check_epoch(*producer):
            done(CommitReply(refusal.error))
            return
        if partition.in_txn(*producer):
            self._commit(found, read(), producer, done)
            return
        guard = partition.verification.begin(
            *producer, NO_SEQUENCE, self._runtime.clock.now_ms(), starts_at_zero=False
        )

        def verified(errors: list[ErrorCode]) -> None:
            error = _VERIFICATION_ERRORS.get(errors[0], errors[0])
            if error is NONE:
                error = _refuse_write(found, producer, guard)
            if error is NONE:
                # The group decides now and not before: it may have changed (KAFKA-15784).
                self._commit(found, read(), producer, done)
            else:
                done(CommitReply(error))

        if not add and not self._config.transaction_partition_verification_enable:
            verified([NONE])
            return
        verify(FirstWrite([partition.name], transactional_id, *producer, add), verified)

    def delete_offsets(self, event: DeleteOffsets, done: Callable[[CommitReply], None]) -> None:
        """OffsetDelete."""
        found = self._find_named(event.group_id)
        if isinstance(found, ErrorCode):
            done(CommitReply(found))
            return
        decision = decide_delete_offsets(found.state, event)
        reply = decision.reply
        assert isinstance(reply, CommitReply)
        error = found.run_tombstones(event.group_id, decision)
        found.when_durable(partial(done, reply if error is NONE else CommitReply(error)))

    def delete_group(self, group_id: str, done: Callable[[ErrorCode], None]) -> None:
        """DeleteGroups, one group."""
        found = self.find(group_id)
        if isinstance(found, ErrorCode):
            done(found)
            return
        decision = decide_delete_group(found.state, group_id)
        reply = decision.reply
        assert isinstance(reply, ErrorCode)
        error = found.run_tombstones(group_id, decision)
        found.when_durable(partial(done, reply if error is NONE else error))

    def on_marker(self, partition_index: int, entry: Entry) -> None:
        """Applies a marker that was appended to a partition of `__consumer_offsets`."""
        self._partitions[partition_index].apply_marker(entry)

    # -- removal ----------------------------------------------------------------------------------

    def forgetting(self, names: Collection[str]) -> Iterator[Callable[[], None]]:
        """Functions that remove the offsets of deleted topics, one per partition."""
        for known in list(self._partitions.values()):
            if not known.closed:
                yield partial(known.forget_topics, names)

    def on_topic_created(self, name: str) -> None:
        """Tells partitions that still load: offsets of this name are those of an older topic."""
        for known in self._partitions.values():
            known.topic_created(name)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Calls back once everything that any partition has appended so far is durable."""
        waiting = len(self._partitions)
        if not waiting:
            callback()

        def durable() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                callback()

        for known in list(self._partitions.values()):
            known.when_durable(durable)

    def pass_time(self, passed_ms: int, is_connected: Callable[[str], bool]) -> None:
        """Ends the sessions of members without a connection that so much time would have ended.

        Members are connected by the address that they were last heard from.
        """
        for known in self._partitions.values():
            if not known.state.is_loading:
                known.pass_time(passed_ms, is_connected)

    def _schedule_expiry(self) -> None:
        interval_ms = self._config.offsets_retention_check_interval_ms
        self._expiry = self._runtime.call_later(interval_ms, self._expire)

    def _expire(self) -> None:
        self.remove_expired()
        self._schedule_expiry()

    def remove_expired(self) -> None:
        """Removes offsets past offsets.retention.minutes."""
        for known in self._partitions.values():
            if not known.state.is_loading:
                known.expire()


def _refuse_write(found: GroupPartition, producer: Producer, guard: Guard) -> ErrorCode:
    """Whether the verification still holds: a marker may have overtaken it."""
    if found.closed:
        return ErrorCode.NOT_COORDINATOR
    partition = found.partition
    if refusal := partition.producers.check_epoch(*producer):
        return refusal.error
    if partition.in_txn(*producer) or partition.verification.get(producer.producer_id) is guard:
        return NONE
    return ErrorCode.INVALID_TXN_STATE
