"""The controller's requests: decide, append, apply, and answer when brokers have carried it out.

The steps, and what a crash leaves between any two of them, are in `controller/__init__.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    ZERO_TOPIC_ID,
    TopicPartition,
)
from fencepost.base.refusal import Refusal
from fencepost.broker.controller.answer import TIMED_OUT, Answer
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.controller.new_topics import (
    NewTopic,
    decide_new_topic,
    internal_factors,
    internal_min_insync,
    refuse_changed_counts,
)
from fencepost.broker.storage.cluster_checkpoints import known_partitions
from fencepost.broker.storage.identity import draw_id
from fencepost.broker.turns import Steps, run_in_turns
from fencepost.coordinator.acl.changes import Created, Removed, decide_create, decide_delete
from fencepost.coordinator.metadata.decide import decide_create_partitions, decide_delete_topic
from fencepost.coordinator.metadata.events import (
    AlterPartitionReassignments,
    AlterSettings,
    CreatePartitions,
    Decision,
    DeleteTopic,
    Election,
    ElectLeaders,
    PartitionOutcome,
    RegisterBroker,
    Resize,
    refuse,
)
from fencepost.coordinator.metadata.leadership import (
    all_partitions,
    decide_alter_reassignments,
    decide_elect_leaders,
    decide_rebalance,
)
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_alter_settings,
    decide_bump_leader_epochs,
    decide_controlled_shutdown,
    decide_fence_brokers,
    decide_register_broker,
    decide_reserve_ids,
    decide_suspend_broker,
    decide_unfence_brokers,
)
from fencepost.coordinator.metadata.resizing import decide_resize
from fencepost.coordinator.metadata.state import Endpoint, MetadataState
from fencepost.coordinator.metadata.users import (
    Upsertion,
    UserChange,
    UserOutcome,
    decide_alter_users,
)
from fencepost.records.metadata_log import (
    TOPIC_RESOURCE,
    MetadataRecord,
    PartitionRecord,
    encode_record,
)

if TYPE_CHECKING:
    from fencepost.base.seams import Randomness
    from fencepost.broker.controller.followers import Followers
    from fencepost.broker.controller.metadata_log import Taken
    from fencepost.broker.partitions.partition_host import PartitionHost
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.layout import Layout
    from fencepost.coordinator.acl.changes import Sent
    from fencepost.coordinator.metadata.effects import Effect

T = TypeVar("T")

log = logging.getLogger(__name__)

FEATURES: Final[Mapping[str, int]] = {"metadata.version": 29, "transaction.version": 2}
"""The features of a new cluster; 29 is the metadata version of Kafka 4.2, whose records we
write."""

DECIDED_AT_ONCE: Final = 1_000
"""Records that are decided and written in one turn of the loop, at about 6 microseconds each."""

ENCODED_PER_STEP: Final = 250
"""Records that are encoded before the time of a turn is checked again."""

PARTITIONS_PER_STEP: Final = 100
"""Partitions whose leaders or replicas are decided before the time of a turn is checked again."""

MAX_ATTEMPTS: Final = 5
"""How often a large change is decided again because of other changes. After that it is encoded and
written in the turn that decides it."""

MAX_LOST_EPOCHS: Final = 100
"""More leader epochs than a power loss can remove; a larger gap is damage."""


class Outcome(NamedTuple):
    """The result of one part of a request."""

    name: str
    error: ErrorCode
    message: str | None = None
    topic_id: bytes = bytes(16)
    partition_count: int = -1
    replication_factor: int = -1


Outcomes = list[Outcome]
PartitionOutcomes = list[PartitionOutcome]
Reassignment = tuple[TopicPartition, Sequence[int] | None]
"""A partition and its replicas; None cancels a reassignment that is in progress."""


class _Change(NamedTuple):
    """A change to one topic, not decided yet."""

    name: str
    decide: Callable[[], Decision]


@dataclass(slots=True, eq=False)
class _Making:
    """The changes of one request."""

    left: deque[_Change]
    done: Callable[[Outcomes], None]
    validate_only: bool
    waits_for_removal: bool
    outcomes: Outcomes = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    attempts: int = 0
    """How often the first change was decided without being written."""

    def late(self) -> Outcomes:
        """The outcomes when the time of the request is over."""
        undecided = [Outcome(change.name, ErrorCode.NONE) for change in self.left]
        return _late([*self.outcomes, *undecided])


class Controller:
    """The controller of one cluster.

    A single broker has its controller in the same process. The controller of several brokers runs
    in a separate process, and knows which brokers a start runs (`broker_ids`).
    """

    forward: Final = None
    """See `ControllerPort`: its requests are served in this process."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        randomness: Randomness,
        layout: Layout,
        metadata_log: MetadataLog,
        followers: Followers,
        *,
        broker_ids: Sequence[int] | None = None,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._randomness = randomness
        self._layout = layout
        self._log: Final = metadata_log
        self._followers: Final = followers
        self._node_id: Final = config.node_id
        self._broker_ids: Final = (config.node_id,) if broker_ids is None else tuple(broker_ids)
        self._removing: set[str] = set()
        self._after_removal: list[Callable[[], None]] = []
        self._stopped = False

    @classmethod
    def on_host(
        cls,
        host: PartitionHost[Any],
        config: BrokerConfig,
        randomness: Randomness,
        followers: Followers,
        *,
        broker_ids: Sequence[int] | None = None,
    ) -> Controller:
        """A controller whose metadata log is among the partitions of a process."""
        metadata_log = MetadataLog(
            host.runtime, host.layout, host.store, host.background, host.flusher, followers
        )
        return cls(
            host.runtime,
            config,
            randomness,
            host.layout,
            metadata_log,
            followers,
            broker_ids=broker_ids,
        )

    @property
    def _state(self) -> MetadataState:
        return self._followers.state

    @property
    def end_offset(self) -> int:
        """The end of the metadata log."""
        return self._log.partition.log_end_offset

    # -- start and stop ---------------------------------------------------------------------------

    def load(self) -> None:
        """Loads the metadata log; nothing may be open or served before.

        If the last start ran other brokers, the partitions are placed again. Folders that belong to
        no topic are set aside. After an unclean stop every leader epoch rises, so that clients
        check whether they have read something that no longer exists.
        """
        self._log.load()
        self._followers.controller_id = self._node_id
        refuse_changed_counts(self._state, self._config)
        if self._layout.has_cluster_files:
            self._layout.merge(known_partitions(self._state))  # Before their epochs change.
        self._resize()
        partitions = list(all_partitions(self._state))
        self._layout.forget_others(partitions)
        self._layout.set_aside_strays([TopicPartition(CLUSTER_METADATA_TOPIC, 0), *partitions])
        if not self._layout.clean:
            # Nothing is open, so there are no effects.
            self._log.commit_now(decide_bump_leader_epochs(self._state, partitions))

    def _resize(self) -> None:
        """Makes the brokers of this start the only ones, before any of them runs."""
        if not self._state.brokers:
            return  # A new directory: nothing was placed yet.
        event = Resize(
            self._broker_ids,
            self.end_offset,
            bytes(16),
            internal_factors(self._config),
        )
        records = decide_resize(self._state, event).records
        if self._state.brokers.keys() != set(self._broker_ids):
            for topic in sorted(INTERNAL_TOPICS & self._state.topics.keys()):
                least = {"min.insync.replicas": internal_min_insync(self._config, topic)}
                altered = AlterSettings(TOPIC_RESOURCE, topic, least)
                records += decide_alter_settings(self._state, altered).records
        if records:
            self._log.commit_now(Decision(records))

    def raise_epochs_above(self, logged: Sequence[tuple[TopicPartition, int]]) -> None:
        """Raises leader epochs above those in the logs, if a power loss has removed some.

        `logged` has the newest epoch in the log of each partition. Clients keep the newest epoch
        that they have seen, and ignore metadata with a lower one.
        """
        for _ in range(MAX_LOST_EPOCHS):
            behind = [name for name, epoch in logged if epoch >= self._leader_epoch(name)]
            if not behind:
                return
            effects = self._log.commit_now(decide_bump_leader_epochs(self._state, behind))
            self._followers.carry_out(effects, lambda: None)
        log.error(
            "%s: the leader epochs of its batches are far above those of the metadata log",
            behind[0],
        )

    def _leader_epoch(self, name: TopicPartition) -> int:
        found = self._state.partition(*name)
        assert found is not None, f"{name} does not exist"
        return found.leader_epoch

    def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Registers the addresses of a single broker, which is this node."""
        event = RegisterBroker(
            node_id=self._node_id,
            epoch=self.end_offset,
            incarnation_id=draw_id(self._randomness),
            endpoints=tuple(endpoints),
            rack=self._config.broker_rack,
            features=FEATURES,
        )
        self._log.commit_now(decide_register_broker(self._state, event))

    def stop(self) -> None:
        """Ends work that takes several turns."""
        self._stopped = True

    # -- writing ----------------------------------------------------------------------------------

    def _append(self, decision: Decision, values: Sequence[bytes] | None = None) -> Taken:
        """Appends and applies a decision, if this node is the controller."""
        leader = self._followers.controller_id
        if decision.records and leader != self._node_id:
            return refuse(ErrorCode.NOT_CONTROLLER, f"The controller is broker {leader}."), ()
        return self._log.append(decision, values)

    def _commit(self, decision: Decision, done: Callable[[ErrorCode], None] | None) -> ErrorCode:
        """Makes a change of brokers or leaders; calls `done` when brokers have carried it out.

        Returns whether the change is in the log.
        """
        taken, effects = self._append(decision)
        self._log.finish(effects, lambda: None if done is None else done(taken.error))
        return taken.error

    def _set_deadline(
        self, answer: Answer[T], timeout_ms: int | None, late: Callable[[], T]
    ) -> None:
        if timeout_ms is not None and len(self._broker_ids) > 1:
            answer.expire_after(self._runtime, timeout_ms, late)

    def _later(self, callback: Callable[[], None]) -> None:
        """Continues in the next turn, unless the controller has stopped by then."""
        self._runtime.call_later(0, lambda: None if self._stopped else callback())

    def on_damage(self) -> None:
        """The metadata log was found damaged while the state is whole: a checkpoint replaces it."""
        self._log.replace_by_checkpoint()

    # -- topics -----------------------------------------------------------------------------------

    def create(
        self,
        topics: Sequence[NewTopic],
        done: Callable[[Outcomes], None],
        *,
        validate_only: bool,
        timeout_ms: int | None = None,
    ) -> bool:
        """Creates or refuses each topic; calls `done` when all of them are durable and open.

        Returns whether everything was decided in this turn of the loop.
        """
        changes = [_Change(topic.name, partial(self._decide_create, topic)) for topic in topics]
        return self._start(changes, done, validate_only, timeout_ms, waits_for_removal=True)

    def auto_create(self, names: Sequence[str], done: Callable[[Outcomes], None]) -> None:
        """Creates topics that a client asked about, with the broker's defaults."""
        self.create([NewTopic(name) for name in names], done, validate_only=False)

    def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        done: Callable[[Outcomes], None],
        *,
        validate_only: bool,
        timeout_ms: int | None = None,
    ) -> bool:
        """Adds partitions to each topic, or refuses them; calls `done` when they are open.

        Returns whether everything was decided in this turn of the loop.
        """
        state = self._state
        changes = [
            _Change(event.name, partial(decide_create_partitions, state, event))
            for event in requests
        ]
        return self._start(changes, done, validate_only, timeout_ms, waits_for_removal=False)

    def _start(
        self,
        changes: Iterable[_Change],
        done: Callable[[Outcomes], None],
        validate_only: bool,
        timeout_ms: int | None,
        *,
        waits_for_removal: bool,
    ) -> bool:
        answer = Answer(done)
        making = _Making(
            deque(changes), answer.give, validate_only, waits_for_removal=waits_for_removal
        )
        self._make(making)
        self._set_deadline(answer, timeout_ms, making.late)
        return not making.left

    def _decide_create(self, wanted: NewTopic) -> Decision:
        return decide_new_topic(self._state, self._config, wanted, draw_id(self._randomness))

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
                self._later(go_on)
                return
            version = self._state.version
            decision = change.decide()
            room -= max(1, len(decision.records))
            if self._is_encoded_in_turns(change.name, decision, making):
                values: list[bytes] = []
                steps = _encoding(decision.records, values)
                write = partial(self._write_encoded, making, decision, version, values)
                run_in_turns(self._runtime, steps, write)
                return
            self._make_one(making, decision)
        self._log.finish(making.effects, lambda: making.done(making.outcomes))

    def _is_encoded_in_turns(self, name: str, decision: Decision, making: _Making) -> bool:
        return (
            len(decision.records) > DECIDED_AT_ONCE
            and not making.validate_only
            and making.attempts < MAX_ATTEMPTS
            and name not in INTERNAL_TOPICS  # Who needs them creates them in this turn.
        )

    def _write_encoded(
        self, making: _Making, decision: Decision, version: int, values: list[bytes]
    ) -> None:
        """Writes a large decision, unless the state has changed since: then it is decided again."""
        if self._stopped:
            return
        if self._state.version == version:
            self._make_one(making, decision, values)
        else:
            making.attempts += 1
        self._later(partial(self._make, making))

    def _make_one(
        self, making: _Making, decision: Decision, values: Sequence[bytes] | None = None
    ) -> None:
        making.attempts = 0
        if not making.validate_only:
            decision, effects = self._append(decision, values)
            making.effects += effects
        making.outcomes.append(_outcome(making.left.popleft().name, decision))

    def delete(
        self,
        names: Sequence[str],
        done: Callable[[Outcomes], None],
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Deletes or refuses each topic; calls `done` when the deletions are durable and done.

        Returns whether everything was decided in this turn of the loop.
        """
        answer = Answer(done)
        outcomes: Outcomes = []
        effects: list[Effect] = []
        deleted: set[str] = set()

        def decided() -> None:
            if not self._stopped:
                self._log.finish(effects, removed)

        def late() -> Outcomes:
            undecided = names[len(outcomes) :]
            expired = (Outcome(each, ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT) for each in undecided)
            return [*_late(outcomes), *expired]

        def removed() -> None:
            self._removing -= deleted
            answer.give(outcomes)
            if deleted:
                self._create_waiting()

        steps = self._deleting(names, outcomes, effects, deleted)
        is_over = run_in_turns(self._runtime, steps, decided)
        self._set_deadline(answer, timeout_ms, late)
        return is_over

    def _deleting(
        self, names: Sequence[str], outcomes: Outcomes, effects: list[Effect], deleted: set[str]
    ) -> Steps:
        for name in names:
            if outcomes:
                yield None
            if self._stopped:
                return
            topic_id = self._state.topic_id(name) or bytes(16)
            decision, removal = self._append(decide_delete_topic(self._state, DeleteTopic(name)))
            if decision.error is ErrorCode.NONE:
                deleted.add(name)
                self._removing.add(name)
                effects += removal
            outcomes.append(_outcome(name, decision, topic_id))

    def _create_waiting(self) -> None:
        """Continues with topics whose names may be free now."""
        waiting, self._after_removal = self._after_removal, []
        for create in waiting:
            create()

    # -- ACLs -------------------------------------------------------------------------------------

    def create_acls(self, sent: Sequence[Sent], done: Callable[[Created], None]) -> None:
        """Adds ACLs in one batch; calls `done` when every broker decides by them."""
        created = decide_create(self._state.acls, sent, partial(draw_id, self._randomness))
        refused = self._change_acls(created.records, lambda: done(created))
        if refused is not None:
            done(Created((), [refused] * len(sent)))

    def delete_acls(self, sent: Sequence[Sent], done: Callable[[Removed], None]) -> None:
        """Removes ACLs in one batch; calls `done` when no broker still decides by them."""
        removed = decide_delete(self._state.acls, sent)
        refused = self._change_acls(removed.records, lambda: done(removed))
        if refused is not None:
            done(Removed((), [refused] * len(sent)))

    def _change_acls(
        self, records: Sequence[MetadataRecord], done: Callable[[], None]
    ) -> Refusal | None:
        """Calls `done` later, unless the records cannot be written."""
        taken, effects = self._append(Decision(tuple(records)))
        if taken.error is not ErrorCode.NONE:
            return Refusal(taken.error, taken.message or "")
        self._log.finish(effects, done)
        return None

    # -- settings and leaders ---------------------------------------------------------------------

    def alter_settings(
        self, changes: Sequence[AlterSettings], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Changes settings that were validated already; each resource has its own error."""
        errors = []
        effects: list[Effect] = []
        for event in changes:
            decision, changed = self._append(decide_alter_settings(self._state, event))
            errors.append(decision.error)
            effects += changed
        self._log.finish(effects, lambda: done(errors))

    def alter_users(
        self, changes: Sequence[UserChange], done: Callable[[list[UserOutcome]], None]
    ) -> None:
        """Changes the credentials of users in one batch; each user has an outcome."""
        decision, outcomes = decide_alter_users(self._state, changes)
        taken, effects = self._append(decision)
        if taken.error is not ErrorCode.NONE:
            failed = Refusal(taken.error, taken.message or "")
            outcomes = [each._replace(refusal=each.refusal or failed) for each in outcomes]
        self._log.finish(effects, lambda: done(outcomes))

    def create_user_now(self, changes: Sequence[Upsertion]) -> bool:
        """During the start: creates one user, unless it exists; returns whether it did."""
        if changes[0].user in self._state.users:
            return False
        decision, outcomes = decide_alter_users(self._state, changes)
        refused = outcomes[0].refusal
        if refused is not None:
            raise ConfigError(f"the user {changes[0].user!r} was refused: {refused.message}")
        self._log.commit_now(decision)
        return True

    def elect_leaders(
        self,
        election: Election,
        partitions: Iterable[TopicPartition] | None,
        done: Callable[[PartitionOutcomes], None],
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Elects the leaders of partitions, or of all that need it (None); each has its outcome.

        Returns whether everything was decided in this turn of the loop.
        """
        only_needed = partitions is None
        return self._change_partitions(
            list(all_partitions(self._state)) if partitions is None else partitions,
            lambda part: decide_elect_leaders(
                self._state, ElectLeaders(election, part, only_needed=only_needed)
            ),
            done,
            timeout_ms,
            expected=partitions or (),
        )

    def alter_reassignments(
        self,
        reassignments: Iterable[Reassignment],
        done: Callable[[PartitionOutcomes], None],
        *,
        allow_factor_change: bool = True,
        timeout_ms: int | None = None,
    ) -> bool:
        """Gives partitions other replicas; each has its outcome.

        Returns whether everything was decided in this turn of the loop.
        """
        return self._change_partitions(
            reassignments,
            lambda part: decide_alter_reassignments(
                self._state, AlterPartitionReassignments(dict(part), allow_factor_change)
            ),
            done,
            timeout_ms,
            expected=(name for name, _ in reassignments),
        )

    def _change_partitions(
        self,
        items: Iterable[T],
        decide: Callable[[list[T]], tuple[Decision, PartitionOutcomes]],
        done: Callable[[PartitionOutcomes], None],
        timeout_ms: int | None,
        *,
        expected: Iterable[TopicPartition],
    ) -> bool:
        """Changes some partitions at a time, each time in one batch of the log.

        `expected` are the partitions that have an outcome whatever is decided.
        """
        answer = Answer(done)
        outcomes: PartitionOutcomes = []
        effects: list[Effect] = []

        def decided() -> None:
            if not self._stopped:
                self._log.finish(effects, lambda: answer.give(outcomes))

        steps = self._changing(iter(items), decide, outcomes, effects)
        is_over = run_in_turns(self._runtime, steps, decided)
        self._set_deadline(answer, timeout_ms, lambda: _late_partitions(outcomes, expected))
        return is_over

    def _changing(
        self,
        left: Iterator[T],
        decide: Callable[[list[T]], tuple[Decision, PartitionOutcomes]],
        outcomes: PartitionOutcomes,
        effects: list[Effect],
    ) -> Steps:
        while not self._stopped and (part := list(islice(left, PARTITIONS_PER_STEP))):
            decision, found = decide(part)
            taken, changed = self._append(decision)
            if taken.error is not ErrorCode.NONE:
                found = _unless_refused(found, taken.error, taken.message)
            outcomes += found
            effects += changed
            yield len(part)

    def rebalance(self, at_most: int | None, done: Callable[[ErrorCode], None]) -> None:
        """Gives every active broker its share of the partitions; moves at most this many."""
        self._commit(decide_rebalance(self._state, at_most), done)

    # -- brokers of a cluster ---------------------------------------------------------------------

    def register_broker(
        self, event: RegisterBroker, done: Callable[[ErrorCode], None] | None = None
    ) -> ErrorCode:
        """Registers a broker that has started; its epoch and the features are the controller's.

        Returns whether the registration is in the log; `done` is called when brokers know it.
        """
        event = event._replace(epoch=self.end_offset, features=FEATURES)
        return self._commit(decide_register_broker(self._state, event), done)

    def fence_brokers(self, node_ids: Iterable[int], done: Callable[[ErrorCode], None]) -> None:
        """Gives the partitions of brokers that are dead to others."""
        self._commit(decide_fence_brokers(self._state, frozenset(node_ids)), done)

    def suspend_broker(self, node_id: int, done: Callable[[ErrorCode], None]) -> ErrorCode:
        """Takes the partitions of a broker whose killed process does not end.

        Returns whether the change is in the log.
        """
        return self._commit(decide_suspend_broker(self._state, node_id), done)

    def unfence_brokers(self, node_ids: Iterable[int], done: Callable[[ErrorCode], None]) -> None:
        """Lets brokers that are ready lead again."""
        self._commit(decide_unfence_brokers(self._state, frozenset(node_ids)), done)

    def controlled_shutdown(self, node_id: int, done: Callable[[ErrorCode], None]) -> None:
        """Gives the partitions of a broker that is about to stop to others."""
        self._commit(decide_controlled_shutdown(self._state, node_id), done)

    # -- producer ids -----------------------------------------------------------------------------

    def reserve_ids_below(self, next_producer_id: int) -> None:
        """During the start: makes sure that producer ids below this one are never assigned."""
        decision = decide_reserve_ids(self._state, self._node_id, next_producer_id)
        if decision.records:
            self._log.commit_now(decision)

    def reserve_block(
        self, done: Callable[[range | None], None], *, node_id: int | None = None
    ) -> None:
        """Reserves a block of producer ids for a broker; None if the log cannot be written.

        A block has no effects on brokers, so nothing but durability is waited for.
        """
        first = self._state.next_producer_id
        owner = self._node_id if node_id is None else node_id
        decision, _ = self._append(decide_allocate_block(self._state, owner))
        if decision.error is not ErrorCode.NONE:
            done(None)
            return
        block = range(first, self._state.next_producer_id)
        self._log.when_durable(lambda: done(block))


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
        first = created[0]
        return Outcome(
            name, ErrorCode.NONE, None, bytes(first.topic_id), len(created), len(first.replicas)
        )
    return Outcome(name, ErrorCode.NONE, None, topic_id)


def _late(outcomes: Iterable[Outcome]) -> Outcomes:
    """The outcomes for a client whose time is over: a refusal stands, all else timed out."""
    return [
        Outcome(each.name, ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT)
        if each.error is ErrorCode.NONE
        else each
        for each in outcomes
    ]


def _late_partitions(
    outcomes: PartitionOutcomes, expected: Iterable[TopicPartition]
) -> PartitionOutcomes:
    """As `_late`; partitions that are not decided yet timed out, too."""
    decided = {each.partition for each in outcomes}
    undecided = [PartitionOutcome(name) for name in expected if name not in decided]
    return _unless_refused([*outcomes, *undecided], ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT)


def _unless_refused(
    outcomes: Iterable[PartitionOutcome], error: ErrorCode, message: str | None
) -> PartitionOutcomes:
    """The outcomes with this error for all partitions that had none."""
    return [
        each._replace(error=error, message=message) if each.error is ErrorCode.NONE else each
        for each in outcomes
    ]
