"""The controller as a service: it decides, writes the metadata log, and carries out the effects.

Theory of operation
-------------------
Every change is decided on the current state, appended to the metadata log and applied in one turn
of the loop. A change of more than `DECIDED_AT_ONCE` records is decided, encoded over several turns,
and then appended and applied in one turn, provided that the state has not changed since; otherwise
it is decided again.

Effects follow when the records are durable: the controller opens the log of a new partition,
removes the folder of a deleted one, applies a changed setting, and answers the client. So no client
can write to a partition that a loss of power would undo. In `os` mode all of this happens in one
turn, unless there are many partitions: those are opened and closed over several turns, and the
client is answered after the last one. Until a partition is open, Metadata shows it without a
leader, and Produce and Fetch refuse it with a retriable error.

A deleted topic is removed from the state at once, but its folders remain until its last partition
is closed. The creation of a topic of the same name waits for that (`_removing`).

`shown` caches the topics of Metadata replies until the state or the set of open partitions changes.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
    ZERO_TOPIC_ID,
    TopicPartition,
)
from fencepost.broker.controller.checkpoint import METADATA_LOG_CONFIG, MetadataCheckpoints
from fencepost.broker.controller.log_check import refuse_damaged_metadata
from fencepost.broker.metadata.effects import MetadataEffects
from fencepost.broker.settings.config import check_topic_overrides
from fencepost.broker.settings.tables import INTERNAL_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from fencepost.broker.storage.identity import Identity, draw_id, load_identity
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.broker.turns import run_in_turns
from fencepost.coordinator.metadata.apply import apply
from fencepost.coordinator.metadata.decide import (
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    refuse_new_name,
)
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionsCreated,
    TopicRemoved,
    effects_of,
)
from fencepost.coordinator.metadata.events import (
    AlterSettings,
    CreatePartitions,
    CreateTopic,
    Decision,
    DeleteTopic,
    RegisterBroker,
    refuse,
)
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_alter_settings,
    decide_bump_leader_epochs,
    decide_register_broker,
    decide_reserve_ids,
)
from fencepost.coordinator.metadata.state import Endpoint, MetadataState
from fencepost.records.metadata_log import PartitionRecord, RegisterBrokerRecord, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fencepost.broker.node import Node
    from fencepost.partition.partition import Partition
    from fencepost.records.metadata_log import MetadataRecord
    from fencepost.wire.forms.metadata import MetadataResponseTopic

log = logging.getLogger(__name__)

FEATURES: Final[Mapping[str, int]] = {"metadata.version": 29, "transaction.version": 2}
"""The features of a new cluster; 29 is the metadata version of Kafka 4.2, whose records we
write."""

DECIDED_AT_ONCE: Final = 1_000
"""Records that are decided and written in one turn of the loop, at about 6 microseconds each."""

ENCODED_PER_STEP: Final = 250
"""Records that are encoded before the time of a turn is checked again."""

MAX_ATTEMPTS: Final = 5
"""How often a large change is decided again because of other changes. After that it is encoded and
written in the turn that decides it."""

MAX_LOST_EPOCHS: Final = 100
"""More leader epochs than a loss of power can remove; a larger gap is damage."""

INTERNAL_COUNTS: Final = {
    CONSUMER_OFFSETS_TOPIC: "offsets.topic.num.partitions",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.num.partitions",
}


class NewTopic(NamedTuple):
    """A topic to create; -1 stands for the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    settings: Sequence[tuple[str, str | None]] = ()


class Outcome(NamedTuple):
    """The result of one part of a request."""

    name: str
    error: ErrorCode
    message: str | None = None
    topic_id: bytes = bytes(16)
    partition_count: int = -1


Outcomes = list[Outcome]


class _Change(NamedTuple):
    """A change to one topic, not decided yet."""

    name: str
    decide: Callable[[], Decision]


class _Making:
    """The changes of one request."""

    __slots__ = (
        "attempts",
        "done",
        "effects",
        "left",
        "outcomes",
        "validate_only",
        "waits_for_removal",
    )

    def __init__(
        self,
        left: deque[_Change],
        done: Callable[[Outcomes], None],
        validate_only: bool,
        *,
        waits_for_removal: bool,
    ) -> None:
        self.left = left
        self.done = done
        self.validate_only = validate_only
        self.waits_for_removal = waits_for_removal
        self.outcomes: Outcomes = []
        self.effects: list[Effect] = []
        self.attempts = 0
        """How often the first change was decided in vain."""


class Controller:
    """The metadata of one node, and its effects on the node's partitions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.state: Final = MetadataState()
        self.controller_id = NO_NODE
        self.identity = Identity("", node.node_id, "")
        self.shown: dict[str, MetadataResponseTopic] = {}
        self._producer_ids: Final = ProducerIds(self._reserve_producer_ids)
        self._removing: set[str] = set()
        self._after_removal: list[Callable[[], None]] = []
        self._stopped = False
        self._effects: Final = MetadataEffects(node, self.state, self.partitions_changed)
        self._checkpoints: Final = MetadataCheckpoints(node.disk, node.config.data)
        self._log: Partition | None = None

    # -- start
    # --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the metadata log and opens every partition that this node leads."""
        node = self._node
        self.identity = load_identity(node.disk, node.config.data, node.node_id, node.randomness)
        refuse_damaged_metadata(node.disk, node.layout)
        self._log = node.open_metadata_log()
        self._log.reconfigure(METADATA_LOG_CONFIG)
        self.controller_id = node.node_id
        self._checkpoints.load(self.state, self._log)
        self._effects.apply_broker_settings()
        self._refuse_changed_counts()
        mine = [TopicPartition(t.name, index) for t, index, _ in self.state.led_by(node.node_id)]
        node.layout.set_aside_strays([TopicPartition(CLUSTER_METADATA_TOPIC, 0), *mine])
        if not node.layout.clean:
            self._commit_now(decide_bump_leader_epochs(self.state, mine))
        for topic in self.state.topics.values():
            self._effects.open(topic.name, range(len(topic.partitions)))
        if not node.layout.clean:
            self._outgrow_logs(mine)

    def _outgrow_logs(self, names: Sequence[TopicPartition]) -> None:
        """Raises leader epochs above those in the logs, if a loss of power has removed some.

        Clients keep the newest epoch that they have seen, and ignore metadata with a lower one.
        """
        opened = [found for name in names if (found := self._node.partition(*name)) is not None]
        for _ in range(MAX_LOST_EPOCHS):
            behind = [each for each in opened if each.log.epochs.latest >= each.leader_epoch]
            if not behind:
                return
            self._commit_now(decide_bump_leader_epochs(self.state, [each.name for each in behind]))
            for each in behind:
                each.bump_leader_epoch(each.leader_epoch + 1)
        log.error(
            "%s: the leader epochs of its batches are far above those of the metadata log",
            behind[0].name,
        )

    def register(self, host: str, port: int) -> None:
        """Registers the address of this node in the metadata."""
        event = RegisterBroker(
            node_id=self._node.node_id,
            epoch=self._metadata_log.log_end_offset,
            incarnation_id=draw_id(self._node.randomness),
            endpoints=(Endpoint("PLAINTEXT", host, port),),
            rack=self._node.config.broker_rack,
            features=FEATURES,
        )
        self._commit_now(decide_register_broker(self.state, event))
        self._effects.loads_coordinators = True

    def _refuse_changed_counts(self) -> None:
        """Refuses a new partition count, which would move groups and ids to other partitions."""
        for topic, setting in INTERNAL_COUNTS.items():
            present = self.state.partition_count(topic)
            wanted = self.internal_partition_count(topic)
            if present not in (0, wanted):
                raise ConfigError(
                    f"{setting} is {wanted}, but {topic} has {present} partitions. Their number "
                    f"cannot change. Set {setting}={present}."
                )

    # -- deciding and writing
    # -----------------------------------------------------------------------------

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller."""
        return self.controller_id == self._node.node_id

    @property
    def has_offline(self) -> bool:
        """Whether a partition could not be opened and will be tried again."""
        return self._effects.has_offline

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self.identity.cluster_id

    def partitions_changed(self, topic: str) -> None:
        """Drops the cached description of a topic: one of its partitions was opened or closed."""
        self.shown.pop(topic, None)

    def stop(self) -> None:
        """Ends work that takes several turns; opens and closes nothing from now on."""
        self._stopped = True
        self._effects.stop()

    @property
    def _metadata_log(self) -> Partition:
        assert self._log is not None, "the metadata log is loaded first"
        return self._log

    def _take(
        self, decision: Decision, values: Sequence[bytes] | None = None
    ) -> tuple[Decision, Sequence[Effect]]:
        """Appends and applies a decision; returns a refusal if the log cannot be written."""
        if not decision.records:
            return decision, ()
        if not self.is_controller:
            return refuse(
                ErrorCode.NOT_CONTROLLER, f"The controller is broker {self.controller_id}."
            ), ()
        if values is None:
            values = [encode_record(record) for record in decision.records]
        pairs = [(None, value) for value in values]
        try:
            self._metadata_log.append_records(pairs, self._node.clock.now_ms())
        except StorageError as problem:
            log.error("cannot write the metadata log: %s", problem)
            return refuse(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata log cannot be written."), ()
        self._node.flusher.written(self._metadata_log)
        effects = effects_of(self.state, decision.records)
        for record in decision.records:
            apply(self.state, record)
        self._forget_shown(decision, effects)
        self._shorten()
        return decision, effects

    def _forget_shown(self, decision: Decision, effects: Sequence[Effect]) -> None:
        """Drops the cached descriptions that the records of a decision change."""
        for effect in effects:
            if isinstance(effect, PartitionsCreated | TopicRemoved):
                self.shown.pop(effect.topic, None)
            elif isinstance(effect, LeadersChanged):
                for name in effect.partitions:
                    self.shown.pop(name.topic, None)
        if any(isinstance(record, RegisterBrokerRecord) for record in decision.records):
            self.shown.clear()

    def _shorten(self) -> None:
        """Replaces a long history by a checkpoint, in a thread."""
        metadata_log = self._metadata_log
        checkpoint = self._checkpoints.prepare_if_due(
            self.state, metadata_log, self._node.clock.now_ms()
        )
        if checkpoint is not None:
            done = partial(self._checkpoints.complete, checkpoint, metadata_log)
            self._node.background.run(checkpoint.run, done)

    def _commit_now(self, decision: Decision) -> None:
        """Commits a decision during the start; returns when its records are durable.

        That is so in both modes: a metadata log that is missing later was lost, not unwritten.
        """
        taken, _ = self._take(decision)
        if taken.error is not ErrorCode.NONE:
            raise StorageError(taken.message)
        durable = self._metadata_log.log.sync()
        self._metadata_log.advance_high_watermark(durable)

    def _finish(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries out the effects once everything appended so far is durable, then calls `done`."""
        removed = {e.topic for e in effects if isinstance(e, TopicRemoved)}

        def performed() -> None:
            if removed:
                # Committed offsets must be gone, or a new topic of that name would inherit them.
                self._node.groups.when_durable(free_names)
            else:
                done()

        def free_names() -> None:
            self._removing -= removed
            done()
            waiting, self._after_removal = self._after_removal, []
            for create in waiting:
                create()

        def durable() -> None:
            self._effects.run(effects, performed)

        metadata_log = self._metadata_log
        self._node.when_durable(metadata_log, metadata_log.log_end_offset, durable)

    # -- topics
    # -------------------------------------------------------------------------------------------

    def create(
        self, topics: Sequence[NewTopic], done: Callable[[Outcomes], None], *, validate_only: bool
    ) -> bool:
        """Creates or refuses each topic; calls `done` when all of them are durable and open.

        Returns whether everything was decided in this turn of the loop.
        """
        changes = [_Change(topic.name, partial(self._decide_create, topic)) for topic in topics]
        making = _Making(deque(changes), done, validate_only, waits_for_removal=True)
        self._make(making)
        return not making.left

    def _make(self, making: _Making) -> None:
        """Decides one change after the other, over several turns of the loop if there are many."""
        room = DECIDED_AT_ONCE
        go_on = partial(self._make, making)
        while making.left:
            change = making.left[0]
            if making.waits_for_removal and change.name in self._removing:
                self._after_removal.append(go_on)
                return
            if room <= 0:
                self._node.call_later(0, lambda: None if self._stopped else go_on())
                return
            version = self.state.version
            decision = change.decide()
            room -= max(1, len(decision.records))
            if self._is_encoded_in_turns(change.name, decision, making):
                values: list[bytes] = []
                steps = _encoding(decision.records, values)
                write = partial(self._write_encoded, making, decision, version, values)
                run_in_turns(self._node, steps, write)
                return
            self._make_one(making, decision)
        self._finish(making.effects, lambda: making.done(making.outcomes))

    def _is_encoded_in_turns(self, name: str, decision: Decision, making: _Making) -> bool:
        return (
            len(decision.records) > DECIDED_AT_ONCE
            and not making.validate_only
            and making.attempts < MAX_ATTEMPTS
            and name not in INTERNAL_TOPICS  # `ensure_internal` needs them in this turn.
        )

    def _write_encoded(
        self, making: _Making, decision: Decision, version: int, values: list[bytes]
    ) -> None:
        """Writes a large decision, unless the state has changed since: then it is decided again."""
        if self._stopped:
            return
        if self.state.version == version:
            self._make_one(making, decision, values)
        else:
            making.attempts += 1
        self._node.call_later(0, lambda: None if self._stopped else self._make(making))

    def _make_one(
        self, making: _Making, decision: Decision, values: Sequence[bytes] | None = None
    ) -> None:
        making.attempts = 0
        if not making.validate_only:
            decision, effects = self._take(decision, values)
            making.effects += effects
        making.outcomes.append(_outcome(making.left.popleft().name, decision))

    def _decide_create(self, wanted: NewTopic) -> Decision:
        topic_id = draw_id(self._node.randomness)
        if refused := refuse_new_name(self.state, wanted.name):
            return refused
        settings = self._read_settings(wanted)
        if isinstance(settings, Decision):
            return settings
        if wanted.name in INTERNAL_TOPICS:
            return self._decide_create_internal(wanted, topic_id, settings)
        count = wanted.partition_count
        if count == -1 and not wanted.assignments:
            count = self._node.config.num_partitions
        event = CreateTopic(
            wanted.name, topic_id, count, wanted.replication_factor, wanted.assignments, settings
        )
        return decide_create_topic(self.state, event)

    def _read_settings(self, wanted: NewTopic) -> dict[str, str] | Decision:
        absent = sorted(name for name, value in wanted.settings if value is None)
        if absent:
            return refuse(ErrorCode.INVALID_CONFIG, f"Settings need values: {', '.join(absent)}.")
        settings = {name: value for name, value in wanted.settings if value is not None}
        try:
            check_topic_overrides(self._node.config, settings)
        except ConfigError as problem:
            return refuse(ErrorCode.INVALID_CONFIG, str(problem))
        return settings

    def delete(self, names: Sequence[str], done: Callable[[Outcomes], None]) -> None:
        """Deletes or refuses each topic; calls `done` when the deletions are durable and done."""
        outcomes = []
        effects: list[Effect] = []
        for name in names:
            topic_id = self.state.topic_id(name) or bytes(16)
            decision, removed = self._take(decide_delete_topic(self.state, DeleteTopic(name)))
            if decision.error is ErrorCode.NONE:
                self._removing.add(name)
                effects += removed
            outcomes.append(_outcome(name, decision, topic_id))
        self._finish(effects, lambda: done(outcomes))

    def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        done: Callable[[Outcomes], None],
        *,
        validate_only: bool,
    ) -> bool:
        """Adds partitions to each topic, or refuses them; calls `done` when they are open.

        Returns whether everything was decided in this turn of the loop.
        """
        changes = [
            _Change(event.name, partial(decide_create_partitions, self.state, event))
            for event in requests
        ]
        making = _Making(deque(changes), done, validate_only, waits_for_removal=False)
        self._make(making)
        return not making.left

    # -- topics that are created automatically
    # -----------------------------------------------------------------------

    def auto_create(self, names: Sequence[str], done: Callable[[Outcomes], None]) -> None:
        """Creates topics that a client asked about, with the broker's defaults."""
        self.create([NewTopic(name) for name in names], done, validate_only=False)

    def ensure_internal(self, name: str) -> None:
        """Creates __consumer_offsets or __transaction_state when it is first needed.

        Raises StorageError if that fails. Its partitions are open when its records are durable; in
        `os` mode that is now.
        """
        assert name in INTERNAL_TOPICS, f"{name} is not internal"
        if name in self.state.topics:
            return
        outcomes: Outcomes = []
        self.create([NewTopic(name)], outcomes.extend, validate_only=False)
        if outcomes and outcomes[0].error is not ErrorCode.NONE:
            raise StorageError(f"cannot create {name}: {outcomes[0].message}")

    def internal_partition_count(self, name: str) -> int:
        """The number of partitions of an internal topic by the broker's settings."""
        config = self._node.config
        if name == CONSUMER_OFFSETS_TOPIC:
            return config.offsets_topic_num_partitions
        return config.transaction_state_log_num_partitions

    def _decide_create_internal(
        self, wanted: NewTopic, topic_id: bytes, settings: Mapping[str, str]
    ) -> Decision:
        """Decides an internal topic, which gets its partitions and settings from the broker."""
        count = self.internal_partition_count(wanted.name)
        if wanted.assignments or wanted.partition_count not in (-1, count):
            return refuse(
                ErrorCode.INVALID_PARTITIONS,
                f"{wanted.name} has {count} partitions, as set by {INTERNAL_COUNTS[wanted.name]}.",
            )
        event = CreateTopic(
            wanted.name,
            topic_id,
            count,
            wanted.replication_factor,
            settings={**self._internal_settings(wanted.name), **settings},
        )
        return decide_create_topic(self.state, event)

    def _internal_settings(self, name: str) -> dict[str, str]:
        config = self._node.config
        if name == CONSUMER_OFFSETS_TOPIC:
            size = config.offsets_topic_segment_bytes
            settings = {"compression.type": "producer"}
        else:
            size = config.transaction_state_log_segment_bytes
            settings = {"compression.type": "uncompressed"}
        size_name = "segment.bytes" if size >= SMALLEST_SEGMENT_BYTES else INTERNAL_SEGMENT_BYTES
        return {**settings, "cleanup.policy": "compact", size_name: str(size)}

    # -- settings, leaders and producer ids
    # ---------------------------------------------------------------

    def alter_settings(
        self, changes: Sequence[AlterSettings], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Changes settings that were validated already; each resource has its own error."""
        errors = []
        effects: list[Effect] = []
        for event in changes:
            decision, changed = self._take(decide_alter_settings(self.state, event))
            errors.append(decision.error)
            effects += changed
        self._finish(effects, lambda: done(errors))

    def bump_leader_epochs(
        self, partitions: Iterable[TopicPartition], done: Callable[[ErrorCode], None]
    ) -> None:
        """Raises leader epochs without a change of leader; open partitions have them before `done`.

        In `os` mode a loss of power may remove the record. A start raises epochs above those of all
        batches, but an epoch under which nothing was written is forgotten. A single broker does not
        call this while it runs.
        """
        decision, effects = self._take(decide_bump_leader_epochs(self.state, partitions))
        self._finish(effects, lambda: done(decision.error))

    def reserve_ids_below(self, next_producer_id: int) -> None:
        """During the start: makes sure that producer ids below this one are never assigned."""
        decision = decide_reserve_ids(self.state, self._node.node_id, next_producer_id)
        if decision.records:
            self._commit_now(decision)

    def allocate_producer_id(self, done: Callable[[int | None], None]) -> None:
        """Allocates an unused producer id; None if the metadata log cannot be written."""
        self._producer_ids.allocate(done)

    def _reserve_producer_ids(self, done: Callable[[range | None], None]) -> None:
        first = self.state.next_producer_id
        decision, _ = self._take(decide_allocate_block(self.state, self._node.node_id))
        if decision.error is not ErrorCode.NONE:
            done(None)
            return
        block = range(first, self.state.next_producer_id)
        self._finish((), lambda: done(block))


def _encoding(records: Sequence[MetadataRecord], values: list[bytes]) -> Iterator[None]:
    """The steps that encode records."""
    for start in range(0, len(records), ENCODED_PER_STEP):
        values += map(encode_record, records[start : start + ENCODED_PER_STEP])
        yield


def _outcome(name: str, decision: Decision, topic_id: bytes = ZERO_TOPIC_ID) -> Outcome:
    if decision.error is not ErrorCode.NONE:
        return Outcome(name, decision.error, decision.message)
    created = [record for record in decision.records if isinstance(record, PartitionRecord)]
    if created:
        return Outcome(name, ErrorCode.NONE, None, bytes(created[0].topic_id), len(created))
    return Outcome(name, ErrorCode.NONE, None, topic_id)
