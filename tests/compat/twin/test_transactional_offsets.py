"""Goal: offsets in transactions are pending, visible, dropped and refused as Apache Kafka's are.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.twin.grouped import (
    commit,
    delete_groups,
    delete_offsets,
    describe_groups,
    heartbeat,
    join,
    leave,
    sync,
)
from tests.compat.twin.transactional import (
    Producer,
    add,
    add_offsets,
    commit_offsets,
    finish,
    look_at_id,
    marker,
    offsets_of,
    start,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)


def look(talk: Talk, moment: str, group: str, topic: str) -> None:
    """The offsets of a group as every kind of reader sees them."""
    for stable in (False, True):
        for version in (7, 8, 9):
            ask = offsets_of(group, topic, 0, 1, 2, stable=stable)
            talk.ask(f"{moment}: stable {stable}, v{version}", ask, version)
        ask = offsets_of(group, None, stable=stable)
        talk.ask(f"{moment}: all, stable {stable}", ask)


@BOTH
def test_offsets_wait_for_the_end_of_their_transaction(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = group = f"pending-{protocol.name}"
        talk.topic(topic, 3)
        producer = start(talk, topic)
        talk.ask("plain", commit(group, {(topic, 0): 10, (topic, 1): 20}, metadata="plain"))
        for commits in (False, True, True):
            if protocol is TV1:
                talk.ask("the group joins", add_offsets(producer, group))
            offsets = {(topic, 1): 21, (topic, 2): 31}
            ask = commit_offsets(producer, group, offsets, metadata="in it")
            talk.ask("offsets", ask, protocol.txn_offset_commit)
            look_at_id(talk, "open", topic)
            look(talk, "open", group, topic)
            ask = commit_offsets(producer, group, {(topic, 1): 22})
            talk.ask("other offsets", ask, protocol.txn_offset_commit)
            look(talk, "changed", group, topic)
            talk.ask("deleting the group meanwhile", delete_groups(group))
            finish(talk, producer, protocol, commit=commits)
            look(talk, "ended", group, topic)
        talk.ask("described", describe_groups(group))
        talk.ask("one offset deleted", delete_offsets(group, {topic: [1, 2]}))
        look(talk, "deleted", group, topic)

    twins.compare(script)


@BOTH
def test_the_later_commit_wins(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = group = f"later-{protocol.name}"
        talk.topic(topic, 3)
        first, second = start(talk, f"{topic}-1"), start(talk, f"{topic}-2")

        def pend(who: Producer, offset: int) -> None:
            if protocol is TV1:
                talk.ask("joins", add_offsets(who, group))
            ask = commit_offsets(who, group, {(topic, 0): offset})
            talk.ask(f"{who.transactional_id} pends {offset}", ask, protocol.txn_offset_commit)

        pend(first, 1)
        talk.ask("a plain commit after it", commit(group, {(topic, 0): 2}))
        finish(talk, first, protocol, commit=True)
        look(talk, "plain after pending", group, topic)
        pend(first, 3)
        pend(second, 4)
        finish(talk, second, protocol, commit=True)
        look(talk, "the second ended", group, topic)
        finish(talk, first, protocol, commit=True)
        look(talk, "both ended", group, topic)
        pend(first, 5)
        talk.ask("deleted meanwhile", delete_offsets(group, {topic: [0]}))
        look(talk, "deleted while pending", group, topic)
        finish(talk, first, protocol, commit=True)
        look(talk, "after the deletion", group, topic)

    twins.compare(script)


def test_invalid_transactional_offsets_are_refused(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = group = "refused-offsets"
        talk.topic(topic)
        producer = start(talk, topic)
        talk.ask("the group joins", add_offsets(producer, group))
        nobody, nameless = Producer("nobody", 5, 0), Producer("", 5, 0)
        one = {(topic, 0): 1}
        for version in range(6):
            v = f"v{version}"
            talk.ask(
                f"{v}: unknown topic", commit_offsets(producer, group, {("none", 0): 1}), version
            )
            mixed = {("none", 0): 1, (topic, 0): 1, (topic, 9): 1}
            talk.ask(f"{v}: mixed", commit_offsets(producer, group, mixed), version)
            talk.ask(f"{v}: nothing", commit_offsets(producer, group, {}), version)
            talk.ask(f"{v}: an empty group", commit_offsets(producer, "", one), version)
            talk.ask(f"{v}: unknown id", commit_offsets(nobody, group, one), version)
            talk.ask(f"{v}: no id", commit_offsets(nameless, group, one), version)
            talk.ask(
                f"{v}: long words",
                commit_offsets(producer, group, one, metadata="x" * 4097),
                version,
            )
            talk.ask(
                f"{v}: the longest words",
                commit_offsets(producer, group, one, metadata="x" * 4096),
                version,
            )
            talk.ask(f"{v}: no words", commit_offsets(producer, group, one, metadata=None), version)
            talk.ask(f"{v}: negative", commit_offsets(producer, group, {(topic, 0): -1}), version)
            other = commit_offsets(producer, "refused-other", one)
            talk.ask(f"{v}: a group that did not join", other, version)
            talk.ask(f"{v}: what is pending", offsets_of(group, topic, stable=True))
        for version in (3, 4, 5):
            v = f"v{version}"
            for member_id, generation, instance_id in (
                ("nobody", -1, None),
                ("", 0, None),
                ("", 5, None),
                ("nobody", 5, None),
                ("", -1, "instance"),
                ("nobody", 1, "instance"),
            ):
                ask = commit_offsets(
                    producer,
                    group,
                    one,
                    member_id=member_id,
                    generation_id=generation,
                    group_instance_id=instance_id,
                )
                talk.ask(f"{v}: {member_id!r} {generation} {instance_id}", ask, version)
        look_at_id(talk, "in the end", topic)

    twins.compare(script)


@BOTH
def test_a_consumer_with_a_stale_generation_cannot_send_offsets(
    twins: Twins, protocol: Protocol
) -> None:
    """KIP-447: the group's generation fences, also while it rebalances."""

    def script(talk: Talk) -> None:
        topic = group = f"lost-place-{protocol.name}"
        talk.topic(topic)
        producer = start(talk, topic)
        if protocol is TV1:
            talk.ask("the group joins", add_offsets(producer, group))
        wanted = talk.ask("a member without an id", join(group))
        member = wanted.member_id
        talk.ask("it joins", join(group, member))

        def send(moment: str) -> None:
            for member_id, generation, instance_id in (
                ("", -1, None),
                (member, 1, None),
                (member, 0, None),
                (member, 2, None),
                (member, -1, None),
                ("nobody", 1, None),
                (member, 1, "instance"),
            ):
                name = "itself" if member_id == member else repr(member_id)
                ask = commit_offsets(
                    producer,
                    group,
                    {(topic, 0): 1},
                    member_id=member_id,
                    generation_id=generation,
                    group_instance_id=instance_id,
                )
                step = f"{moment}: {name} {generation} {instance_id}"
                talk.ask(step, ask, protocol.txn_offset_commit)

        send("joined")
        plain = commit(group, {(topic, 0): 1}, member_id=member, generation=1)
        talk.ask("a plain commit while rebalancing", plain)
        share = talk.ask("it has its share", sync(group, member, 1, {member: b"share"}))
        assert share.error_code == 0, "the script is wrong"
        send("stable")
        other = talk.ask("another comes", join(group), on="second").member_id
        second = talk.send("the other joins", join(group, other), on="second")
        talk.until(heartbeat(group, member, 1), lambda reply: reply.error_code == 27)
        send("rebalancing")
        talk.ask("it leaves", leave(group, (member, None)))
        talk.receive(second)
        send("gone")
        finish(talk, producer, protocol, commit=True)
        talk.ask("in the end", offsets_of(group, topic, stable=True))

    twins.compare(script)


def test_markers_settle_offsets(twins: Twins) -> None:
    """A marker that an administrator sends to __consumer_offsets."""

    def script(talk: Talk) -> None:
        talk.topic("settled")
        # The two names hash to different partitions: 47 and 2.
        groups = {"group": 47, "foobar-consumer-group": 2}
        for number, (group, index) in enumerate(groups.items()):
            producer = start(talk, f"settled-{number}")
            pend = commit_offsets(producer, group, {("settled", 0): 7})
            talk.ask(f"{group} pends", pend)
            wrong = {"__consumer_offsets": [index + 1]}
            talk.ask("the wrong partition", marker(producer, wrong, commit=True))
            talk.ask("pending still", offsets_of(group, "settled", stable=True))
            right = {"__consumer_offsets": [index]}
            old = producer.at(epoch=producer.epoch - 1 if producer.epoch else 0)
            talk.ask("of an old coordinator", marker(old, right, commit=True, coordinator_epoch=-1))
            talk.ask("the right one", marker(producer, right, commit=number == 0))
            talk.ask("settled", offsets_of(group, "settled", stable=True))
            talk.ask("again", marker(producer, right, commit=number == 1))
            talk.ask("settled still", offsets_of(group, "settled", stable=True))
            finish(talk, producer, TV2, commit=True)
            talk.ask("in the end", offsets_of(group, "settled", stable=True))
            look_at_id(talk, "in the end", f"settled-{number}")

    twins.compare(script)


def test_a_transaction_with_both_offsets_and_data(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("both-kinds")
        producer = start(talk, "both-kinds")
        talk.ask("a partition", add(producer, "both-kinds"), 3)
        for group in ("both-a", "both-b"):
            talk.ask(f"{group} joins", add_offsets(producer, group))
            talk.ask(f"{group} pends", commit_offsets(producer, group, {("both-kinds", 0): 3}), 4)
        look_at_id(talk, "open", "both-kinds")
        finish(talk, producer, TV1, commit=True)
        for group in ("both-a", "both-b"):
            talk.ask(f"{group} in the end", offsets_of(group, None, stable=True))
            talk.ask(f"{group} deleted", delete_groups(group))

    twins.compare(script)
