"""Clients read what the load generator writes, and it overlooks no error of the broker."""

from __future__ import annotations

import itertools
import os
import select
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import fencepost
from bench.generator import answers, frames
from bench.generator.__main__ import main
from bench.generator.answers import CONCURRENT_TRANSACTIONS, NO_ERROR, RefusedError
from bench.generator.engine import Connection
from bench.generator.job import Job, Mode
from bench.generator.run import run
from bench.generator.scripts import make_batch
from fencepost.base import ids
from fencepost.base.errors import ErrorCode
from fencepost.client.blocking import connect
from fencepost.records.batch import read_header, seal_check
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_request, encode_response, read_request_header
from fencepost.wire.forms.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tools.processes import free_port

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="the generator needs epoll")

numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as running:
        yield running


@pytest.fixture
def job(broker: fencepost.Broker) -> Job:
    """A run of one transaction of one producer: it ends as soon as its records are written."""
    name = f"generated-{next(numbers)}"
    job = Job(broker.bootstrap_servers, "tv2", topic=name, prefix=name, seconds=30, backoff_ms=1)
    return replace(job, size=100, max_bytes=1)


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The values of the records of a batch, in order; without this they are random."""
    made: list[bytes] = []

    def next_value(size: int) -> bytes:
        made.append(f"{len(made):0{size}}".encode())
        return made[-1]

    monkeypatch.setattr(os, "urandom", next_value)
    return made


def read_all(job: Job, isolation: str, count: int) -> dict[int, list[bytes | None]]:
    """The values of each partition, as librdkafka reads them; fails if there are fewer or more."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(job.topic, n, OFFSET_BEGINNING) for n in range(job.partitions)]
    consumer.assign(places)
    found: dict[int, list[bytes | None]] = {n: [] for n in range(job.partitions)}
    ended = 0
    while ended < job.partitions:
        message = consumer.poll(30)
        assert message is not None, "the end of a partition was not reached"
        if message.error():
            ended += 1
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    assert sum(map(len, found.values())) == count
    return found


def states(job: Job) -> Counter[str]:
    with connect(job.bootstrap) as cluster:
        pattern = f"{job.prefix}-.*"
        return Counter(one.state for one in cluster.list_transactions(pattern=pattern))


# What is written.


@pytest.mark.parametrize("mode", ["tv1", "tv2"])
def test_confluent_kafka_reads_back_exactly_what_was_written(
    job: Job, values: list[bytes], mode: Mode
) -> None:
    job = replace(job, mode=mode, records=3)

    figures = run(job)

    assert figures.records == 3
    assert read_all(job, "read_committed", 3) == {0: values, 1: [], 2: [], 3: []}
    assert states(job) == {"CompleteCommit": 1}


@pytest.mark.parametrize("mode", ["tv1", "tv2"])
def test_a_transaction_of_several_requests_and_partitions_is_written_once_and_in_order(
    job: Job, values: list[bytes], mode: Mode
) -> None:
    job = replace(job, mode=mode, records=2, requests=4, spread=2, window=3)

    run(job)

    assert read_all(job, "read_committed", 16) == {0: values * 4, 1: values * 4, 2: [], 3: []}


@pytest.mark.parametrize("mode", ["tv1", "tv2"])
def test_many_producers_use_all_partitions_and_leave_no_transaction_open(
    job: Job, mode: Mode
) -> None:
    job = replace(job, mode=mode, producers=8, records=2, max_bytes=20_000)

    figures = run(job)

    with_open = read_all(job, "read_uncommitted", _written(job))
    assert read_all(job, "read_committed", _written(job)) == with_open
    assert figures.transactions > 0
    assert all(with_open.values())
    assert states(job) == {"CompleteCommit": 8}


@pytest.mark.parametrize("mode", ["acks1", "idempotent"])
def test_records_sent_outside_transactions_arrive_once(
    job: Job, values: list[bytes], mode: Mode
) -> None:
    job = replace(job, mode=mode, producers=2, records=2, max_bytes=4_000)

    figures = run(job)

    found = read_all(job, "read_committed", _written(job))
    assert figures.records * 100 >= 4_000
    assert {value for part in found.values() for value in part} == set(values)
    assert all(part == values * (len(part) // 2) for part in found.values())


def _written(job: Job) -> int:
    """The records of a topic without markers; more than the figures count, which stop in time."""
    with connect(job.bootstrap) as cluster:
        parts = [ids.TopicPartition(job.topic, n) for n in range(job.partitions)]
        return sum(1 for part in parts for _ in cluster.records(part, isolation="read_committed"))


# Crowds and readers.


def test_ids_are_registered_without_a_transaction(job: Job) -> None:
    run(replace(job, mode="ids", producers=4, count=50))

    assert states(job) == {"Empty": 50}


def test_transactions_are_left_open_and_their_records_are_not_committed(job: Job) -> None:
    run(replace(job, mode="open", producers=4, count=20))

    assert states(job) == {"Ongoing": 20}
    assert read_all(job, "read_uncommitted", 20)
    assert read_all(job, "read_committed", 0)


def test_a_reader_counts_every_record_and_no_marker(job: Job) -> None:
    run(replace(job, records=10))

    figures = run(replace(job, mode="fetch"))

    assert figures.records == 10


# Errors.


def test_an_error_in_a_reply_fails_the_run_with_a_clear_message(
    job: Job, broker: fencepost.Broker
) -> None:
    broker.call(lambda node: node.faults.fail(ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE))

    with pytest.raises(RefusedError, match=r"EndTxn was refused: INVALID_TXN_STATE \(48\)"):
        run(job)


def test_concurrent_transactions_is_retried_and_counted(job: Job, broker: fencepost.Broker) -> None:
    broker.call(lambda node: node.faults.fail(ApiKey.END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS))
    job = replace(job, max_bytes=300)

    figures = run(job)

    assert figures.retries == 1
    assert states(job) == {"CompleteCommit": 1}


def test_an_error_of_any_partition_is_noticed() -> None:
    answer = answers.produced("topic", 12, spread=3)

    def reply(*codes: int) -> bytes:
        parts = [PartitionProduceResponse(index=0, error_code=code) for code in codes]
        form = ProduceResponse(
            responses=[TopicProduceResponse(name="topic", partition_responses=parts)]
        )
        return b"".join(encode_response(ApiKey.PRODUCE, 12, 7, form))

    assert answer.error_in(reply(0, 0, 0)) == NO_ERROR
    assert answer.error_in(reply(0, 0, 51)) == CONCURRENT_TRANSACTIONS
    assert answer.error_in(reply(0, 51, 0)) == CONCURRENT_TRANSACTIONS


def test_a_truncated_reply_is_an_error() -> None:
    answer = answers.ended(5)

    assert "cut short" in str(answer.refusal(answer.error_in(b"\x00\x00\x00\x04\x00\x00\x00\x01")))


def test_an_unreachable_broker_is_reported_with_a_clear_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = f"127.0.0.1:{free_port()}"

    assert main(["--bootstrap", closed]) == 1
    assert capsys.readouterr().err.startswith("the run failed: ")


# Frames and connections.


@pytest.mark.parametrize("size", [10, frames.TABLE_WORTH_BYTES])
def test_a_sealed_frame_is_a_valid_request_of_its_producer(size: int) -> None:
    job = Job("nobody:1", "tv2", records=2, size=size)
    frame = frames.ProduceFrame(
        "topic", make_batch(job), version=12, acks=-1, transactional_id="id", spread=2
    )

    frame.address(3, of=4)
    frame.seal(77, 5, 600)

    header = read_request_header(memoryview(frame.data)[4:])
    form: ProduceRequest = decode_request(
        header.api, header.api_version, memoryview(frame.data)[4:], header.body_offset
    )
    parts = form.topic_data[0].partition_data
    assert [part.index for part in parts] == [3, 0]
    for part in parts:
        assert part.records is not None
        batch = read_header(part.records)
        seal_check(batch)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 5, 600)
        assert batch.is_transactional


def test_replies_are_assembled_from_any_pieces() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(server.getsockname())
        epoll = select.epoll()
        connection.join(epoll)
        there, _ = server.accept()
        replies = [
            (4 + len(body)).to_bytes(4, "big") + number.to_bytes(4, "big") + body
            for number, body in enumerate([b"one", b"", b"three"], 1)
        ]
        stream = b"".join(replies)
        received = []
        for start in range(0, len(stream), 5):
            there.sendall(stream[start : start + 5])
            assert epoll.poll(30)
            received += connection.receive()
        assert received == replies
        there.close()
        connection.close()
        epoll.close()


def test_a_reply_to_another_request_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(server.getsockname())
        epoll = select.epoll()
        connection.join(epoll)
        there, _ = server.accept()
        there.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x09")
        assert epoll.poll(30)
        with pytest.raises(RefusedError, match="out of order"):
            connection.receive()
        there.close()
        connection.close()
        epoll.close()
