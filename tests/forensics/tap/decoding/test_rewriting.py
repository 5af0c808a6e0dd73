"""Goal: the client gets every reply as the broker sent it, except for addresses.

Method: replies of every API and version are filled from a seed, sent through a `Conversation`, and
decoded again by wire's own readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.base.failures import FencepostError
from fencepost.forensics.tap.decoding.exchange import COPIED_BYTES
from fencepost.forensics.tap.decoding.walk import holds_endpoints
from fencepost.records.builder import build_pairs
from fencepost.wire.apis import API, Api, ApiKey
from fencepost.wire.compile import decode, encode
from fencepost.wire.forms.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from fencepost.wire.forms.metadata import MetadataResponse, MetadataResponseBroker
from fencepost.wire.plan import Plan, plan_of
from fencepost.wire.schema import versions_of
from tests.forensics.tap.talk import LOCAL, Talk, local_port, reply_frame, request_frame
from tests.wire.samples import SeededValues, fill

WITH_ADDRESSES = {
    "Produce": range(10, 14),
    "Fetch": range(16, 19),
    "Metadata": range(14),
    "FindCoordinator": range(7),
    "DescribeQuorum": range(2, 3),
    "DescribeCluster": range(3),
    "ShareFetch": range(1, 3),
    "ShareAcknowledge": range(1, 3),
}
"""As Kafka's schema has them."""


def test_exactly_the_known_replies_hold_addresses() -> None:
    found = {
        api.name: [v for v in versions_of(api.response) if holds_endpoints(api.response, v)]
        for api in API.values()
    }
    assert {name: versions for name, versions in found.items() if versions} == {
        name: list(versions) for name, versions in WITH_ADDRESSES.items()
    }


def rewritten(form: Any, plan: Plan) -> Any:
    """The form that the client should get."""
    names = {place.name for place in plan.places if place.present}
    is_endpoint = {"host", "port"} <= names
    for place in plan.places:
        value = getattr(form, place.name)
        if place.kind == "struct" and place.present and value is not None:
            for inner in value if place.is_array else [value]:
                rewritten(inner, plan.inner(place))
    if is_endpoint and form.host and form.port > 0:
        form.host, form.port = LOCAL, local_port(form.port)
    return form


@pytest.mark.parametrize("api", API.values(), ids=attrgetter("name"))
def test_a_rewritten_reply_differs_in_addresses_only(api: Api) -> None:
    served = [version for version in versions_of(api.response) if api.serves(version)]
    for version, seed in product(served, range(6)):
        plan = plan_of(api.response, version)
        form = fill(plan, SeededValues(seed * 31 + version))
        if api.key is ApiKey.API_VERSIONS:
            form.error_code = 0  # UNSUPPORTED_VERSION changes the layout.
        sent = reply_frame(api, version, form)
        got, line = Talk().exchange(api, version, sent)
        assert int.from_bytes(got[:4], "big") == len(got) - 4
        start = 9 if api.response_header_version(version) == 1 else 8
        read = decode(api.response, version, got[start:])
        assert read == rewritten(decode(api.response, version, sent[start:]), plan)
        assert encode(read, version) == got[start:]
        assert line["api"] == api.name
        assert line.get("decoded") is not False
        if not holds_endpoints(api.response, version):
            assert got == sent


@given(which=st.sampled_from(sorted(WITH_ADDRESSES)), seed=st.integers(0, 10**6), data=st.data())
def test_frames_cut_anywhere_give_the_same_bytes_and_lines(
    which: str, seed: int, data: st.DataObject
) -> None:
    api = next(api for api in API.values() if api.name == which)
    version = data.draw(st.sampled_from(list(versions_of(api.response))))
    plan = plan_of(api.response, version)
    sent = b"".join(
        reply_frame(api, version, fill(plan, SeededValues(seed + number)), number)
        for number in range(3)
    )
    cuts = data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=20))
    assert through(api, version, sent, sorted(cuts)) == through(api, version, sent, [])


def test_a_frame_may_be_cut_at_every_byte() -> None:
    api, version = API[ApiKey.METADATA], 12
    brokers = [MetadataResponseBroker(node_id=n, host=f"kafka-{n}", port=9092) for n in range(3)]
    sent = b"".join(
        reply_frame(api, version, MetadataResponse(brokers=brokers), number) for number in range(3)
    )
    whole = through(api, version, sent, [])
    for cut in range(1, len(sent)):
        assert through(api, version, sent, [cut]) == whole
    assert through(api, version, sent, list(range(1, len(sent)))) == whole


def through(api: Api, version: int, sent: bytes, cuts: list[int]) -> tuple[bytes, list[Any]]:
    talk = Talk()
    for number in range(3):
        talk.ask(request_frame(api, version, b"", number))
    talk.lines.clear()
    got = talk.answer(sent, cuts)
    for line in talk.lines:
        del line["time_us"], line["duration_us"]
    return got, talk.lines


# -- large replies ---------------------------------------------------------------------------------


def large_fetch(endpoints: int, size: int = 3 * COPIED_BYTES) -> FetchResponse:
    batch = build_pairs([(b"k", bytes(size))], timestamp_ms=1, producer_id=7, producer_epoch=2).data
    partitions = [
        PartitionData(partition_index=n, high_watermark=5, records=bytes(batch)) for n in range(2)
    ]
    return FetchResponse(
        responses=[FetchableTopicResponse(topic_id=bytes(range(16)), partitions=partitions)],
        node_endpoints=[
            NodeEndpoint(node_id=n, host=f"kafka-{n}", port=9092 + n) for n in range(endpoints)
        ],
    )


def random_cuts(size: int) -> Iterator[list[int]]:
    yield []
    yield list(range(1, size, 4_096))
    yield list(range(size - 200, size))


@pytest.mark.parametrize("version", [4, 11, 12, 15, 16, 18])
def test_a_large_fetch_reply_without_endpoints_passes_unchanged(version: int) -> None:
    sent = reply_frame(API[ApiKey.FETCH], version, large_fetch(0))
    for cuts in random_cuts(len(sent)):
        got, line = Talk().exchange(API[ApiKey.FETCH], version, sent, cuts)
        assert got == sent
        (topic,) = line["body"]["responses"]
        batch = topic["partitions"][1]["records"]["batches"][0]
        assert (batch["producer_id"], batch["producer_epoch"]) == (7, 2)


def test_a_large_fetch_reply_streams_and_its_endpoints_are_hidden() -> None:
    """The size is sent before the endpoints are seen, so they cannot be replaced."""
    version = 17
    sent = reply_frame(API[ApiKey.FETCH], version, large_fetch(2))
    for cuts in random_cuts(len(sent)):
        got, line = Talk().exchange(API[ApiKey.FETCH], version, sent, cuts)
        read = decode(FetchResponse, version, got[9:])
        assert read.node_endpoints == []
        assert read.responses == decode(FetchResponse, version, sent[9:]).responses
        assert len(got) == len(sent)
        assert len(line["body"]["node_endpoints"]) == 2


def test_a_large_reply_is_not_kept_while_it_streams() -> None:
    sent = reply_frame(API[ApiKey.FETCH], 12, large_fetch(0, size=8 * COPIED_BYTES))
    talk = Talk()
    talk.exchange(API[ApiKey.FETCH], 12, b"")
    passed = 0
    for start in range(0, len(sent), 1000):
        piece = memoryview(sent)[start : start + 1000]
        passed += sum(map(len, talk.conversation.from_broker(piece, 0)))
        assert passed >= start + len(piece) - 8, "bytes wait for no reason"


def test_a_large_metadata_reply_is_rewritten() -> None:
    brokers = [
        MetadataResponseBroker(node_id=n, host=f"kafka-{n}.example.com", port=9092)
        for n in range(3_000)
    ]
    api, version = API[ApiKey.METADATA], 12
    sent = reply_frame(api, version, MetadataResponse(brokers=brokers))
    assert len(sent) > COPIED_BYTES
    got, line = Talk().exchange(api, version, sent, list(range(1, len(sent), 777)))
    read = decode(MetadataResponse, version, got[9:])
    assert {broker.host for broker in read.brokers} == {LOCAL}
    assert len(read.brokers) == 3_000
    assert line["body"]["brokers"][-1] == "and 2980 more"


def test_a_coordinator_that_is_not_known_keeps_its_empty_address() -> None:
    api = API[ApiKey.FIND_COORDINATOR]
    form = api.response(error_code=15, node_id=-1, host="", port=-1)
    sent = reply_frame(api, 2, form)
    got, line = Talk().exchange(api, 2, sent)
    assert got == sent
    assert line["errors"] == ["COORDINATOR_NOT_AVAILABLE"]


def test_fields_that_we_do_not_know_survive_the_rewriting() -> None:
    """A newer broker may add tagged fields at any level."""
    api, version = API[ApiKey.DESCRIBE_CLUSTER], 0
    form = api.response(cluster_id="c")
    body = encode(form, version)
    assert body[-1] == 0
    unknown = b"\x01\x63\x05hello"
    sent = reply_frame(api, version, form)[:-1] + unknown
    sent = (len(sent) - 4).to_bytes(4, "big") + sent[4:]
    broker = b"\x02\x00\x00\x00\x01\x06kafka\x00\x00\x23\x84\x00\x01\x07\x02zz"
    sent = sent.replace(b"\x01\x80\x00\x00\x00\x01\x63", broker + b"\x80\x00\x00\x00\x01\x63")
    sent = (len(sent) - 4).to_bytes(4, "big") + sent[4:]
    got, _ = Talk().exchange(api, version, sent)
    assert got[4:] == sent[4:].replace(
        b"\x06kafka\x00\x00\x23\x84", b"\x0a127.0.0.1" + local_port(0x2384).to_bytes(4, "big")
    )


# -- hostile bytes ---------------------------------------------------------------------------------


@given(
    which=st.sampled_from(sorted(WITH_ADDRESSES)),
    seed=st.integers(0, 10**6),
    position=st.integers(0, 10_000),
    byte=st.integers(0, 255),
)
@example(which="Produce", seed=4832, position=237, byte=0)  # The size of a field with addresses.
def test_a_damaged_reply_passes_with_its_size_or_ends_the_connection(
    which: str, seed: int, position: int, byte: int
) -> None:
    api = next(api for api in API.values() if api.name == which)
    version = versions_of(api.response)[-1]
    sent = bytearray(
        reply_frame(api, version, fill(plan_of(api.response, version), SeededValues(seed)))
    )
    place = 8 + position % (len(sent) - 8) if len(sent) > 8 else 0
    sent[place] = byte
    try:
        got, _ = Talk().exchange(api, version, bytes(sent))
    except FencepostError:
        return
    assert int.from_bytes(got[:4], "big") == len(got) - 4
