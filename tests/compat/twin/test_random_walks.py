"""Goal: random requests of two producers, in both protocols, are answered as by Apache Kafka.

Method: twin runs (see the package's docstring). A seeded generator chooses every request, with
current, former and invented identities, in the same way for both brokers. A choice depends on a
reply only through the identity in it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from tests.compat.twin.transactional import (
    Producer,
    add,
    add_offsets,
    commit_offsets,
    describe,
    end,
    init,
    look,
    look_at_id,
    marker,
    offsets_of,
    produce,
    start,
)
from tests.transactions.protocol import TV2

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.twin.talk import Talk, Twins

STEPS: Final = 150
PARTITIONS: Final = 2
EPOCHS_OFF: Final = (0, 0, 0, 0, 0, 0, -1, -1, 1, -2)
PRODUCE_VERSIONS: Final = (9, 10, 11, 11, 12, 12)
OFFSETS_VERSIONS: Final = (2, 3, 4, 5)
END_VERSIONS: Final = (1, 2, 4, 4, 5, 5)


class Walk:
    """One script: the random generator, and what is known of the producers."""

    def __init__(self, talk: Talk, seed: int) -> None:
        self._talk = talk
        self._rng = random.Random(seed)
        self._topic = f"walk-{seed}"
        self._step = 0
        talk.topic(self._topic, PARTITIONS)
        self._producers = [start(talk, f"{self._topic}-{name}") for name in "ab"]

    def go(self) -> None:
        """One request, and its visible effects."""
        self._step += 1
        producer = self._rng.choice(self._producers)
        requests: list[Callable[[Producer], None]] = [
            self._init,
            self._add,
            self._add,
            self._ask_for_partition,
            self._write,
            self._write,
            self._write,
            self._write,
            self._add_offsets,
            self._commit_offsets,
            self._end,
            self._end,
            self._end,
            self._mark,
        ]
        self._rng.choice(requests)(producer)
        self._talk.settle(*(each.transactional_id for each in self._producers))
        look_at_id(self._talk, self._name("then"), producer.transactional_id)

    def look(self) -> None:
        """Everything that is visible in the end."""
        for index in range(PARTITIONS):
            look(self._talk, "in the end", self._topic, index=index)
        for stable in (False, True):
            ask = offsets_of(self._topic, self._topic, *range(PARTITIONS), stable=stable)
            self._talk.ask(f"in the end: offsets, {stable}", ask)
        self._talk.ask("in the end: ids", describe(*(p.transactional_id for p in self._producers)))

    def _name(self, word: str) -> str:
        return f"{self._step} {word}"

    def _identity(self, producer: Producer) -> Producer:
        """The producer itself or, now and then, a former or invented identity."""
        return producer.at(epoch=max(0, producer.epoch + self._rng.choice(EPOCHS_OFF)))

    def _bring_up_to_date(self, who: Producer) -> None:
        """Apache Kafka accepts some requests of earlier owners; test_every_state covers those."""
        (known,) = self._talk.quiet(describe(who.transactional_id)).transaction_states
        who.epoch = max(who.epoch, known.producer_epoch)

    def _index(self) -> int:
        return self._rng.randrange(PARTITIONS)

    def _init(self, producer: Producer) -> None:
        name = producer.transactional_id
        if self._rng.random() < 0.5:
            ask, word = init(name), "init"
        else:
            who = self._identity(producer)
            self._bring_up_to_date(who)
            ask = init(name, producer_id=who.producer_id, epoch=who.epoch)
            word = f"init of {name} at {who.epoch}"
        producer.take(self._talk.ask(self._name(word), ask, self._rng.choice((3, 4, 5))))

    def _add(self, producer: Producer) -> None:
        who, version = self._identity(producer), self._rng.choice((0, 1, 2, 3))
        ask = add(who, self._topic, self._rng.choice((0, 0, 0, 1, 1, 1, PARTITIONS)))
        self._talk.ask(self._name(f"add at {who.epoch}, v{version}"), ask, version)

    def _ask_for_partition(self, producer: Producer) -> None:
        """As one broker asks another."""
        who, verify = self._identity(producer), self._rng.random() < 0.7
        ask = add(who, self._topic, self._index(), verify_only=verify)
        self._talk.ask(self._name(f"verify {verify} at {who.epoch}"), ask, 5)

    def _write(self, producer: Producer) -> None:
        who, index = self._identity(producer), self._index()
        # A write ahead of the producer harms it on Apache Kafka; test_partitions covers that.
        who.epoch = min(who.epoch, producer.epoch)
        version = self._rng.choice(PRODUCE_VERSIONS)
        place = (self._topic, index)
        sequence = 0
        if who.epoch == producer.epoch and place in producer.sequences:
            off = self._rng.choice((0, 0, 0, 0, 0, 0, 0, -1, 1))
            sequence = max(0, producer.sequences[place] + off)
        transactional = self._rng.random() < 0.9
        records = who.batch(b"%d" % self._step, sequence=sequence, transactional=transactional)
        ask = produce(self._topic, records, transactional_id=producer.transactional_id, index=index)
        word = f"write {sequence} at {who.epoch} to {index}, v{version}, {transactional}"
        reply = self._talk.ask(self._name(word), ask, version)
        written = reply.responses[0].partition_responses[0]
        if written.error_code == 0 and who.epoch == producer.epoch:
            producer.sequences[place] = sequence + 1

    def _add_offsets(self, producer: Producer) -> None:
        who, version = self._identity(producer), self._rng.choice((0, 1, 2, 3, 4))
        ask = add_offsets(who, self._topic)
        self._talk.ask(self._name(f"add offsets at {who.epoch}, v{version}"), ask, version)

    def _commit_offsets(self, producer: Producer) -> None:
        who, version = self._identity(producer), self._rng.choice(OFFSETS_VERSIONS)
        ask = commit_offsets(who, self._topic, {(self._topic, self._index()): self._step})
        self._talk.ask(self._name(f"offsets at {who.epoch}, v{version}"), ask, version)

    def _end(self, producer: Producer) -> None:
        who, version = self._identity(producer), self._rng.choice(END_VERSIONS)
        if version >= TV2.end_txn:
            self._bring_up_to_date(who)
        commit = self._rng.random() < 0.6
        word = f"{'commit' if commit else 'abort'} at {who.epoch}, v{version}"
        producer.take(self._talk.ask(self._name(word), end(who, commit=commit), version))

    def _mark(self, producer: Producer) -> None:
        """An administrator ends the transaction, at an epoch that keeps the coordinator working."""
        who = producer.at(epoch=max(0, producer.epoch - self._rng.choice((0, 1))))
        version, commit = self._rng.choice((1, 2)), self._rng.random() < 0.5
        ask = marker(who, {self._topic: [self._index()]}, commit=commit)
        self._talk.ask(self._name(f"marker at {who.epoch}, v{version}"), ask, version)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(12))
def test_a_random_walk(twins: Twins, seed: int) -> None:
    def script(talk: Talk) -> None:
        walk = Walk(talk, seed)
        for _ in range(STEPS):
            walk.go()
        walk.look()

    twins.compare(script)
