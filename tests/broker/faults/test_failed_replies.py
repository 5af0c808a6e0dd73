"""`fail` for every API and version of the handler table: the error arrives where clients look.

Method: a request with two items in every array goes to a broker with a fault on its API. In the
decoded reply the error is that of the whole, or there are as many errors as the request names
items, and their names are those of the request. The expectation follows from the schema alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.broker.faults.failed_replies import ITEMS
from fencepost.broker.handlers import HANDLERS
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import decode_request
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from fencepost.wire.plan import plan_of
from fencepost.wire.schema import Form
from tests.broker.conftest import Complaints
from tests.broker.raw import RawClient, frame_as_written
from tests.broker.requests import create_topic
from tests.wire.samples import fill

EVERY_VERSION = [
    (key, version)
    for key in sorted(HANDLERS)
    for version in range(API[key].min_version, API[key].max_version + 1)
]
ERROR = ErrorCode.POLICY_VIOLATION
"""An error that no handler of this broker returns by itself."""


class Distinct:
    """Two items in every array, nothing null, and every name and number another one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def integer(self, low: int, high: int) -> int:
        # `fill` counts with 0 to 2 or 3: the largest is "present", "not null" and "two items".
        return high if high <= 3 else min(max(low, next(self._numbers)), high)

    def text(self) -> str:
        return f"name-{next(self._numbers)}"

    def binary(self, size: int | None = None) -> bytes:
        return next(self._numbers).to_bytes(16 if size is None else size, "big")

    def real(self) -> float:
        return 1.0


def errors_in(form: Any) -> Iterator[int]:
    """The error codes of all items of a reply, at every depth."""
    for each in form.form_fields:
        if each.is_array and each.is_struct:
            for item in getattr(form, each.name) or ():
                for inner in item.form_fields:
                    name = inner.name
                    if name.endswith("error_code") and name != "topic_config_error_code":
                        yield getattr(item, name)
                yield from errors_in(item)


def texts_in(value: Any) -> set[Any]:
    """Every name and number of a form that can tell one item from another."""
    if isinstance(value, Form):
        return set().union(*(texts_in(getattr(value, f.name)) for f in value.form_fields))
    if isinstance(value, list):
        return set().union(*map(texts_in, value))
    return {value} if isinstance(value, str | int | bytes) else set()


@pytest.fixture(scope="module")
def shared() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as broker:
        yield broker


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_the_error_of_a_fault_arrives_in_every_api_and_version(
    shared: fencepost.Broker, complaints: Complaints, key: ApiKey, version: int
) -> None:
    request = fill(plan_of(API[key].request, version), Distinct())
    if key is ApiKey.PRODUCE:
        request.acks = -1
    if key is ApiKey.API_VERSIONS:
        request.client_software_name = request.client_software_version = "raw"
    frame = frame_as_written(key, version, request)
    shared.call(lambda node: node.faults.fail(key, ERROR))
    with RawClient(shared.bootstrap_servers) as client:
        client.send_bytes(frame)
        reply = client.reply(key, version, 1)
    assert shared.call(lambda node: not node.faults), "the fault was used"
    assert complaints() == []
    if getattr(reply, "error_code", 0) == ERROR:
        return
    # The request in its newest shape, as the handler would see it.
    header = len(frame) - len(frame_body(key, version, request))
    asked = decode_request(key, version, memoryview(frame), header)
    named = 1
    for level in ITEMS.get(key, ()):
        items = getattr(asked, level.requested)
        assert len(items) in (1, 2)
        named *= len(items)
        asked = items[0]
        if key is ApiKey.OFFSET_FETCH and version > 1:
            break  # From version 2 on the error is the group's.
    errors = list(errors_in(reply))
    if (key, version) == (ApiKey.OFFSET_FETCH, 1):
        errors.remove(0)  # The group's, which this version does not have.
    assert set(errors) == {ERROR}, reply
    assert len(errors) >= named


def frame_body(key: ApiKey, version: int, request: Any) -> bytes:
    from fencepost.wire.compile import encode

    return encode(request, version)


NAMED_BY = {
    ApiKey.PRODUCE: ("name", "topic_id", "index"),
    ApiKey.FETCH: ("topic", "topic_id", "partition_index"),
    ApiKey.LIST_OFFSETS: ("name", "partition_index"),
    ApiKey.METADATA: ("name", "topic_id"),
    ApiKey.OFFSET_COMMIT: ("name", "topic_id", "partition_index"),
    ApiKey.FIND_COORDINATOR: ("key",),
    ApiKey.DESCRIBE_GROUPS: ("group_id",),
    ApiKey.CREATE_TOPICS: ("name",),
    ApiKey.DELETE_TOPICS: ("name", "topic_id"),
    ApiKey.DELETE_RECORDS: ("name", "partition_index"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("topic", "partition"),
    ApiKey.WRITE_TXN_MARKERS: ("producer_id", "name", "partition_index"),
    ApiKey.TXN_OFFSET_COMMIT: ("name", "partition_index"),
    ApiKey.DESCRIBE_CONFIGS: ("resource_type", "resource_name"),
    ApiKey.ALTER_CONFIGS: ("resource_type", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("resource_type", "resource_name"),
    ApiKey.CREATE_PARTITIONS: ("name",),
    ApiKey.DELETE_GROUPS: ("group_id",),
    ApiKey.DESCRIBE_PRODUCERS: ("name", "partition_index"),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transactional_id",),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("name",),
}
"""What tells the items of each reply apart."""
NOTHING = (None, "", 0, bytes(16))
"""What a version reads in a field that it does not have."""


@pytest.mark.parametrize("key", sorted(NAMED_BY))
def test_the_items_of_a_failed_reply_are_those_of_the_request(
    shared: fencepost.Broker, key: ApiKey
) -> None:
    for version in range(API[key].min_version, API[key].max_version + 1):
        request = fill(plan_of(API[key].request, version), Distinct())
        if key is ApiKey.PRODUCE:
            request.acks = -1
        shared.call(lambda node: node.faults.fail(key, ERROR))
        with RawClient(shared.bootstrap_servers) as client:
            client.send_bytes(frame_as_written(key, version, request))
            reply = client.reply(key, version, 1)
        asked = texts_in(request)
        shown = list(identities(reply, NAMED_BY[key]))
        assert shown or key is ApiKey.FIND_COORDINATOR
        for each in shown:
            assert each in asked or each in NOTHING, f"{API[key].name} v{version}: {each!r}"
        distinct = [each for each in shown if each not in NOTHING]
        assert len(set(distinct)) == len(distinct)
        assert len(distinct) >= 2 or (key is ApiKey.FIND_COORDINATOR and version < 4)


def identities(form: Any, names: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(form, list):
        for each in form:
            yield from identities(each, names)
    elif isinstance(form, Form):
        for field in form.form_fields:
            value = getattr(form, field.name)
            if field.name in names:
                yield value
            elif field.is_array and field.name not in ("brokers", "node_endpoints"):
                yield from identities(value, names)


# -- the exceptions


def fetch_request(*partitions: int) -> FetchRequest:
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=p) for p in partitions])]
    return FetchRequest(topics=topics if partitions else [], max_wait_ms=0)


@pytest.mark.parametrize("version", [4, 12])
def test_fetch_has_the_errors_of_partitions_there_and_those_of_sessions_at_the_top(
    shared: fencepost.Broker, version: int
) -> None:
    with RawClient(shared.bootstrap_servers) as client:
        shared.call(lambda node: node.faults.fail(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        reply = client.call(ApiKey.FETCH, version, fetch_request(0, 1))
        assert reply.error_code == 0
        assert [p.error_code for p in reply.responses[0].partitions] == [6, 6]
        if version >= 7:
            shared.call(
                lambda node: node.faults.fail(ApiKey.FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            )
            reply = client.call(ApiKey.FETCH, version, fetch_request(0))
            assert (reply.error_code, reply.responses) == (70, [])


def test_a_fault_waits_for_a_request_whose_reply_has_a_place_for_the_error(
    shared: fencepost.Broker,
) -> None:
    shared.call(lambda node: node.faults.fail(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE))
    with RawClient(shared.bootstrap_servers) as client:
        assert client.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
        assert shared.call(lambda node: bool(node.faults)), "no topic is named, so no place"
        named = [MetadataRequestTopic(name="a-topic")]
        reply = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=named))
    assert [(each.name, each.error_code) for each in reply.topics] == [("a-topic", 5)]
    assert reply.brokers, "a client without brokers is lost"


def test_a_request_for_all_topics_gets_the_error_at_each(shared: fencepost.Broker) -> None:
    with RawClient(shared.bootstrap_servers) as client:
        create_topic(client, "one-of-all")
        shared.call(lambda node: node.faults.fail(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE))
        reply = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    assert {each.error_code for each in reply.topics} == {5}
    assert "one-of-all" in {each.name for each in reply.topics}


def test_a_producer_without_acknowledgements_sees_an_error_as_a_closed_connection(
    shared: fencepost.Broker, complaints: Complaints
) -> None:
    shared.call(lambda node: node.faults.fail(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0)])]
    with RawClient(shared.bootstrap_servers) as client:
        client.send(ApiKey.PRODUCE, 9, ProduceRequest(acks=0, topic_data=data))
        assert client.is_closed_by_broker()
    assert len(complaints()) == 1


def test_api_versions_refuses_a_version_in_the_layout_that_every_client_can_read(
    shared: fencepost.Broker,
) -> None:
    shared.call(lambda node: node.faults.fail(ApiKey.API_VERSIONS, ErrorCode.UNSUPPORTED_VERSION))
    request = API[ApiKey.API_VERSIONS].request(
        client_software_name="raw", client_software_version="1"
    )
    with RawClient(shared.bootstrap_servers) as client:
        reply = client.call(ApiKey.API_VERSIONS, 4, request)
        assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.call(ApiKey.API_VERSIONS, 3, request).error_code == 0
