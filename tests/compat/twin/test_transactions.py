"""Goal: every transactional API behaves as on Apache Kafka in every state and protocol.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.twin.transactional import (
    Producer,
    add,
    add_all,
    add_offsets,
    commit_offsets,
    describe,
    end,
    finish,
    init,
    look,
    look_at_id,
    produce,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import transaction_of

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)


@BOTH
def test_commits_and_aborts_in_turn(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"life-{protocol.name}"
        talk.topic(topic, 2)
        producer = start(talk, topic)
        look_at_id(talk, "started", topic)
        for round_number, commit in enumerate((True, False, False, True)):
            for index in (0, 1):
                write(talk, producer, protocol, topic, b"a%d" % round_number, b"b", index=index)
            write(talk, producer, protocol, topic, b"c")
            look_at_id(talk, f"open {round_number}", topic)
            look(talk, f"open {round_number}", topic)
            finish(talk, producer, protocol, commit=commit)
            look_at_id(talk, f"ended {round_number}", topic)
            for index in (0, 1):
                look(talk, f"ended {round_number}", topic, index=index)

    twins.compare(script)


def test_init_producer_id_with_every_kind_of_argument(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in range(6):
            talk.ask(f"without an id, v{version}", init(None), version)
        talk.ask("an empty id", init(""))
        talk.ask("a long id", init("x" * 10_000))
        for timeout_ms in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
            talk.ask(f"a timeout of {timeout_ms}", init("init-timeout", timeout_ms=timeout_ms))
        talk.ask("a timeout of 0 without an id", init(None, timeout_ms=0))
        talk.ask("half an identity", init("init-half", producer_id=5))
        talk.ask("the other half", init("init-half", epoch=5))
        talk.ask("half of one without an id", init(None, producer_id=5))
        talk.ask("an identity without an id", init(None, producer_id=5, epoch=0))
        talk.ask("an unknown identity", init("init-lost", producer_id=123456, epoch=7))
        for version in range(6):
            talk.ask(f"a new id, v{version}", init(f"init-v{version}"), version)
            talk.ask(f"the same id again, v{version}", init(f"init-v{version}"), version)

    twins.compare(script)


@pytest.mark.parametrize("outcome", ["never used", "committed", "aborted"])
def test_a_producer_returns_with_its_epoch(twins: Twins, outcome: str) -> None:
    """KIP-360, from each idle state."""

    def script(talk: Talk) -> None:
        name = f"again-{outcome.replace(' ', '-')}"
        talk.topic(name)
        producer = start(talk, name)
        if outcome != "never used":
            write(talk, producer, TV1, name, b"x")
            finish(talk, producer, TV1, commit=outcome == "committed")
        pid, epoch = producer.producer_id, producer.epoch
        for version in (3, 4, 5):
            talk.ask(
                f"an older epoch, v{version}",
                init(name, producer_id=pid, epoch=epoch - 1 if epoch else 9),
                version,
            )
            talk.ask(
                f"a later epoch, v{version}", init(name, producer_id=pid, epoch=epoch + 1), version
            )
            talk.ask(
                f"another's id, v{version}",
                init(name, producer_id=pid + 1000, epoch=epoch),
                version,
            )
        talk.ask("its own epoch", init(name, producer_id=pid, epoch=epoch))
        talk.ask("the same again", init(name, producer_id=pid, epoch=epoch))
        look_at_id(talk, "came back", name)
        talk.ask("the new epoch", init(name, producer_id=pid, epoch=epoch + 1))
        talk.ask("the first again", init(name, producer_id=pid, epoch=epoch))
        talk.ask("a producer without an identity", init(name))
        talk.ask("the epoch before that", init(name, producer_id=pid, epoch=epoch + 2))
        look_at_id(talk, "at the end", name)

    twins.compare(script)


# -- time
# -------------------------------------------------------------------------------------------------


@BOTH
def test_a_transaction_past_its_timeout_is_aborted(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"timeout-{protocol.name}"
        talk.topic(topic, 2)
        producer = start(talk, topic, timeout_ms=300)
        for _ in range(2):
            write(talk, producer, protocol, topic, b"late")
            look_at_id(talk, "open", topic)
            talk.until(
                describe(topic), lambda r: r.transaction_states[0].transaction_state != "Ongoing"
            )
            talk.settle(topic)
            look_at_id(talk, "timed out", topic)
            look(talk, "timed out", topic)
            for version in (9, 11, 12):
                for index in (0, 1):
                    late = producer.batch(b"later", sequence=1)
                    ask = produce(topic, late, transactional_id=topic, index=index)
                    talk.ask(f"a late write to {index}, v{version}", ask, version)
            talk.ask("a late add", add(producer, topic, 1), 3)
            talk.ask("a late add of offsets", add_offsets(producer, topic))
            offsets = commit_offsets(producer, topic, {(topic, 0): 1})
            talk.ask("late offsets", offsets, protocol.txn_offset_commit)
            talk.ask("a late commit, v1", end(producer, commit=True), 1)
            talk.ask("a late commit", end(producer, commit=True), protocol.end_txn)
            talk.ask("a late abort, TV1", end(producer, commit=False), TV1.end_txn)
            identity = {"producer_id": producer.producer_id, "epoch": producer.epoch}
            if protocol is TV1:
                talk.ask("it comes back", init(topic, timeout_ms=300, **identity))
                producer = start(talk, topic, timeout_ms=300)
            else:
                reply = talk.ask("it aborts late", end(producer, commit=False), TV2.end_txn)
                producer.take(reply)
            look_at_id(talk, "recovered", topic)

    twins.compare(script)


# -- fencing
# --------------------------------------------------------------------------------------------------


@BOTH
def test_the_second_of_two_producers_fences_the_first(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"fence-{protocol.name}"
        talk.topic(topic)
        first = start(talk, topic)
        write(talk, first, protocol, topic, b"first")
        talk.ask("the second comes", init(topic))
        talk.settle(topic)
        look_at_id(talk, "aborted", topic)
        look(talk, "aborted", topic)
        second = start(talk, topic)
        write(talk, second, protocol, topic, b"second")
        late = first.batch(b"late", sequence=1)
        talk.ask("a late write", produce(topic, late, transactional_id=topic), protocol.produce)
        talk.ask("a late commit", end(first, commit=True), protocol.end_txn)
        finish(talk, second, protocol, commit=True)
        look(talk, "in the end", topic)

    twins.compare(script)


def test_an_old_epoch_of_the_same_producer_aborts_an_open_transaction_only_on_kafka(
    twins: Twins,
) -> None:
    """In Ongoing Kafka does not compare the epoch of InitProducerId, only the producer id."""
    row = "InitProducerId with an earlier epoch while a transaction is open"

    def script(talk: Talk) -> None:
        talk.topic("quirk")
        producer = start(talk, "quirk")
        second = start(talk, "quirk")
        write(talk, second, TV1, "quirk", b"x")
        identity = {"producer_id": producer.producer_id, "epoch": producer.epoch}
        talk.ask("the old one", init("quirk", **identity), differs=row)
        talk.settle("quirk")
        talk.ask("then", describe("quirk"), differs=row)
        talk.ask("the old one again", init("quirk", **identity))
        talk.ask("the owner continues", end(second, commit=True), TV1.end_txn, differs=row)


def test_an_earlier_tv2_owner_gets_the_epoch_of_a_tv1_owner_only_on_kafka(twins: Twins) -> None:
    """Kafka mistakes its EndTxn for a retry, because the epoch is the previous one."""
    row = "EndTxn v5 with the epoch before that of a TV1 owner"

    def script(talk: Talk) -> None:
        talk.topic("inherited")
        earlier = start(talk, "inherited")
        owner = start(talk, "inherited")
        write(talk, owner, TV1, "inherited", b"of the owner")
        talk.ask("the owner commits", end(owner, commit=True), TV1.end_txn)
        talk.settle("inherited")
        talk.ask("the earlier one commits", end(earlier, commit=True), TV2.end_txn, differs=row)
        talk.ask("then", describe("inherited"))

    twins.compare(script)


# -- adding
# -------------------------------------------------------------------------------------------------


def test_add_partitions_to_txn_with_every_kind_of_argument(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("adding", 3)
        talk.topic("adding-b")
        producer = start(talk, "adding")
        nobody, nameless = Producer("adding-nobody", 5, 0), Producer("", 5, 0)
        for version in range(6):
            talk.ask(f"an unknown id, v{version}", add(nobody, "adding"), version)
            talk.ask(f"an empty id, v{version}", add(nameless, "adding"), version)
            talk.ask(f"an unknown topic, v{version}", add(producer, "adding-none"), version)
            talk.ask(f"one unknown partition, v{version}", add(producer, "adding", 0, 9), version)
            talk.ask(f"a negative partition, v{version}", add(producer, "adding", -1), version)
            talk.ask(f"an illegal name, v{version}", add(producer, "a b"), version)
            talk.ask(f"an empty name, v{version}", add(producer, ""), version)
            if version < 4:
                # From v4 on the request belongs to brokers, which may.
                for internal in ("__consumer_offsets", "__transaction_state"):
                    talk.ask(f"{internal}, v{version}", add(producer, internal), version)
            talk.ask(f"nothing, v{version}", add_all(transaction_of(producer, {})), version)
            look_at_id(talk, f"after v{version}", "adding")
        mixed = transaction_of(producer, {"adding": [1], "adding-none": [0], "adding-b": [0]})
        talk.ask("a known and an unknown topic", add_all(mixed), 3)
        twice = transaction_of(producer, {"adding": [1, 1], "adding-b": [0]})
        talk.ask("one twice", add_all(twice), 3)
        look_at_id(talk, "added", "adding")
        talk.ask("again", add(producer, "adding", 1), 3)
        talk.ask("more", add(producer, "adding", 2), 0)
        look_at_id(talk, "grown", "adding")
        finish(talk, producer, TV1, commit=True)
        look_at_id(talk, "committed", "adding")

    twins.compare(script)


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_partitions_of_several_transactions(
    twins: Twins, version: int
) -> None:
    def script(talk: Talk) -> None:
        topic = f"batch-{version}"
        talk.topic(topic, 2)
        first, second = (start(talk, f"{topic}-{number}") for number in (1, 2))
        one, both = {topic: [0]}, {topic: [0, 1]}
        nobody = Producer("batch-nobody", 5, 0)
        talk.ask(
            "verified before it began",
            add_all(transaction_of(first, both, verify_only=True)),
            version,
        )
        talk.ask(
            "added, verified and refused",
            add_all(
                transaction_of(first, one),
                transaction_of(second, one, verify_only=True),
                transaction_of(nobody, one),
                transaction_of(first.at(epoch=7), one),
            ),
            version,
        )
        for name in (first, second):
            look_at_id(talk, "then", name.transactional_id)
        talk.ask("one of two", add_all(transaction_of(first, both, verify_only=True)), version)
        unknown = {topic: [0], "batch-none": [0]}
        talk.ask("an unknown topic", add_all(transaction_of(first, unknown)), version)
        talk.ask(
            "an unknown topic, verified",
            add_all(transaction_of(first, unknown, verify_only=True)),
            version,
        )
        talk.ask("an empty id", add_all(transaction_of(Producer("", 5, 0), one)), version)
        talk.ask("no partition", add_all(transaction_of(first, {})), version)
        talk.ask(
            "no partition, verified", add_all(transaction_of(first, {}, verify_only=True)), version
        )
        finish(talk, first, TV2, commit=False)
        look_at_id(talk, "in the end", first.transactional_id)
        talk.ask_in_vain("none", add_all(), version, differs="incomplete requests")

    twins.compare(script)


def test_add_offsets_to_txn_with_every_kind_of_argument(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        producer = start(talk, "adding-groups")
        for version in range(5):
            talk.ask(
                f"an unknown id, v{version}", add_offsets(Producer("nobody", 5, 0), "g"), version
            )
            talk.ask(f"an empty id, v{version}", add_offsets(Producer("", 5, 0), "g"), version)
            talk.ask(f"an empty group, v{version}", add_offsets(producer, ""), version)
            look_at_id(talk, f"after v{version}", "adding-groups")
        for group in ("group", "foobar-consumer-group", "group"):
            talk.ask(f"the group {group}", add_offsets(producer, group))
        look_at_id(talk, "open", "adding-groups")
        finish(talk, producer, TV1, commit=True)

    twins.compare(script)


def test_end_txn_with_every_kind_of_argument(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in range(6):
            for who in (Producer("nobody", 5, 0), Producer("", 5, 0), Producer("nobody", -1, -1)):
                for commit in (True, False):
                    name = f"{who.transactional_id or 'empty'} {who.epoch} {commit}, v{version}"
                    talk.ask(name, end(who, commit=commit), version)

    twins.compare(script)


@BOTH
def test_one_producer_mixes_both_protocols(twins: Twins, protocol: Protocol) -> None:
    """A client may change its protocol between two transactions, and within one."""

    def script(talk: Talk) -> None:
        topic = f"mixed-{protocol.name}"
        other = TV2 if protocol is TV1 else TV1
        talk.topic(topic, 2)
        producer = start(talk, topic)
        for begin, close in ((protocol, other), (other, protocol), (protocol, protocol)):
            for commit in (True, False):
                write(talk, producer, begin, topic, b"x")
                write(talk, producer, close, topic, b"y", index=1)
                look_at_id(talk, f"{begin.name}, {close.name}", topic)
                finish(talk, producer, close, commit=commit)
                look_at_id(talk, f"{begin.name}, {close.name}, ended", topic)
                look(talk, f"{begin.name}, {close.name}, ended", topic)

    twins.compare(script)


@BOTH
def test_transactions_without_a_write(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"hollow-{protocol.name}"
        talk.topic(topic)
        producer = start(talk, topic)
        for commit in (True, False):
            talk.ask("added", add(producer, topic), 3)
            finish(talk, producer, protocol, commit=commit)
            look_at_id(talk, f"committed {commit}", topic)
            look(talk, f"committed {commit}", topic)
        talk.ask("an end of nothing", end(producer, commit=False), protocol.end_txn)
        talk.settle(topic)
        look_at_id(talk, "in the end", topic)

    twins.compare(script)
