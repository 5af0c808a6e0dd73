"""Every API against the matrix of rights: what each request needs, and that refusals tell nothing.

Method: for each row, alice gets exactly the rights of a set, then all but one of them, and then
every right there is with one of them denied. Each time the whole reply is searched for errors of
authorization, and for names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.handlers import HANDLERS, max_served_version
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.plan import plan_of
from tests.broker.raw import frame_as_written
from tests.broker.requests import create_topic
from tests.broker.security.matrix import (
    DENIALS,
    ROWS,
    WORLD,
    Right,
    Row,
    World,
    errors_in,
    texts_in,
)
from tests.broker.security.secured import ALICE, Secured, acl
from tests.transactions.wire import GROUP, await_coordinator
from tests.wire.samples import fill

EVERYTHING = (
    ("ALL", "TOPIC", "*"),
    ("ALL", "GROUP", "*"),
    ("ALL", "TRANSACTIONAL_ID", "*"),
    ("ALL", "CLUSTER", "kafka-cluster"),
)


def test_every_api_has_a_row() -> None:
    assert {row.api for row in ROWS} == set(HANDLERS)


def send(stage: Secured, row: Row, world: World) -> Any:
    line = stage.connect(ALICE)
    line.send_bytes(frame_as_written(row.api, row.version, row.request(world)))
    return line.reply(row.api, row.version, 1)


def assert_denied(reply: Any, row: Row, error: ErrorCode, world: World) -> None:
    if error is ErrorCode.NONE:
        assert row.hidden is not None
        assert row.hidden(world) not in texts_in(reply)
        assert not errors_in(reply) & DENIALS
    else:
        assert int(error) in errors_in(reply) & DENIALS, f"{error.name} is not in {reply}"


def assert_allowed(reply: Any, row: Row, world: World) -> None:
    assert not errors_in(reply) & DENIALS, reply
    if row.hidden is not None:
        assert row.hidden(world) in texts_in(reply)


def prepare(stage: Secured) -> World:
    world = stage.settle_world()
    commit = next(each for each in ROWS if each.api is ApiKey.OFFSET_COMMIT)
    assert not errors_in(stage.call(commit.api, commit.version, commit.request(world)))
    return world


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_request_needs_its_rights_and_no_others(row: Row) -> None:
    with Secured() as stage:
        world = prepare(stage)
        first_errors = {error for each in row.enough for error in list(each.values())[:1]}
        if row.enough:
            for error in first_errors:
                assert_denied(send(stage, row, world), row, error, world)
        for enough in row.enough:
            for missing, error in enough.items():
                others: list[Right] = [each for each in enough if each != missing]
                if any(_implies(each, missing) for each in others):
                    continue
                stage.allow(*others)
                assert_denied(send(stage, row, world), row, error, world)
                stage.forget()
        if len(row.enough) == 1:  # With alternatives, a denial of one leaves the other.
            for denied, error in row.enough[0].items():
                stage.allow(*EVERYTHING)
                stage.deny(denied)
                assert_denied(send(stage, row, world), row, error, world)
                stage.forget()
        stage.allow(*(row.enough[-1] if row.enough else ()))
        assert_allowed(send(stage, row, world), row, world)


def _implies(right: Right, other: Right) -> bool:
    return right[1:] == other[1:] and other[0] == "DESCRIBE" and right[0] in ("READ", "WRITE")


@pytest.mark.parametrize(
    ("row", "number"),
    [(row, number) for row in ROWS for number in range(len(row.enough) - 1)],
    ids=lambda value: str(value),
)
def test_each_alternative_is_enough(row: Row, number: int) -> None:
    with Secured() as stage:
        world = prepare(stage)
        stage.allow(*row.enough[number])
        assert_allowed(send(stage, row, world), row, world)


# -- nothing is told
# ------------------------------------------------------------------------------------------------


class Names:
    """Every text is the same name, every number small."""

    def __init__(self, name: str, topic_id: bytes) -> None:
        self._name, self._topic_id = name, topic_id

    def integer(self, low: int, high: int) -> int:
        return high if high <= 3 else min(max(1, low), high)

    def text(self) -> str:
        return self._name

    def binary(self, size: int | None = None) -> bytes:
        return b"" if size is None else self._topic_id[:size]

    def real(self) -> float:
        return 1.0


HIDDEN, ABSENT = "hidden", "absent"
BY_VERSION = [
    (key, version)
    for key in sorted(HANDLERS)
    for version in range(API[key].min_version, max_served_version(key) + 1)
]


@pytest.fixture(scope="module")
def house() -> Any:
    """Everything that can have the name `hidden` has it; nobody but the super user has rights."""
    with Secured() as stage:
        create_topic(stage, HIDDEN)
        await_coordinator(stage, HIDDEN, GROUP)
        await_coordinator(stage, HIDDEN)
        hidden = replace(
            WORLD,
            topic=HIDDEN,
            group=HIDDEN,
            transactional_id=HIDDEN,
            new=HIDDEN,
            topic_id=stage.node.metadata.topic_id(HIDDEN) or b"",
        )
        for api in (ApiKey.OFFSET_COMMIT, ApiKey.INIT_PRODUCER_ID):
            row = [each for each in ROWS if each.api is api][-1]
            request = row.request(hidden)
            if api is ApiKey.INIT_PRODUCER_ID:
                request.transactional_id = HIDDEN
            assert not errors_in(stage.call(api, row.version, request))
        yield stage


def ask(house: Secured, key: ApiKey, version: int, names: Names) -> Any:
    """A request with a value in every field, by alice."""
    request = fill(plan_of(API[key].request, version), names)
    if key is ApiKey.PRODUCE:
        request.acks = -1
    line = house.connect(ALICE)
    line.send_bytes(frame_as_written(key, version, request))
    return line.reply(key, version, 1)


@pytest.mark.parametrize(
    ("key", "version"), BY_VERSION, ids=lambda each: each.name if hasattr(each, "name") else each
)
def test_a_refusal_does_not_tell_whether_the_name_exists(
    house: Secured, key: ApiKey, version: int
) -> None:
    """The same request about something that exists and about nothing has the same reply."""
    replies = []
    for name in (HIDDEN, ABSENT):
        reply = ask(house, key, version, Names(name, bytes(16)))
        shown = repr(reply).replace(name, "NAME")
        replies.append(re.sub(r"<memory at \w+>", "", shown))
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("key", "version"), BY_VERSION, ids=lambda each: each.name if hasattr(each, "name") else each
)
def test_the_name_of_a_hidden_topic_is_in_no_reply(
    house: Secured, key: ApiKey, version: int
) -> None:
    """Clients may know ids; the name behind one is told only to those who may describe it."""
    topic_id = house.node.metadata.topic_id(HIDDEN)
    assert topic_id is not None
    for name in ("", "other"):
        reply = ask(house, key, version, Names(name, topic_id))
        assert not any(HIDDEN in text for text in texts_in(reply)), reply


def test_an_address_decides_too() -> None:
    with Secured() as stage:
        world = prepare(stage)
        row = next(each for each in ROWS if each.api is ApiKey.FETCH)
        (right,) = row.enough[0]
        creation = acl(right)
        creation.host = "10.0.0.7"
        assert stage.change(creation) == [ErrorCode.NONE]
        for host, is_denied in (("10.0.0.7", False), ("10.0.0.8", True)):
            reply = stage.connect(ALICE, host).call(row.api, row.version, row.request(world))
            assert bool(errors_in(reply) & DENIALS) is is_denied


def test_a_collision_does_not_tell_the_name_of_a_hidden_topic() -> None:
    """In metrics a.b and a_b are one name; who may create the one need not know the other."""
    with Secured() as stage:
        create_topic(stage, "top_secret")
        row = next(each for each in ROWS if each.api is ApiKey.CREATE_TOPICS)
        world = replace(WORLD, new="top.secret")
        stage.allow(("CREATE", "TOPIC", "top.secret"))
        reply = send(stage, row, world)
        assert errors_in(reply) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert not any("top_secret" in text for text in texts_in(reply))
        stage.allow(("DESCRIBE", "TOPIC", "top_secret"))
        assert any("top_secret" in text for text in texts_in(send(stage, row, world)))


def test_the_reply_of_a_fault_does_not_tell_the_names_of_hidden_topics() -> None:
    """A test that denies its program a topic, and makes Metadata fail, must not show it."""
    with Secured() as stage:
        create_topic(stage, "top_secret")
        create_topic(stage, "t")
        stage.allow(("DESCRIBE", "TOPIC", "t"))
        row = next(each for each in ROWS if each.note == "all" and each.api is ApiKey.METADATA)
        stage.node.faults.fail(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE)
        reply = send(stage, row, WORLD)
        assert errors_in(reply) == {ErrorCode.LEADER_NOT_AVAILABLE}
        assert [topic.name for topic in reply.topics] == ["t"]


def test_a_request_with_another_mistake_is_denied_first() -> None:
    """As in Kafka: whoever may not do it is told that, and the audit log has the attempt."""
    with Secured() as stage:
        create_topic(stage, WORLD.topic)
        produce, list_offsets = (
            next(each for each in ROWS if each.api is api)
            for api in (ApiKey.PRODUCE, ApiKey.LIST_OFFSETS)
        )
        wrong_acks = produce.request(WORLD)
        wrong_acks.acks = 5
        twice = list_offsets.request(WORLD)
        twice.topics[0].partitions *= 2
        for row, request, mistake in (
            (produce, wrong_acks, ErrorCode.INVALID_REQUIRED_ACKS),
            (list_offsets, twice, ErrorCode.INVALID_REQUEST),
        ):
            for principal, error in (
                (ALICE, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                ("User:admin", mistake),
            ):
                reply = stage.connect(principal).call(row.api, row.version, request)
                assert errors_in(reply) == {error}
