"""Whole requests and responses: headers, sizes, and the rules of ApiVersions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.wire.apis import API, Api, ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_request_header,
)
from fencepost.wire.compile import encode
from fencepost.wire.forms.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from fencepost.wire.forms.end_txn import EndTxnRequest, EndTxnResponse
from fencepost.wire.forms.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from fencepost.wire.forms.request_header import RequestHeader as RequestHeaderForm
from fencepost.wire.plan import plan_of
from tests.wire.samples import SeededValues, fill

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer

EVERY_API = [pytest.param(api, id=api.name) for api in API.values()]
END_TXN = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=1, committed=True)


def frame_of(chunks: list[Buffer]) -> memoryview:
    """The frame that the other side receives, after a check of its size."""
    data = b"".join(chunks)
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    return memoryview(bytearray(data))[4:]


def test_an_old_request_header_has_no_tags() -> None:
    chunks = encode_request(API[ApiKey.END_TXN], 0, 5, "me", END_TXN)
    assert b"".join(chunks) == bytes.fromhex(
        "0000001a 001a 0000 00000005 0002 6d65 0001 74 0000000000000007 0001 01"
    )


def test_a_flexible_request_header_has_tags_after_a_client_id_in_the_old_format() -> None:
    chunks = encode_request(API[ApiKey.END_TXN], 3, 5, None, END_TXN)
    assert b"".join(chunks) == bytes.fromhex(
        "00000019 001a 0003 00000005 ffff 00 0274 0000000000000007 0001 01 00"
    )


@pytest.mark.parametrize("client_id", [None, "", "producer-é"])
@pytest.mark.parametrize("version", [0, 5])
def test_a_request_header_reads_back(client_id: str | None, version: int) -> None:
    frame = frame_of(encode_request(API[ApiKey.END_TXN], version, -3, client_id, END_TXN))
    header = read_request_header(frame)
    assert header.api_version == version
    assert header.correlation_id == -3
    assert header.client_id == client_id
    assert header.api_key is ApiKey.END_TXN
    assert header.api.serves(header.api_version)
    assert decode_request(header.api, version, frame, header.body_offset) == END_TXN


@pytest.mark.parametrize("version", [1, 2])
def test_the_header_reader_agrees_with_the_header_form(version: int) -> None:
    api_version = 0 if version == 1 else 3
    form = RequestHeaderForm(
        request_api_key=26, request_api_version=api_version, correlation_id=9, client_id="abc"
    )
    data = encode(form, version)
    header = read_request_header(memoryview(data))
    assert (header.correlation_id, header.client_id) == (9, "abc")
    assert header.body_offset == len(data)


def test_header_tags_are_skipped() -> None:
    plain = bytes(frame_of(encode_request(API[ApiKey.END_TXN], 3, 1, "c", END_TXN)))
    strange = plain[:11] + bytes.fromhex("01 05 02 abcd") + plain[12:]
    header = read_request_header(memoryview(strange))
    assert decode_request(header.api, 3, memoryview(strange), header.body_offset) == END_TXN


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "no header"),
        ("001a 0000 00000001", "no header"),
        ("03e7 0000 00000001 ffff", "API key 999"),
        ("001a 0000 00000001 0005 6162", "longer than the bytes"),
        ("001a 0000 00000001 0001 ff", "not UTF-8"),
        ("001a 0003 00000001 ffff", "cut short"),
        ("001a 0003 00000001 ffff 01 00 7f", "not received"),
    ],
)
def test_an_invalid_header_is_a_wire_error(data: str, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        read_request_header(memoryview(bytes.fromhex(data)))


def test_the_header_of_an_unsupported_version_can_be_read() -> None:
    header = read_request_header(memoryview(bytes.fromhex("0000 0002 00000007 0001 63")))
    assert header.api_key is ApiKey.PRODUCE
    assert header.correlation_id == 7
    assert not header.api.serves(header.api_version)


def test_an_unsupported_version_is_never_decoded() -> None:
    with pytest.raises(AssertionError):
        decode_request(ApiKey.PRODUCE, 2, memoryview(bytes(100)), 10)


@pytest.mark.parametrize("version", [0, 5])
def test_a_response_reads_back(version: int) -> None:
    response = EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    frame = frame_of(encode_response(API[ApiKey.END_TXN], version, 11, response))
    assert decode_response(API[ApiKey.END_TXN], version, frame) == (11, response)
    assert read_correlation_id(frame) == 11


@pytest.mark.parametrize("data", ["", "000000", "00000001", "00000001 01"])
def test_a_truncated_response_is_a_wire_error(data: str) -> None:
    with pytest.raises(WireError):
        decode_response(ApiKey.END_TXN, 5, memoryview(bytes.fromhex(data)))


def test_an_unknown_version_of_api_versions_gets_a_reply_in_version_0() -> None:
    asked = encode_request(ApiKey.API_VERSIONS, 3, 4, "c", ApiVersionsRequest())
    frame = frame_of(asked)
    frame[3] = 99
    header = read_request_header(frame)
    assert header.api_key is ApiKey.API_VERSIONS
    assert not header.api.serves(header.api_version)
    refusal = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    answer = frame_of(encode_response(header.api, 0, header.correlation_id, refusal))
    assert answer == bytes.fromhex("00000004 0023 00000001 0012 0000 0004")
    assert decode_response(header.api, 4, answer) == (4, refusal)


def test_api_versions_has_no_tags_in_the_header_of_its_response() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, max_version=2)])
    frame = frame_of(encode_response(ApiKey.API_VERSIONS, 3, 1, response))
    assert frame[:6] == bytes.fromhex("00000001 0000")
    assert decode_response(ApiKey.API_VERSIONS, 3, frame) == (1, response)


def test_a_small_message_is_one_bytes_object() -> None:
    (only,) = encode_response(ApiKey.END_TXN, 5, 1, EndTxnResponse())
    assert type(only) is bytes


def test_large_records_of_a_response_are_sent_without_a_copy() -> None:
    first, second = memoryview(bytes(50_000)), bytes(60_000)
    partitions = [PartitionData(partition_index=i, records=[first, second]) for i in range(2)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    chunks = encode_response(ApiKey.FETCH, 11, 1, response)
    assert [chunk for chunk in chunks if chunk is first or chunk is second] == [first, second] * 2
    _, read = decode_response(ApiKey.FETCH, 11, frame_of(chunks))
    assert [len(p.records) for p in read.responses[0].partitions] == [110_000, 110_000]


def test_records_of_a_request_are_a_writable_part_of_its_frame() -> None:
    partition = PartitionProduceData(index=1, records=b"x" * 100)
    request = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )
    frame = frame_of(encode_request(ApiKey.PRODUCE, 9, 1, "c", request))
    read = decode_request(ApiKey.PRODUCE, 9, frame, read_request_header(frame).body_offset)
    read.topic_data[0].partition_data[0].records[:3] = b"abc"
    assert bytes(frame).count(b"abcx") == 1


@pytest.mark.parametrize("api", EVERY_API)
def test_every_version_of_every_api_round_trips(api: Api) -> None:
    for version in range(api.min_version, api.max_version + 1):
        # Reading raises the form to the newest shape; writing it again must give the same bytes.
        request = fill(plan_of(api.request, version), SeededValues(version))
        frame = sealed(api.request_header_version(version) == 2, request, version, api)
        header = read_request_header(frame)
        read = decode_request(api, version, frame, header.body_offset)
        assert frame_of(encode_request(api, version, 1, "c", read)) == frame
        response = fill(plan_of(api.response, version), SeededValues(version))
        head = bytes(4) + bytes(api.response_header_version(version))
        answer = memoryview(bytearray(head + encode(response, version)))
        _, read = decode_response(api, version, answer)
        assert frame_of(encode_response(api, version, 0, read)) == answer


def sealed(tagged: bool, form: object, version: int, api: Api) -> memoryview:
    head = struct.pack(">hhihc", api.key, version, 1, 1, b"c") + bytes(tagged)
    return memoryview(bytearray(head + encode(form, version)))
