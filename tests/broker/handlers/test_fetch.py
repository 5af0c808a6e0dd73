"""Fetch on the wire: long polls, limits, sessions that are declined, topic ids, leader epochs."""

from __future__ import annotations

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import FetchRequest
from tests.broker.conftest import NewTopic
from tests.broker.network.test_connection import A_MINUTE_MS, wait_until_parked
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    FETCH_VERSION,
    batch_of,
    create_topic,
    delete_topic,
    fetch,
    fetch_request,
    produce,
    records_in,
)


def values_of(fetched: object) -> list[bytes | None]:
    return [record.value for record in records_in(fetched.records)]  # type: ignore[attr-defined]


# -- long polls ------------------------------------------------------------------------------------


def test_a_poll_with_nothing_to_read_returns_empty_after_its_maximum_wait() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "quiet")
        line = stage.connect()
        poll = line.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("quiet", max_wait_ms=500))
        stage.advance(499)
        assert poll not in line.replies
        stage.advance(1)
        reply = line.reply(ApiKey.FETCH, FETCH_VERSION, poll)
        assert reply.error_code == ErrorCode.NONE
        assert reply.responses[0].partitions[0].high_watermark == 0
        assert values_of(reply.responses[0].partitions[0]) == []


def test_a_poll_without_a_wait_returns_immediately(client: RawClient, new_topic: NewTopic) -> None:
    assert values_of(fetch(client, new_topic(), max_wait_ms=0)) == []
    assert values_of(fetch(client, new_topic(), max_wait_ms=A_MINUTE_MS, min_bytes=0)) == []


def test_a_poll_is_woken_by_a_produce_on_another_connection(
    broker: fencepost.Broker, client: RawClient, other: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    poll = client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
    wait_until_parked(broker, topic)
    produce(other, topic, batch_of(b"news"))
    reply = client.reply(ApiKey.FETCH, FETCH_VERSION, poll)
    assert values_of(reply.responses[0].partitions[0]) == [b"news"]


def test_a_poll_waits_for_its_minimum_bytes() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "bytes")
        size = len(batch_of(b"x"))
        produce(stage, "bytes", batch_of(b"a"))
        line = stage.connect()
        wanted = fetch_request("bytes", max_wait_ms=A_MINUTE_MS, min_bytes=3 * size)
        poll = line.send(ApiKey.FETCH, FETCH_VERSION, wanted)
        produce(stage, "bytes", batch_of(b"b"))
        stage.settle()
        assert poll not in line.replies
        produce(stage, "bytes", batch_of(b"c"))
        reply = line.reply(ApiKey.FETCH, FETCH_VERSION, poll)
        assert values_of(reply.responses[0].partitions[0]) == [b"a", b"b", b"c"]


def test_a_poll_returns_less_than_its_minimum_bytes_after_its_maximum_wait() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "bytes")
        produce(stage, "bytes", batch_of(b"a"))
        got = fetch(stage, "bytes", max_wait_ms=500, min_bytes=1 << 20)
        assert values_of(got) == [b"a"]


def test_an_error_in_one_partition_does_not_wait_for_the_others() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "one")
        line = stage.connect()
        request = fetch_request("one", max_wait_ms=A_MINUTE_MS)
        request.topics += fetch_request("nowhere").topics
        poll = line.send(ApiKey.FETCH, FETCH_VERSION, request)
        stage.settle()
        reply = line.reply(ApiKey.FETCH, FETCH_VERSION, poll)
        codes = [topic.partitions[0].error_code for topic in reply.responses]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_poll_returns_immediately_when_its_topic_is_deleted() -> None:

    with Stage(durability="os") as stage:
        create_topic(stage, "doomed")
        line = stage.connect()
        request = fetch_request("doomed", max_wait_ms=A_MINUTE_MS)
        poll = line.send(ApiKey.FETCH, FETCH_VERSION, request)
        delete_topic(stage, "doomed")
        stage.settle()
        reply = line.reply(ApiKey.FETCH, FETCH_VERSION, poll)
        code = reply.responses[0].partitions[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- limits ----------------------------------------------------------------------------------------


def test_a_batch_larger_than_the_limit_is_still_returned(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"x" * 10_000))
    produce(client, topic, batch_of(b"next"))
    assert values_of(fetch(client, topic, max_bytes=100)) == [b"x" * 10_000]


def test_only_the_first_partition_may_exceed_the_limit_of_the_request(
    client: RawClient, new_topic: NewTopic
) -> None:
    topics = [new_topic(), new_topic()]
    for topic in topics:
        produce(client, topic, batch_of(b"x" * 1_000))
    request = fetch_request(topics[0], max_bytes=100)
    request.topics += fetch_request(topics[1]).topics
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, request)
    sizes = [len(values_of(topic.partitions[0])) for topic in reply.responses]
    assert sizes == [1, 0]


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(
    client: RawClient, new_topic: NewTopic, offset: int
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"a", b"b"))
    got = fetch(client, topic, offset)
    assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (got.high_watermark, got.log_start_offset) == (2, 0)


# -- sessions --------------------------------------------------------------------------------------


def test_a_client_that_requests_a_session_is_served_without_one(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"value"))
    request = fetch_request(topic, session_id=0, session_epoch=0)
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, request)
    assert (reply.error_code, reply.session_id) == (ErrorCode.NONE, 0)
    assert values_of(reply.responses[0].partitions[0]) == [b"value"]


@pytest.mark.parametrize("session_id", [0, 77])
def test_an_unknown_session_is_not_found(client: RawClient, session_id: int) -> None:
    request = FetchRequest(session_id=session_id, session_epoch=3, max_wait_ms=A_MINUTE_MS)
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, request)
    assert reply.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert reply.responses == []


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_that_replaces_an_old_session_is_served(
    client: RawClient, new_topic: NewTopic, epoch: int
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"value"))
    request = fetch_request(topic, session_id=77, session_epoch=epoch)
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, request)
    assert (reply.error_code, reply.session_id) == (ErrorCode.NONE, 0)
    assert values_of(reply.responses[0].partitions[0]) == [b"value"]


# -- names, ids, epochs ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [13, 18])
def test_a_topic_may_be_fetched_by_its_id(client: RawClient, version: int) -> None:
    topic_id = create_topic(client, f"by-id-{version}")
    produce(client, f"by-id-{version}", batch_of(b"value"))
    reply = client.call(ApiKey.FETCH, version, fetch_request(topic_id))
    assert reply.responses[0].topic_id == topic_id
    assert values_of(reply.responses[0].partitions[0]) == [b"value"]


def test_a_fetch_with_an_unknown_topic_id_gets_an_error(client: RawClient) -> None:
    reply = client.call(ApiKey.FETCH, 18, fetch_request(bytes(15) + b"x", max_wait_ms=A_MINUTE_MS))
    assert reply.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_from_a_missing_partition_gets_an_error(
    client: RawClient, new_topic: NewTopic
) -> None:
    got = fetch(client, new_topic(), index=1, max_wait_ms=A_MINUTE_MS)
    assert got.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("ahead", "error"),
    [(-1, ErrorCode.FENCED_LEADER_EPOCH), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_fetch_with_another_leader_epoch_gets_an_error(ahead: int, error: ErrorCode) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "led")
    stage.kill()  # A leader that returns from a crash has a new epoch.
    with_new_epoch = stage.again()
    partition = with_new_epoch.node.partitions.get("led", 0)
    assert partition is not None
    assert partition.leader_epoch == 1
    got = fetch(with_new_epoch, "led", leader_epoch=partition.leader_epoch + ahead)
    assert got.error_code == error
    with_new_epoch.stop()


def test_read_committed_returns_the_last_stable_offset_and_aborted_transactions(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"plain"))
    got = fetch(client, topic, isolation_level=1)
    assert values_of(got) == [b"plain"]
    assert (got.last_stable_offset, got.aborted_transactions) == (1, [])
    assert fetch(client, topic, isolation_level=0).aborted_transactions is None


@pytest.mark.parametrize(("epoch", "error"), [(0, 0), (1, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, 0)])
def test_an_unknown_last_fetched_epoch_is_out_of_range(
    client: RawClient, new_topic: NewTopic, epoch: int, error: int
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(b"a", b"b"))
    request = fetch_request(topic, 1)
    request.topics[0].partitions[0].last_fetched_epoch = epoch
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, request)
    assert reply.responses[0].partitions[0].error_code == error


def test_any_negative_leader_epoch_counts_as_none(client: RawClient, new_topic: NewTopic) -> None:
    assert fetch(client, new_topic(), leader_epoch=-2).error_code == ErrorCode.NONE


def test_a_missing_partition_has_an_empty_list_of_aborted_transactions(
    client: RawClient, new_topic: NewTopic
) -> None:
    assert fetch(client, new_topic(), index=7).aborted_transactions == []
    assert fetch(client, new_topic(), 9).aborted_transactions is None


def test_a_topic_without_partitions_is_left_out_of_the_fetch_reply(
    client: RawClient, new_topic: NewTopic
) -> None:
    request = fetch_request(new_topic())
    request.topics[0].partitions.clear()
    assert client.call(ApiKey.FETCH, FETCH_VERSION, request).responses == []


def test_the_bytes_copied_for_one_reply_are_limited() -> None:
    with Stage(durability="os") as stage:  # Its disk has no views, so everything is copied.
        create_topic(stage, "wide", 12)
        for index in range(12):
            produce(stage, "wide", batch_of(b"x" * 1_000_000), index=index)
        request = fetch_request("wide", max_wait_ms=A_MINUTE_MS, min_bytes=12_000_000)
        for index in range(1, 12):
            request.topics += fetch_request("wide", index=index).topics
        reply = stage.call(ApiKey.FETCH, FETCH_VERSION, request)
        parts = [topic.partitions[0] for topic in reply.responses]
        assert [len(values_of(part)) for part in parts] == [1] * 4 + [0] * 8
        assert [part.high_watermark for part in parts] == [1] * 12
