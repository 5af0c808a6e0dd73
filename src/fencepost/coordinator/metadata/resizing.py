"""Decides what changes when a directory is served by other brokers than at its last start.

The brokers of a start are those that the controller is told to run. There is one copy of the data,
so giving a partition other replicas copies nothing. When brokers are new or gone, all partitions
are placed again, as in `placement.py`: each topic begins at the broker that leads the fewest, and
each partition is led by the first of its replicas. A partition keeps its replication factor, as far
as there are that many brokers; those of the internal topics are given by the settings.

If the brokers are the same as before, nothing is placed again, and only brokers that were dead or
stopping at the last stop are active again.

All brokers of a start are registered as active before they run, so that partitions need not lose
their leaders and get them back at every start. Each broker registers again, with its address, when
it serves clients; one that does not start is fenced.

One batch has the whole decision. A crash leaves the brokers and partitions of before, or the new
ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fencepost.coordinator.metadata.events import Decision, Resize
from fencepost.coordinator.metadata.leadership import Changes, follow_brokers
from fencepost.coordinator.metadata.placement import stripe
from fencepost.coordinator.metadata.registry import registration_record
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)


def decide_resize(state: MetadataState, event: Resize) -> Decision:
    """Make these brokers, and no others, active replicas of all partitions."""
    assert event.broker_ids, "a cluster has a broker"
    wanted = frozenset(event.broker_ids)
    if wanted == state.brokers.keys() == state.active_nodes():
        return Decision()
    gone = state.brokers.keys() - wanted
    if gone or wanted - state.brokers.keys():
        changes = _place_again(state, wanted, event.internal_factors)
    else:
        changes = follow_brokers(state, wanted)
    removals: list[MetadataRecord] = [
        UnregisterBrokerRecord(broker_id=node, broker_epoch=state.brokers[node].epoch)
        for node in sorted(gone)
    ]
    return Decision((*_registrations(state, event), *changes.records, *removals))


def _registrations(state: MetadataState, event: Resize) -> list[RegisterBrokerRecord]:
    """Registers the brokers that are not active; known ones keep their addresses for now."""
    inactive = sorted(frozenset(event.broker_ids) - state.active_nodes())
    records = []
    for number, node in enumerate(inactive):
        known = state.brokers.get(node)
        records.append(
            registration_record(
                node,
                # As in Kafka, the offset of the record.
                epoch=event.epoch + number,
                incarnation_id=event.incarnation_id,
                endpoints=() if known is None else known.endpoints,
                rack=None if known is None else known.rack,
                fenced=False,
            )
        )
    return records


def _place_again(
    state: MetadataState, nodes: frozenset[int], internal_factors: Mapping[str, int]
) -> Changes:
    changes = Changes()
    leads: Counter[int] = Counter()
    for topic in state.topics.values():
        order = sorted(nodes, key=lambda node: (leads[node], node))
        wanted = internal_factors.get(topic.name)
        for index, partition in enumerate(topic.partitions):
            factor = wanted or len(partition.replicas)
            replicas = stripe(order, (), index)[:factor]
            leads[replicas[0]] += 1
            changes.add(topic, index, replicas[0], isr=replicas, replicas=replicas)
    return changes
