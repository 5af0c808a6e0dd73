"""Goal: each transactional request in each state is answered as by Apache Kafka.

Method: a fresh transactional id is brought into the state, one request is sent, and the answer is
compared together with what the coordinator and the partition know afterwards. Prepare states do not
last; they are held by a marker of a later coordinator on the partition, behind which the
coordinator's own markers are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.compat.twin.talk import Ask
from tests.compat.twin.transactional import (
    Producer,
    add,
    add_offsets,
    commit_offsets,
    describe,
    end,
    init,
    marker,
    produce,
    producers,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.compat.twin.talk import Talk, Twins

BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)
ADDED, UNADDED = 0, 1
STRANGER = 1_000_000
"""Far from any producer id in use."""


class Probe(NamedTuple):
    """One request of a producer whose transaction is in some state."""

    name: str
    version: int
    ask: Callable[[Producer, str], Ask]


# -- the requests
# ---------------------------------------------------------------------------------------------


def identities(producer: Producer) -> dict[str, Producer]:
    """The producer itself, and identities that could be mistaken for it."""
    return {
        "itself": producer,
        "an epoch before": producer.at(epoch=producer.epoch - 1),
        "an epoch ahead": producer.at(epoch=producer.epoch + 1),
        "a stranger": producer.at(producer_id=producer.producer_id + STRANGER),
    }


WHO = list(identities(Producer("anybody")))


def by(who: str, request: Callable[[Producer, str], Ask]) -> Callable[[Producer, str], Ask]:
    return lambda producer, topic: request(identities(producer)[who], topic)


def init_probes() -> Iterator[Probe]:
    yield Probe("init", 4, lambda p, _: init(p.transactional_id))
    yield Probe("init, v0", 0, lambda p, _: init(p.transactional_id))
    for who in WHO:
        for version in (3, 5):
            yield Probe(
                f"init as {who}, v{version}",
                version,
                by(
                    who,
                    lambda p, _: init(p.transactional_id, producer_id=p.producer_id, epoch=p.epoch),
                ),
            )


def add_probes() -> Iterator[Probe]:
    for who in WHO:
        for version in (0, 1, 2, 3, 4, 5):
            ask = by(who, lambda p, topic: add(p, topic, ADDED))
            yield Probe(f"add as {who}, v{version}", version, ask)
        for version in (4, 5):
            for index, word in ((ADDED, "added"), (UNADDED, "not added")):

                def verify(p: Producer, topic: str, index: int = index) -> Ask:
                    return add(p, topic, index, verify_only=True)

                name = f"verify as {who} what was {word}, v{version}"
                yield Probe(name, version, by(who, verify))
    yield Probe("add another", 3, lambda p, topic: add(p, topic, UNADDED))


def offset_probes() -> Iterator[Probe]:
    for who in WHO:
        for version in (0, 1, 2, 3, 4):
            ask = by(who, lambda p, topic: add_offsets(p, f"group-{topic}"))
            yield Probe(f"add offsets as {who}, v{version}", version, ask)
        for version in (0, 1, 2, 3, 4, 5):
            ask = by(who, lambda p, topic: commit_offsets(p, f"group-{topic}", {(topic, 0): 5}))
            yield Probe(f"commit offsets as {who}, v{version}", version, ask)


def end_probes() -> Iterator[Probe]:
    for who in WHO:
        for version in (0, 1, 2, 4, 5):
            for commit in (True, False):

                def ask(p: Producer, _: str, commit: bool = commit) -> Ask:
                    return end(p, commit=commit)

                name = f"{'commit' if commit else 'abort'} as {who}, v{version}"
                yield Probe(name, version, by(who, ask))


def produce_probes() -> Iterator[Probe]:
    for who in WHO:
        for version in (3, 10, 11, 12):
            for index, word in ((ADDED, "added"), (UNADDED, "not added")):
                for sequence in (0, 1, 2):

                    def ask(
                        p: Producer, topic: str, index: int = index, sequence: int = sequence
                    ) -> Ask:
                        records = p.batch(b"probe", sequence=sequence)
                        return produce(
                            topic, records, transactional_id=p.transactional_id, index=index
                        )

                    name = f"write {sequence} as {who} where it was {word}, v{version}"
                    yield Probe(name, version, by(who, ask))


PROBES = {
    "init": list(init_probes()),
    "add": list(add_probes()),
    "offsets": list(offset_probes()),
    "end": list(end_probes()),
    "produce": list(produce_probes()),
}


# -- the states
# -----------------------------------------------------------------------------------------------


def started(talk: Talk, name: str) -> Producer:
    """A producer at epoch 1, so that there is an epoch before its own."""
    producer = Producer(name)
    talk.until(init(name), lambda reply: reply.error_code == 0)
    producer.take(talk.until(init(name), lambda reply: reply.error_code == 0))
    return producer


def begun(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    producer = started(talk, name)
    if protocol.adds_explicitly:
        talk.quiet(add(producer, topic, ADDED), 3)
    records = producer.batch(b"one", b"two", sequence=0)
    ask = produce(topic, records, transactional_id=name, index=ADDED)
    reply = talk.quiet(ask, protocol.produce)
    assert reply.responses[0].partition_responses[0].error_code == 0, reply
    return producer


def unknown(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    """A producer whose id was forgotten, or never known."""
    other = started(talk, f"{name}-other")
    return Producer(name, other.producer_id, other.epoch)


def empty(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    return started(talk, name)


def ongoing(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    return begun(talk, name, topic, protocol)


def ended(talk: Talk, name: str, topic: str, protocol: Protocol, *, commit: bool) -> Producer:
    producer = begun(talk, name, topic, protocol)
    reply = talk.quiet(end(producer, commit=commit), protocol.end_txn)
    assert reply.error_code == 0, reply
    talk.settle(name)
    producer.take(reply)
    return producer


def complete_commit(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    return ended(talk, name, topic, protocol, commit=True)


def complete_abort(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    return ended(talk, name, topic, protocol, commit=False)


def fenced(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    """The old one of two producers; its open transaction was aborted by the new one."""
    old = begun(talk, name, topic, protocol)
    talk.until(init(name), lambda reply: reply.error_code == 0)
    return old


def overtaken_and_busy(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    """The old one of two producers, while the new one has a transaction."""
    old = begun(talk, name, topic, protocol)
    new = Producer(name)
    new.take(talk.until(init(name), lambda reply: reply.error_code == 0))
    talk.quiet(add(new, topic, ADDED), 3)
    return old


STATES = [unknown, empty, ongoing, complete_commit, complete_abort, fenced, overtaken_and_busy]


EARLIER_END = "EndTxn v5 with the epoch before that of a TV1 owner"
EARLIER_INIT = "InitProducerId with an earlier epoch while a transaction is open"


def difference(state: str, protocol: Protocol, probe: Probe) -> str | None:
    """The row for requests of an earlier owner that Kafka accepts or answers with the new epoch."""
    if protocol is TV1 and state in ("complete_commit", "complete_abort"):
        is_end = not probe.name.startswith("init")
        return EARLIER_END if is_end and probe.name.endswith("as an epoch before, v5") else None
    earlier = {"ongoing": ["an epoch before"], "overtaken_and_busy": WHO[:3]}.get(state, [])
    if probe.name.startswith(tuple(f"init as {who}" for who in earlier)):
        return EARLIER_INIT
    return None


def after(
    talk: Talk, name: str, producer: Producer, topic: str, *, differs: str | None = None
) -> None:
    """The state after the reply; it differs where the request had an effect."""
    transactional_id = producer.transactional_id
    talk.settle(transactional_id)
    talk.ask(f"{name}: id", describe(transactional_id), differs=differs)
    for index in (ADDED, UNADDED):
        talk.ask(
            f"{name}: partition {index}",
            producers(topic, index),
            differs=differs if index == ADDED else None,
            see=lambda reply: [
                state
                for state in reply.topics[0].partitions[0].active_producers
                if state.producer_id == producer.producer_id
            ],
        )


@BOTH
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("kind", PROBES)
def test_every_request_in_every_state(
    twins: Twins,
    kind: str,
    state: Callable[[Talk, str, str, Protocol], Producer],
    protocol: Protocol,
) -> None:
    def script(talk: Talk) -> None:
        topic = f"{state.__name__}-{kind}-{protocol.name}"
        talk.topic(topic, 2)
        for number, probe in enumerate(PROBES[kind]):
            producer = state(talk, f"{topic}-{number}", topic, protocol)
            talk.eyes.producer(producer.producer_id)
            row = difference(state.__name__, protocol, probe) if kind in ("init", "end") else None
            talk.ask(probe.name, probe.ask(producer, topic), probe.version, differs=row)
            effect = row if row == EARLIER_INIT else None
            after(talk, probe.name, producer, topic, differs=effect)
            if effect:  # One of the two has written a marker: offsets are no longer the same.
                topic = f"{state.__name__}-{kind}-{protocol.name}-{number}"
                talk.topic(topic, 2)

    twins.compare(script)


# -- Prepare
# --------------------------------------------------------------------------------------------------


def held(talk: Talk, name: str, topic: str, protocol: Protocol) -> Producer:
    """A producer whose transaction cannot end: the partition has seen a later coordinator."""
    producer = begun(talk, name, topic, protocol)
    later = marker(producer, {topic: [ADDED]}, commit=True, coordinator_epoch=100)
    (written,) = talk.quiet(later).markers
    assert written.topics[0].partitions[0].error_code == 0, written
    return producer


PREPARED_PROBES = [
    probe
    for kind in PROBES.values()
    for probe in kind
    # A write of TV2 waits a moment for the end of the transaction: one of each is enough.
    if not probe.name.startswith(("write 1", "write 2"))
]
HELD = [(TV1, True), (TV1, False), (TV2, True), (TV2, False)]


def test_every_request_between_prepare_and_complete(twins: Twins) -> None:
    """All four together: our EndTxn waits some seconds for its markers, then answers as Kafka's."""

    def script(talk: Talk) -> None:
        talk.topic("prepared", 2)
        waiting = []
        for protocol, commit in HELD:
            name = f"prepared-{protocol.name}-{'commit' if commit else 'abort'}"
            producer = held(talk, name, "prepared", protocol)
            talk.eyes.producer(producer.producer_id)
            talk.ask(f"{name}: open", describe(name))
            ending = talk.send(name, end(producer, commit=commit), protocol.end_txn, on=name)
            waiting.append((producer, ending))
        for producer, ending in waiting:
            reply = talk.receive(ending)
            now = Producer(producer.transactional_id, producer.producer_id, producer.epoch)
            now.take(reply)
            name = producer.transactional_id
            talk.ask(f"{name}: prepared", describe(name))
            for probe in PREPARED_PROBES:
                talk.ask(f"{name}: {probe.name}", probe.ask(now, "prepared"), probe.version)
            talk.ask(f"{name}: afterwards", describe(name))

    twins.compare(script)
