"""Every API of the handler table in every advertised version: each request gets a reply.

Method: empty requests, requests with one item in every array, and requests full of odd values, all
well formed. The reply may be any error, but there must be one, on a connection that stays open,
and the broker must not fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fencepost
from fencepost.base import patterns
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.broker.handlers import HANDLERS
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.plan import plan_of
from tests.broker.conftest import Complaints
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient, frame_as_written
from tests.broker.requests import batch_of, create_topic
from tests.halves import examples
from tests.wire.samples import fill

EVERY_VERSION = [
    (key, version)
    for key in sorted(HANDLERS)
    for version in range(API[key].min_version, API[key].max_version + 1)
]
FIRST_AND_LAST = [
    (key, version)
    for key, version in EVERY_VERSION
    if version in (API[key].min_version, API[key].max_version)
]


def plain_request(key: ApiKey) -> Any:
    """The smallest request of an API that gets a reply."""
    if key is ApiKey.API_VERSIONS:
        return ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
    if key is ApiKey.PRODUCE:
        return API[key].request(acks=-1, timeout_ms=1_000)
    return API[key].request()


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_an_empty_request_gets_a_reply(
    client: RawClient, complaints: Complaints, key: ApiKey, version: int
) -> None:
    client.send_bytes(frame_as_written(key, version, plain_request(key)))
    client.reply(key, version, 1)
    assert complaints() == []


class Ordinary:
    """Values that a client might send: existing names, small numbers, one of everything."""

    def integer(self, low: int, high: int) -> int:
        # `fill` counts with 0 to 2 or 3: the largest is "present", "not null" and "two items".
        return high if high <= 3 else min(max(1, low), high)

    def text(self) -> str:
        return "orders"

    def binary(self, size: int | None = None) -> bytes:
        return bytes(batch_of(b"value", key=b"key")) if size is None else TOPIC_ID[:size]

    def real(self) -> float:
        return 1.0


TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize(("key", "version"), FIRST_AND_LAST)
def test_a_request_with_a_value_in_every_field_gets_a_reply(key: ApiKey, version: int) -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        request = fill(plan_of(API[key].request, version), Ordinary())
        line = stage.connect()
        line.send_bytes(frame_as_written(key, version, request))
        line.reply(key, version, 1)


def prepare(stage: Stage) -> None:
    """A topic, and both coordinators."""
    create_topic(stage, "orders", 2)
    for key_type, topic in ((0, CONSUMER_OFFSETS_TOPIC), (1, TRANSACTION_STATE_TOPIC)):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["orders"])
        stage.call(ApiKey.FIND_COORDINATOR, 4, request)
        assert stage.node.metadata.partition_count(topic) > 0


class Odd:
    """Values that no client should send, drawn by hypothesis."""

    NAMES = (
        "orders",
        "",
        "no such",
        "a/b",
        ".",
        "__consumer_offsets",
        "__transaction_state",
        "x" * 300,
    )
    NUMBERS = (-(2**63), -(2**31), -32768, -3, -2, -1, 0, 1, 2, 3, 50, 32767, 2**31 - 1, 2**63 - 1)

    def __init__(self, draw: Any, topic_id: bytes) -> None:
        self._draw = draw
        self._ids = (topic_id, bytes(16), TOPIC_ID)

    def integer(self, low: int, high: int) -> int:
        fitting = [number for number in self.NUMBERS if low <= number <= high]
        drawn: int = self._draw(st.sampled_from(fitting))
        return drawn

    def text(self) -> str:
        name: str = self._draw(st.sampled_from(self.NAMES))
        return name

    def binary(self, size: int | None = None) -> bytes:
        if size == 16:
            topic_id: bytes = self._draw(st.sampled_from(self._ids))
            return topic_id
        content: bytes = self._draw(
            st.sampled_from((bytes(batch_of(b"v", key=b"k")), b"", b"garbage"))
        )
        return content

    def real(self) -> float:
        return -1.0


@settings(max_examples=examples(150))
@given(data=st.data())
def test_well_formed_nonsense_gets_a_reply_and_breaks_nothing(data: st.DataObject) -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        topic_id = stage.node.metadata.topic_id("orders")
        assert topic_id is not None
        choices = Odd(data.draw, topic_id)
        for _ in range(data.draw(st.integers(1, 4))):
            key, version = data.draw(st.sampled_from(EVERY_VERSION))
            request = fill(plan_of(API[key].request, version), choices)
            line = stage.connect()
            line.send_bytes(frame_as_written(key, version, request))
            stage.settle()
            stage.advance(1_000)
            wants_no_answer = key is ApiKey.PRODUCE and request.acks == 0
            assert wants_no_answer or not line.is_closed, (
                f"{API[key].name} v{version} closed the connection"
            )
        stage.stop()
        with_what_it_left = stage.again()
        assert with_what_it_left.call(ApiKey.METADATA, 9, plain_request(ApiKey.METADATA)).brokers
        with_what_it_left.stop()


def test_api_versions_lists_the_table_of_apis(broker: fencepost.Broker, client: RawClient) -> None:
    reply = client.call(ApiKey.API_VERSIONS, 4, plain_request(ApiKey.API_VERSIONS))
    shown = {row.api_key: (row.min_version, row.max_version) for row in reply.api_keys}
    assert shown == {int(key): (API[key].advertised_min, API[key].max_version) for key in HANDLERS}


def test_list_transactions_v2_is_advertised_only_with_the_re2_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns, "is_available", lambda: False)
    request = plain_request(ApiKey.LIST_TRANSACTIONS)
    # A fresh broker, because one that has served v2 keeps its route.
    with fencepost.Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        reply = client.call(ApiKey.API_VERSIONS, 4, plain_request(ApiKey.API_VERSIONS))
        (shown,) = (row for row in reply.api_keys if row.api_key == ApiKey.LIST_TRANSACTIONS)
        assert (shown.min_version, shown.max_version) == (0, 1)
        assert client.call(ApiKey.LIST_TRANSACTIONS, 1, request)
        client.send(ApiKey.LIST_TRANSACTIONS, 2, request)
        assert client.is_closed_by_broker()
