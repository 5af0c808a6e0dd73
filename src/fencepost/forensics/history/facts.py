"""Looks at everything that a cluster tells about one transactional id.

From its log the history, from its coordinator the state of today, and from the partitions of its
transactions the markers. Each of them may be refused to this user or be gone; the rest is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.configs import broker_settings
from fencepost.client.failures import Refused
from fencepost.client.transactions import coordinator_of
from fencepost.forensics.history.markers import PartitionFacts, Window, find_markers
from fencepost.forensics.history.state_changes import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    History,
    StateChange,
)
from fencepost.forensics.history.transaction_log import NoTransactionLogError, read_history
from fencepost.forensics.logs.partition_reading import Budget, Progress, no_progress

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.client.blocking import Cluster


EXPIRATION: Final = "transactional.id.expiration.ms"
MOST_CHANGES: Final = 20
"""About five transactions: what a question about one producer needs."""


@dataclass(slots=True)
class IdFacts:
    """What is known about an id, and why the rest is not."""

    transactional_id: str
    history: History | None
    view: TransactionView | None
    """What the coordinator says now; None if it does not know the id, or may not tell."""
    problems: list[str]
    partitions: list[PartitionFacts] = field(default_factory=list)
    is_hidden: bool = False
    """Whether the coordinator refused to tell this user about the id."""
    expiration_ms: int | None = None
    """How long the coordinator keeps an unused id, where it tells; read for unknown ids only."""

    @property
    def names_administrators(self) -> bool:
        """Whether the records name who ended a transaction in its producer's name: fencepost's."""
        return (
            self.history is not None
            and self.view is not None
            and self.view.client_connection is not None
        )

    @property
    def is_empty(self) -> bool:
        """Whether the cluster told nothing: the id is unknown, or hidden from this user."""
        has_records = self.history is not None and bool(self.history.changes)
        was_seen = any(each.transactions or each.markers for each in self.partitions)
        return self.view is None and not has_records and not was_seen


def look_at_id(
    cluster: Cluster, transactional_id: str, budget: Budget, progress: Progress = no_progress
) -> IdFacts:
    """Reads the history and asks the coordinator."""
    problems: list[str] = []
    view, history, is_hidden = None, None, False
    try:
        view = cluster.describe_transactions([transactional_id]).get(transactional_id)
    except Refused as problem:
        problems.append(str(problem))
        is_hidden = True
    try:
        history = read_history(cluster, transactional_id, budget, progress)
    except NoTransactionLogError as problem:
        problems.append(str(problem))
    if history is not None and not history.is_whole:
        problems.append(
            f"{history.partition} was read to offset {history.reached} of {history.log_end} only "
            "(--max-read): newer records are not shown."
        )
    facts = IdFacts(transactional_id, history, view, problems, is_hidden=is_hidden)
    if view is None and not is_hidden:
        facts.expiration_ms = _expiration_ms(cluster, transactional_id)
    return facts


def _expiration_ms(cluster: Cluster, transactional_id: str) -> int | None:
    coordinator = cluster.find_coordinator(coordinator_of(transactional_id))
    settings = cluster.run(broker_settings(cluster.core, {coordinator}, [EXPIRATION]))
    value = settings.get(coordinator, {}).get(EXPIRATION)
    return None if value is None else int(value)


def changes_around(
    changes: Sequence[StateChange], identity: tuple[int, int] | None
) -> Sequence[StateChange]:
    """The records to look at for a producer: its own and those next to them, or the last ones."""
    own = [number for number, each in enumerate(changes) if each.identity == identity]
    if not own:
        return changes[-MOST_CHANGES:]
    return changes[max(0, own[-1] - MOST_CHANGES) : own[-1] + 3]


def look_at_partitions(
    cluster: Cluster,
    facts: IdFacts,
    changes: Sequence[StateChange],
    budget: Budget,
    progress: Progress = no_progress,
    *,
    named: Collection[TopicPartition] = (),
    producer_id: int | None = None,
    thorough: bool = False,
) -> None:
    """Reads the markers of these records, and of a producer in named partitions.

    `thorough` also reads what lies between the beginning and the end of each transaction, where an
    administrator's marker may be.
    """
    producer_ids = set() if producer_id is None else {producer_id}
    producer_ids |= {each.metadata.producer_id for each in changes if each.metadata is not None}
    wanted: dict[TopicPartition, list[Window]] = {each: [Window(0, None)] for each in named}
    if facts.view is not None:
        producer_ids.add(facts.view.producer_id)
        for partition in facts.view.partitions:
            wanted.setdefault(partition, [Window(facts.view.start_ms, None)])
    for number, change in enumerate(changes, 1):
        for partition, window in _windows(change, number == len(changes), thorough):
            wanted.setdefault(partition, []).append(window)
    facts.partitions = find_markers(cluster, producer_ids, wanted, budget, progress)


def _windows(
    change: StateChange, is_last: bool, thorough: bool
) -> Iterator[tuple[TopicPartition, Window]]:
    """Where the marker of an end is, or, while a transaction is open, all since it began."""
    metadata = change.metadata
    if metadata is None:
        return
    if metadata.state in (PREPARE_COMMIT, PREPARE_ABORT):
        from_ms = metadata.start_ms if thorough else change.at_ms
        window = Window(from_ms, change.at_ms)
    elif metadata.state == ONGOING and is_last:
        window = Window(metadata.start_ms, None)
    else:
        return
    for topic, indexes in metadata.partitions.items():
        for index in indexes:
            yield TopicPartition(topic, index), window
