"""The fault hook, which makes a request fail, wait or vanish, and the trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.conftest import Complaints, NewTopic
from tests.broker.node_stage import Line, Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    batch_of,
    create_topic,
    fetch,
    produce,
    produce_request,
    records_in,
)
from tests.transactions.wire import WireProducer

METADATA = MetadataRequest(topics=[])
OLDER = 4
"""The last EndTxn version of TV1."""
FIRST_OF_TV2 = 12


class Transaction:
    """One open TV1 transaction with one record."""

    def __init__(self, client: RawClient, topic: str, transactional_id: str) -> None:
        self._client = client
        self.topic = topic
        self.transactional_id = transactional_id
        client.call(
            ApiKey.FIND_COORDINATOR,
            4,
            FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]),
        )
        started = client.call(
            ApiKey.INIT_PRODUCER_ID,
            4,
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000),
        )
        assert started.error_code == ErrorCode.NONE
        self.producer_id = started.producer_id
        self.producer_epoch = started.producer_epoch
        self._add()
        assert produce(
            client, topic, self.batch(), transactional_id=transactional_id
        ).error_code == (ErrorCode.NONE)

    def _add(self) -> None:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )
        self._client.call(
            ApiKey.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest(transactions=[transaction])
        )

    def batch(self, sequence: int = 0) -> bytearray:
        return batch_of(
            b"value",
            producer_id=self.producer_id,
            epoch=self.producer_epoch,
            sequence=sequence,
            transactional=True,
        )

    def commit_request(self) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=True,
        )


@pytest.fixture
def transaction(client: RawClient, new_topic: NewTopic) -> Transaction:
    topic = new_topic()
    return Transaction(client, topic, f"id-{topic}")


def committed(client: RawClient, topic: str) -> int:
    return len(records_in(fetch(client, topic, isolation_level=1).records))


class Held:
    """A request that waits until the test releases it."""

    def __init__(self, broker: fencepost.Broker, api: ApiKey, **more: Any) -> None:
        self._broker = broker
        self._resume: list[Callable[[], None]] = []
        broker.call(lambda node: node.faults.delay(api, self._resume.append, **more))

    def wait(self) -> None:
        while not self._resume:
            self._broker.call(lambda node: None)

    def resume(self) -> None:
        self.wait()
        self._broker.call(lambda node: self._resume.pop()())


# -- fail ------------------------------------------------------------------------------------------


def test_a_failed_request_has_no_effect_and_the_next_one_succeeds(
    broker: fencepost.Broker, client: RawClient, transaction: Transaction
) -> None:
    broker.call(lambda node: node.faults.fail(ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR))
    replies = [client.call(ApiKey.END_TXN, OLDER, transaction.commit_request())]
    assert committed(client, transaction.topic) == 0
    replies.append(client.call(ApiKey.END_TXN, OLDER, transaction.commit_request()))
    assert [reply.error_code for reply in replies] == [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
    assert committed(client, transaction.topic) == 1


def test_a_fault_applies_to_the_first_request_that_matches(
    broker: fencepost.Broker, client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    chosen, spared = (Transaction(client, topic, name) for name in ("chosen", "spared"))

    def is_chosen(request: Any) -> bool:
        return bool(request.transactional_id == "chosen")

    broker.call(
        lambda node: node.faults.fail(
            ApiKey.END_TXN, ErrorCode.COORDINATOR_NOT_AVAILABLE, fits=is_chosen
        )
    )
    outcomes = [
        client.call(ApiKey.END_TXN, OLDER, each.commit_request()).error_code
        for each in (spared, chosen, chosen)
    ]
    assert outcomes == [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]


# -- drop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [True, False])
def test_a_dropped_request_closes_the_connection_and_takes_effect_only_if_wanted(
    broker: fencepost.Broker,
    client: RawClient,
    other: RawClient,
    transaction: Transaction,
    complaints: Complaints,
    effect: bool,
) -> None:
    broker.call(lambda node: node.faults.drop(ApiKey.END_TXN, effect=effect))
    client.send(ApiKey.END_TXN, OLDER, transaction.commit_request())
    assert client.is_closed_by_broker()
    assert len(complaints()) == 1
    assert committed(other, transaction.topic) == effect
    # The client got no reply and retries; it gets the reply to its first request.
    again = other.call(ApiKey.END_TXN, OLDER, transaction.commit_request())
    assert again.error_code == ErrorCode.NONE
    assert committed(other, transaction.topic) == 1


def test_a_lost_reply_is_durable_before_its_connection_is_cut() -> None:
    steps: list[tuple[str, int]] = []

    def watch(node: Any) -> None:
        node.runtime.crash_points = lambda step: steps.append((step, node.connection_count))
        node.faults.drop(ApiKey.END_TXN, effect=True)

    with (
        fencepost.Broker(durability="fsync") as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        create_topic(client, "t")
        broker.produce("t", "x", transactional_id="id")  # The coordinator serves it from here on.
        while broker.call(lambda node: node.connection_count) > 1:
            pass
        transaction = Transaction(client, "t", "id")
        broker.call(watch)
        client.send(ApiKey.END_TXN, OLDER, transaction.commit_request())
        assert client.is_closed_by_broker()
        assert steps[-1] == ("commit.complete-durable", 1)


# -- delay -----------------------------------------------------------------------------------------


def test_a_delayed_request_blocks_only_its_own_connection(
    broker: fencepost.Broker, client: RawClient, other: RawClient, transaction: Transaction
) -> None:
    held = Held(broker, ApiKey.END_TXN)
    ending = client.send(ApiKey.END_TXN, OLDER, transaction.commit_request())
    behind = client.send(ApiKey.METADATA, 9, METADATA)
    held.wait()
    assert other.call(ApiKey.METADATA, 9, METADATA).brokers
    assert committed(other, transaction.topic) == 0
    held.resume()
    assert client.reply(ApiKey.END_TXN, OLDER, ending).error_code == ErrorCode.NONE
    assert client.reply(ApiKey.METADATA, 9, behind).brokers
    assert committed(other, transaction.topic) == 1


def test_a_delayed_request_takes_effect_after_its_client_has_disconnected(
    broker: fencepost.Broker, client: RawClient, other: RawClient, transaction: Transaction
) -> None:
    """Like a request that the network delays."""
    held = Held(broker, ApiKey.END_TXN)
    client.send(ApiKey.END_TXN, OLDER, transaction.commit_request())
    held.wait()
    client.close()
    held.resume()
    assert committed(other, transaction.topic) == 1


def test_requests_after_a_delayed_first_write_of_a_transaction_stay_in_order() -> None:
    """The write is held twice: by the fault, and while the coordinator adds its partition (TV2)."""
    with Stage(durability="fsync") as stage:
        create_topic(stage, "t")
        producer = WireProducer(stage, "id").initialise()
        held: list[Callable[[], None]] = []
        stage.node.faults.delay(ApiKey.PRODUCE, held.append)
        line = stage.connect()
        written = []
        for sequence in range(3):
            batch = batch_of(
                b"%d" % sequence,
                producer_id=producer.producer_id,
                epoch=producer.epoch,
                sequence=sequence,
                transactional=True,
            )
            request = produce_request("t", batch, transactional_id="id")
            written.append(line.send(ApiKey.PRODUCE, FIRST_OF_TV2, request))
        held.pop()()
        outcomes = [
            line.reply(ApiKey.PRODUCE, FIRST_OF_TV2, number).responses[0].partition_responses[0]
            for number in written
        ]
        assert [(each.error_code, each.base_offset) for each in outcomes] == [
            (0, 0),
            (0, 1),
            (0, 2),
        ]


def test_a_connection_stops_reading_with_the_first_request_behind_one_that_holds_it_back() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        held: list[Callable[[], None]] = []
        stage.node.faults.delay(ApiKey.PRODUCE, held.append)
        line = stage.connect()
        request = produce_request("t", batch_of(b"x"))
        first = line.send(ApiKey.PRODUCE, FIRST_OF_TV2, request)
        assert is_reading(line)
        later = [line.send(ApiKey.PRODUCE, FIRST_OF_TV2, request) for _ in range(100)]
        assert not is_reading(line)
        assert not line.replies
        held.pop()()
        for number in (first, *later):
            reply = line.reply(ApiKey.PRODUCE, FIRST_OF_TV2, number)
            assert reply.responses[0].partition_responses[0].error_code == 0
        assert is_reading(line)


def is_reading(line: Line) -> bool:
    return not line.wire.is_reading_paused


# -- the trace -------------------------------------------------------------------------------------


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[fencepost.Broker, Path]]:
    path = tmp_path / "trace.jsonl"
    with fencepost.Broker(trace=str(path)) as broker:
        yield broker, path


def lines_of(path: Path, api: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["format"], lines[0]["version"], lines[0]["source"]) == (
        "fencepost-tap",
        1,
        "broker",
    )
    return [line for line in lines[1:] if line["api"] == api]


def test_a_transaction_can_be_followed_in_the_trace(traced: tuple[fencepost.Broker, Path]) -> None:
    broker, path = traced
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        transaction = Transaction(client, "t", "transfer-1")
        client.call(ApiKey.END_TXN, OLDER, transaction.commit_request())
    identity = {"producer_id": transaction.producer_id, "transactional_id": "transfer-1"}
    (request, reply) = lines_of(path, "EndTxn")
    assert request["kind"] == "request"
    assert request["body"].items() >= {**identity, "committed": True}.items()
    assert (reply["kind"], reply["correlation_id"]) == ("reply", request["correlation_id"])
    assert reply["errors"] == []
    assert reply["duration_us"] == reply["time_us"] - request["time_us"]
    assert reply["connection"] == request["connection"]
    (asked, answered) = lines_of(path, "InitProducerId")
    assert asked["body"]["transactional_id"] == "transfer-1"
    assert answered["body"]["producer_id"] == transaction.producer_id
    (written, acknowledged) = lines_of(path, "Produce")
    assert written["body"]["transactional_id"] == "transfer-1"
    records = written["body"]["topic_data"][0]["partition_data"][0]["records"]
    assert 0 < records["size_bytes"] < written["size_bytes"]
    (batch,) = records["batches"]
    assert (batch["producer_id"], batch["base_sequence"]) == (transaction.producer_id, 0)
    assert batch["transactional"]
    assert acknowledged["kind"] == "reply"


def test_the_trace_has_errors_by_name_and_requests_that_a_fault_made_fail(
    traced: tuple[fencepost.Broker, Path],
) -> None:
    broker, path = traced
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        transaction = Transaction(client, "t", "transfer-1")
        broker.call(lambda node: node.faults.fail(ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR))
        client.call(ApiKey.END_TXN, OLDER, transaction.commit_request())
    (request, reply) = lines_of(path, "EndTxn")
    assert (request["kind"], reply["kind"]) == ("request", "reply")
    assert reply["errors"] == ["NOT_COORDINATOR"]
    assert (reply["body"]["error_code"], reply["body"]["error"]) == (16, "NOT_COORDINATOR")
