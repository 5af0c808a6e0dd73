"""The memory of all connections together is bounded and freed; small requests are served."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.base.limits import LEAST_REPLY_BYTES, STUCK_SECONDS
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.conftest import Complaints
from tests.broker.network.test_connection import A_MINUTE_MS
from tests.broker.network.test_connection_slow_clients import wait_until
from tests.broker.node_stage import Line, Stage
from tests.broker.raw import RawClient, frame_of
from tests.broker.requests import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    records_in,
)
from tests.transactions.protocol import TV2
from tests.transactions.wire import WireProducer
from tools.fencepost_process import FencepostProcess

LIMIT = 2 << 20
SETTINGS = {"queued.max.response.bytes": str(LIMIT), "queued.max.request.bytes": str(LIMIT)}
BATCH_BYTES = 400_000
BATCHES = 10
VERSIONS = ApiVersionsRequest(client_software_name="c", client_software_version="1")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(durability="os", settings=SETTINGS) as started:
        create_topic(started, "full")
        create_topic(started, "quiet")
        for _ in range(BATCHES):
            assert produce(started, "full", batch_of(b"x" * BATCH_BYTES)).error_code == 0
        yield started
        assert_nothing_is_held(started)


def assert_nothing_is_held(stage: Stage) -> None:
    """Checks that all memory is freed after the clients have disconnected."""
    for line in stage._lines:
        line.wire.close()
    stage.settle()
    assert stage.node.replies.taken_bytes == 0
    assert stage.node.requests.taken_bytes == 0
    assert not stage.node.replies.is_waited_for
    assert not stage.node.requests.is_waited_for


def deaf_line(stage: Stage) -> Line:
    line = stage.connect()
    line.wire.is_deaf = True
    return line


def ask_for_all(line: Line, **more: Any) -> int:
    return line.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("full", **more))


def deaf_readers(stage: Stage, count: int = 20) -> list[Line]:
    """Clients that request more than the memory budget, and do not read."""
    lines = [deaf_line(stage) for _ in range(count)]
    for line in lines:
        ask_for_all(line, max_wait_ms=A_MINUTE_MS)
    stage.settle()
    return lines


# -- replies ---------------------------------------------------------------------------------------


def test_clients_that_do_not_read_share_one_limit(stage: Stage) -> None:
    deaf_readers(stage, 50)
    assert stage.node.replies.is_full
    assert stage.node.replies.taken_bytes <= LIMIT + BATCH_BYTES + 1000


def test_the_closer_to_the_limit_the_less_a_fetch_returns(stage: Stage) -> None:
    create_topic(stage, "fine")
    for _ in range(60):
        produce(stage, "fine", batch_of(b"x" * 20_000))
    sizes = []
    for _ in range(8):
        line = deaf_line(stage)
        line.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("fine"))
        stage.settle()
        sizes.append(line.wire.get_write_buffer_size())
    assert LIMIT / 5 < sizes[0] <= LIMIT / 4
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= LEAST_REPLY_BYTES / 2


def test_small_requests_are_served_at_the_memory_limit(stage: Stage) -> None:
    create_topic(stage, "other")
    deaf_readers(stage)
    line = stage.connect()
    assert line.call(ApiKey.API_VERSIONS, 3, VERSIONS).error_code == 0
    producer = WireProducer(line, "t", TV2).initialise()
    producer.send("other", b"value")
    producer.commit()
    assert stage.node.replies.is_full


def test_a_fetch_at_the_memory_limit_returns_no_records(stage: Stage) -> None:
    deaf_readers(stage)
    line = stage.connect()
    poll = ask_for_all(line, max_wait_ms=A_MINUTE_MS)
    stage.advance(900)
    assert poll not in line.replies
    stage.advance(200)
    (told,) = line.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses[0].partitions
    assert (told.error_code, told.high_watermark, told.records) == (0, BATCHES, b"")
    assert fetch(line, "full").records == b""


def test_a_fetch_gets_its_records_when_others_have_read_theirs(stage: Stage) -> None:
    deaf = deaf_readers(stage)
    line = stage.connect()
    poll = ask_for_all(line, max_wait_ms=A_MINUTE_MS)
    metadata = stage.connect().send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    assert (poll in line.replies, metadata in line.replies) == (False, False)
    for each in deaf:
        each.wire.hear()
    stage.settle()
    (told,) = line.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses[0].partitions
    assert len(records_in(told.records)) >= 1


def test_errors_are_returned_at_the_memory_limit(stage: Stage) -> None:
    deaf_readers(stage)
    line = stage.connect()
    for request in (fetch_request("nowhere"), fetch_request("full", 999)):
        request.max_wait_ms = A_MINUTE_MS
        sent = line.send(ApiKey.FETCH, FETCH_VERSION, request)
        stage.settle()
        (told,) = line.reply(ApiKey.FETCH, FETCH_VERSION, sent).responses[0].partitions
        assert told.error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )


def test_clients_that_do_not_read_are_disconnected_when_others_wait(
    stage: Stage, complaints: Complaints
) -> None:
    deaf = deaf_readers(stage)
    line = stage.connect()
    sent = line.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    stage.advance(STUCK_SECONDS * 1000 - 500)
    assert sent not in line.replies
    stage.advance(2000)
    assert line.reply(ApiKey.METADATA, 9, sent).topics
    assert any(each.is_closed for each in deaf)
    assert all("queued.max.response.bytes" in said for said in complaints())
    assert len(records_in(fetch(line, "full").records)) >= 1


def test_clients_that_do_not_read_stay_connected_if_no_other_waits(stage: Stage) -> None:
    deaf = deaf_readers(stage, 2)
    stage.advance(10 * STUCK_SECONDS * 1000)
    assert not any(each.is_closed for each in deaf)


def test_clients_that_read_slowly_stay_connected(stage: Stage) -> None:
    deaf = deaf_readers(stage)
    waiting = stage.connect()
    waiting.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    for _ in range(2):
        stage.advance(STUCK_SECONDS * 500)
        deaf[0].wire.hear_some(BATCH_BYTES // 3)
    stage.advance(1000)
    assert not deaf[0].is_closed
    assert deaf[1].is_closed


def test_a_client_does_not_wait_for_memory_behind_its_own_poll(stage: Stage) -> None:
    line = stage.connect()
    poll = line.send(
        ApiKey.FETCH, FETCH_VERSION, fetch_request("quiet", max_wait_ms=A_MINUTE_MS, max_bytes=1000)
    )
    behind = [ask_for_all(line) for _ in range(30)]
    stage.settle()
    assert stage.node.replies.is_full
    assert poll not in line.replies
    produce(stage, "quiet", batch_of(b"news"))
    stage.advance(1500)
    assert line.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses
    for each in behind:
        assert line.reply(ApiKey.FETCH, FETCH_VERSION, each).responses
    assert stage.node.replies.taken_bytes == 0


def test_a_hundred_polls_woken_by_one_append_share_the_limit(stage: Stage) -> None:
    lines = [deaf_line(stage) for _ in range(100)]
    for line in lines:
        line.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("quiet", max_wait_ms=A_MINUTE_MS))
    produce(stage, "quiet", batch_of(b"x" * BATCH_BYTES))
    stage.settle()
    assert stage.node.replies.taken_bytes <= LIMIT + BATCH_BYTES + 1000
    stage.advance(2000)
    assert stage.node.replies.taken_bytes <= LIMIT + BATCH_BYTES + 1000


@pytest.mark.parametrize("state", ["unread", "behind a poll", "waits for room"])
def test_a_lost_connection_frees_its_memory(stage: Stage, state: str) -> None:
    if state == "waits for room":
        deaf_readers(stage)
    line = deaf_line(stage)
    if state == "behind a poll":
        poll = fetch_request("quiet", max_wait_ms=A_MINUTE_MS)
        line.send(ApiKey.FETCH, FETCH_VERSION, poll)
    for _ in range(3):
        ask_for_all(line, max_wait_ms=A_MINUTE_MS)
    line.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    stage.settle()
    assert stage.node.replies.taken_bytes > 0
    line.wire.close()  # The fixture checks that nothing is left.


# -- requests --------------------------------------------------------------------------------------


def large_request(size: int = 1_000_000) -> bytes:
    return frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("full", batch_of(b"y" * size)))


def test_large_requests_that_arrive_slowly_share_one_limit(stage: Stage) -> None:
    lines = [stage.connect() for _ in range(30)]
    frame = large_request()
    for line in lines:
        line.send_bytes(frame[:700_000])
    assert stage.node.requests.is_full
    assert stage.node.requests.taken_bytes <= LIMIT + len(frame)
    other = stage.connect()
    assert other.call(ApiKey.API_VERSIONS, 3, VERSIONS).error_code == 0
    assert produce(other, "quiet", batch_of(b"small")).error_code == 0


def test_large_requests_that_wait_for_each_other_are_all_served(stage: Stage) -> None:
    lines = [stage.connect() for _ in range(12)]
    frame = large_request()
    for start in range(0, len(frame), 150_000):
        for line in lines:
            line.send_bytes(frame[start : start + 150_000])
    for line in lines:
        told = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, 1)
        assert told.responses[0].partition_responses[0].error_code == 0
    assert stage.node.requests.taken_bytes == 0


def test_clients_that_send_too_slowly_are_disconnected_when_others_wait(
    stage: Stage, complaints: Complaints
) -> None:
    slow = [stage.connect() for _ in range(12)]
    frame = large_request()
    for line in slow:
        line.send_bytes(frame[:700_000])
    assert stage.node.requests.is_waited_for
    quick = stage.connect()
    quick.send_bytes(frame)
    told = quick.reply(ApiKey.PRODUCE, PRODUCE_VERSION, 1)
    assert told.responses[0].partition_responses[0].error_code == 0
    assert any(line.is_closed for line in slow)
    assert all("queued.max.request.bytes" in said for said in complaints())


@pytest.mark.parametrize("part", [100_000, 500_000, 999_999])
def test_an_incomplete_request_frees_its_memory(stage: Stage, part: int) -> None:
    line = stage.connect()
    line.send_bytes(large_request()[:part])
    assert stage.node.requests.taken_bytes > 0
    line.wire.close()


def test_a_request_counts_until_it_has_taken_effect(stage: Stage) -> None:
    held: list[Any] = []
    stage.node.faults.delay(ApiKey.PRODUCE, held.append)
    line = stage.connect()
    line.send_bytes(large_request())
    assert stage.node.requests.taken_bytes >= 1_000_000
    stage.advance(10 * STUCK_SECONDS * 1000)
    (resume,) = held
    resume()
    stage.settle()
    assert stage.node.requests.taken_bytes == 0
    told = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, 1)
    assert told.responses[0].partition_responses[0].error_code == 0


def test_a_request_that_takes_effect_after_its_client_has_left_holds_no_memory(
    stage: Stage,
) -> None:
    held: list[Any] = []
    stage.node.faults.delay(ApiKey.PRODUCE, held.append)
    line = stage.connect()
    line.send_bytes(large_request())
    feed_part(line, large_request()[:300_000])
    line.wire.close()
    stage.settle()
    assert stage.node.requests.taken_bytes == 0
    held[0]()
    stage.settle()
    assert stage.node.requests.taken_bytes == 0


def feed_part(line: Line, data: bytes) -> None:
    """Delivers bytes that arrive after reading was paused."""
    room = line.connection.get_buffer(-1)
    part = data[: len(room)]
    room[: len(part)] = part
    line.connection.buffer_updated(len(part))


def test_a_reply_after_its_client_has_left_holds_no_memory(stage: Stage) -> None:
    held: list[Any] = []
    stage.node.faults.delay(ApiKey.FETCH, held.append)
    line = stage.connect()
    quiet = fetch_request("quiet", max_wait_ms=A_MINUTE_MS)
    line.send(ApiKey.FETCH, FETCH_VERSION, quiet)
    line.wire.close()
    stage.settle()
    held[0]()
    stage.advance(A_MINUTE_MS)
    assert stage.node.replies.taken_bytes == 0


def test_a_request_that_waits_for_durability_holds_no_memory() -> None:
    with Stage(durability="fsync", settings=SETTINGS) as stage:
        create_topic(stage, "full")
        line = stage.connect()
        line.send_bytes(large_request())
        assert 1 not in line.replies
        assert stage.node.requests.taken_bytes == 0
        assert line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, 1).responses


@pytest.mark.parametrize("none", ["-1", "0"])
def test_a_limit_of_zero_or_less_means_no_limit(none: str) -> None:
    settings = {"queued.max.response.bytes": none, "queued.max.request.bytes": none}
    with Stage(durability="os", settings=settings) as stage:
        create_topic(stage, "full")
        line = stage.connect()
        line.send_bytes(large_request())
        assert line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, 1).responses
        for each in deaf_readers(stage, 10):
            assert each.wire.get_write_buffer_size() > 1_000_000
        assert not stage.node.replies.is_full


# -- random clients --------------------------------------------------------------------------------


def do_something(line: Line, rng: random.Random, frame: bytes, parts: dict[Line, bytes]) -> None:
    action = rng.choice(("fetch", "fetch", "poll", "produce", "produce", "stop", "read", "leave"))
    if line.is_closed:
        return
    if action == "fetch":
        ask_for_all(line, max_wait_ms=rng.choice([0, 500, A_MINUTE_MS]))
    elif action == "poll":
        poll = fetch_request("quiet", max_wait_ms=rng.choice([500, A_MINUTE_MS]))
        line.send(ApiKey.FETCH, FETCH_VERSION, poll)
    elif action == "produce":
        size = rng.choice([1000, 200_000, len(frame)])
        line.send_bytes(frame[:size])
        parts[line] = frame[size:]
    elif action == "stop":
        line.wire.is_deaf = True
    elif action == "read" and line.wire.is_deaf:
        line.wire.hear()
    elif action == "leave" and rng.random() < 0.3:
        line.wire.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_limits_hold_and_all_memory_is_freed_whatever_clients_do(
    stage: Stage, seed: int
) -> None:
    rng = random.Random(seed)
    frame = large_request()
    parts: dict[Line, bytes] = {}
    lines = [stage.connect() for _ in range(15)]
    for _ in range(150):
        line = rng.choice(lines)
        if parts.get(line):  # It must finish the request that it has begun.
            left = parts.pop(line)
            if not line.is_closed:
                line.send_bytes(left)
        else:
            do_something(line, rng, frame, parts)
        if rng.random() < 0.1:
            stage.advance(rng.choice([10, 1500, STUCK_SECONDS * 1000]))
        assert stage.node.replies.taken_bytes <= LIMIT + len(lines) * BATCH_BYTES
        assert stage.node.requests.taken_bytes <= LIMIT + 2 * len(frame)
        lines = [stage.connect() if line.is_closed else line for line in lines]
    # A new client is served whatever the others hold, at the latest when they are disconnected.
    last = stage.connect()
    sent = last.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    stage.advance(3 * STUCK_SECONDS * 1000)
    assert last.reply(ApiKey.METADATA, 9, sent).topics


# -- with real sockets -----------------------------------------------------------------------------


def hostile_readers(broker: fencepost.Broker, count: int) -> list[RawClient]:
    made = [RawClient(broker.bootstrap_servers, receive_buffer_bytes=4096) for _ in range(count)]
    for client in made:
        request = fetch_request("full", max_wait_ms=A_MINUTE_MS)
        client.send(ApiKey.FETCH, FETCH_VERSION, request)
    return made


def leave(client: RawClient, how: str) -> None:
    if how == "half-closed":
        # A half-closed client could still read, so its replies are kept until it closes.
        client._socket.shutdown(socket.SHUT_WR)
        client.close()
    elif how == "reset":
        client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    else:
        client.close()


@pytest.mark.parametrize("how", ["closed", "half-closed", "reset"])
def test_hostile_readers_on_sockets_stay_within_the_limit(how: str) -> None:
    config = {"queued.max.response.bytes": 16 << 20}
    with fencepost.Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as normal:
        create_topic(normal, "full")
        for _ in range(20):
            produce(normal, "full", batch_of(b"x" * 1_000_000))
        readers = hostile_readers(broker, 30)
        for _ in range(20):
            assert normal.call(ApiKey.API_VERSIONS, 3, VERSIONS).error_code == 0
            taken = broker.call(lambda node: node.replies.taken_bytes)
            assert taken <= (16 << 20) + 1_100_000
        for reader in readers:
            leave(reader, how)
        wait_until(broker, lambda node: node.replies.taken_bytes == 0)
        assert len(records_in(fetch(normal, "full").records)) >= 1


def test_the_process_stays_small_with_hostile_readers(tmp_path: Path) -> None:
    options = ["--config", f"queued.max.response.bytes={32 << 20}"]
    partitions = 20
    with (
        FencepostProcess(tmp_path / "data", options=options) as process,
        RawClient(process.bootstrap_servers) as normal,
    ):
        create_topic(normal, "full", partitions)
        for index in range(partitions):
            produce(normal, "full", batch_of(b"x" * 1_000_000), index=index)
        before = process.process.resident_bytes()
        request = fetch_request("full", max_wait_ms=A_MINUTE_MS)
        for index in range(1, partitions):
            request.topics += fetch_request("full", index=index).topics
        readers = [
            RawClient(process.bootstrap_servers, receive_buffer_bytes=4096) for _ in range(40)
        ]
        for reader in readers:
            reader.send(ApiKey.FETCH, FETCH_VERSION, request)
        for _ in range(50):
            normal.call(ApiKey.API_VERSIONS, 3, VERSIONS)
        # Without a bound they take 800 MB.
        assert process.process.resident_bytes() - before < 200 << 20
        for reader in readers:
            reader.close()
