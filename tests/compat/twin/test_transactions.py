"""Goal: every transactional API answers in every state of a transaction as Apache Kafka does, in both protocols.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.twin.transactional import (
    TV1,
    TV2,
    Producer,
    Protocol,
    add,
    add_offsets,
    commit_offsets,
    end,
    finish,
    init,
    look,
    look_at_id,
    offsets_of,
    start,
    write,
)

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)


@BOTH
def test_a_life_of_commits_and_aborts(twins: Twins, protocol: Protocol) -> None:
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


def test_a_producer_id_is_asked_for_in_every_way(twins: Twins) -> None:
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
        talk.ask("an identity that nobody knows", init("init-lost", producer_id=123456, epoch=7))
        for version in range(6):
            talk.ask(f"a new id, v{version}", init(f"init-v{version}"), version)
            talk.ask(f"the same id again, v{version}", init(f"init-v{version}"), version)

    twins.compare(script)


@pytest.mark.parametrize("outcome", ["never used", "committed", "aborted"])
def test_a_producer_comes_back_with_its_epoch(twins: Twins, outcome: str) -> None:
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
        talk.ask("the same once more", init(name, producer_id=pid, epoch=epoch))
        look_at_id(talk, "came back", name)
        talk.ask("the new epoch", init(name, producer_id=pid, epoch=epoch + 1))
        talk.ask("the first once more", init(name, producer_id=pid, epoch=epoch))
        talk.ask("somebody without an identity", init(name))
        talk.ask("the epoch before that", init(name, producer_id=pid, epoch=epoch + 2))
        look_at_id(talk, "at the end", name)

    twins.compare(script)
