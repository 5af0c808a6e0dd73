"""Requests, their replies, logins, and bytes that are not Kafka's."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.forensics.tap.decoding.exchange import COPIED_BYTES
from fencepost.records.builder import build_pairs
from fencepost.records.trace import MAX_ITEMS
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import encode_request, encode_response
from fencepost.wire.compile import encode
from fencepost.wire.forms.end_txn import EndTxnRequest, EndTxnResponse
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.forensics.tap.talk import Talk, framed, request_frame

SECRET = b"correct horse battery staple"


@pytest.fixture
def talk() -> Talk:
    return Talk()


def asked(api: ApiKey, version: int, number: int, form: object) -> bytes:
    return b"".join(encode_request(api, version, number, "client", form))


def answered(api: ApiKey, version: int, number: int, form: object) -> bytes:
    return b"".join(encode_response(api, version, number, form))


def batch(size: int = 10, sequence: int = 0, producer_id: int = 9) -> bytes:
    built = build_pairs(
        [(b"k", bytes(size))],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=sequence,
        transactional=True,
    )
    return bytes(built.data)


def produce(partitions: dict[int, bytes], acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=n, records=value) for n, value in partitions.items()]
    return ProduceRequest(
        transactional_id="refunds-1",
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


def test_an_exchange_has_its_key_fields_and_its_duration(talk: Talk) -> None:
    request = EndTxnRequest(
        transactional_id="refunds-1", producer_id=7, producer_epoch=2, committed=True
    )
    talk.ask(asked(ApiKey.END_TXN, 4, 5, request))
    talk.now_us += 1_000
    talk.answer(answered(ApiKey.END_TXN, 4, 5, EndTxnResponse(error_code=47)))
    sent, got = talk.lines
    assert (sent["kind"], sent["api"], sent["api_version"]) == ("request", "EndTxn", 4)
    assert sent["client_id"] == "client"
    assert sent["body"] == {
        "transactional_id": "refunds-1",
        "producer_id": 7,
        "producer_epoch": 2,
        "committed": True,
    }
    assert (got["kind"], got["correlation_id"], got["duration_us"]) == ("reply", 5, 1_001)
    assert got["errors"] == ["INVALID_PRODUCER_EPOCH"]
    assert got["body"]["error"] == "INVALID_PRODUCER_EPOCH"


@pytest.mark.parametrize("size", [10, 3 * COPIED_BYTES], ids=["small", "large"])
def test_a_produce_request_shows_its_batches_and_never_its_records(talk: Talk, size: int) -> None:
    wanted = {0: batch(size, sequence=4) + batch(size, sequence=5), 1: batch(size)}
    frame = asked(ApiKey.PRODUCE, 9, 1, produce(wanted))
    talk.ask(frame, list(range(1, len(frame), 1 + len(frame) // 50)))
    (line,) = talk.lines
    assert line["size_bytes"] == len(frame)
    assert line["body"]["transactional_id"] == "refunds-1"
    first, second = line["body"]["topic_data"][0]["partition_data"]
    assert first["records"]["size_bytes"] == len(wanted[0])
    assert [each["base_sequence"] for each in first["records"]["batches"]] == [4, 5]
    assert second["records"]["batches"] == [
        {
            "base_offset": 0,
            "record_count": 1,
            "producer_id": 9,
            "producer_epoch": 3,
            "base_sequence": 0,
            "transactional": True,
        }
    ]


def test_many_batches_of_a_partition_are_cut(talk: Talk) -> None:
    many = b"".join(batch(sequence=number) for number in range(MAX_ITEMS + 5))
    for records in (many, many + batch(COPIED_BYTES)):
        talk.ask(asked(ApiKey.PRODUCE, 9, 1, produce({0: records})))
        shown = talk.lines[-1]["body"]["topic_data"][0]["partition_data"][0]["records"]
        assert len(shown["batches"]) == MAX_ITEMS
        assert shown["more_batches"]


@pytest.mark.parametrize("size", [10, 3 * COPIED_BYTES], ids=["small", "large"])
def test_a_produce_request_with_acks_0_gets_no_reply(talk: Talk, size: int) -> None:
    end = EndTxnRequest(transactional_id="x")
    for number in range(1, 4):
        talk.ask(asked(ApiKey.PRODUCE, 9, number, produce({0: batch(size)}, acks=0)))
    assert talk.conversation.unanswered == 0
    talk.ask(asked(ApiKey.END_TXN, 1, 4, end))
    talk.answer(answered(ApiKey.END_TXN, 1, 4, EndTxnResponse()))
    assert [line["kind"] for line in talk.lines] == ["request"] * 4 + ["reply"]
    assert talk.lines[-1]["api"] == "EndTxn"


def test_pipelined_requests_get_their_own_replies(talk: Talk) -> None:
    requests = b"".join(
        asked(ApiKey.PRODUCE, 9, number, produce({0: batch(sequence=number)}))
        for number in range(5)
    )
    talk.ask(requests)
    replies = b"".join(
        answered(ApiKey.PRODUCE, 9, number, ProduceResponse(throttle_time_ms=number))
        for number in range(5)
    )
    assert talk.answer(replies, [3, 50, 51]) == replies
    got = [(line["correlation_id"], line["body"]) for line in talk.lines[5:]]
    assert got[1:] == [(number, {"throttle_time_ms": number}) for number in range(1, 5)]


@given(data=st.data())
def test_requests_cut_anywhere_give_the_same_lines(data: st.DataObject) -> None:
    sent = b"".join(
        [
            asked(ApiKey.PRODUCE, 9, 1, produce({0: batch(), 3: batch(50)})),
            asked(ApiKey.END_TXN, 4, 2, EndTxnRequest(transactional_id="x", producer_id=3)),
            asked(ApiKey.PRODUCE, 3, 3, produce({0: batch(2 * COPIED_BYTES), 1: batch(1)})),
            asked(ApiKey.END_TXN, 1, 4, EndTxnRequest(transactional_id="y")),
        ]
    )
    whole, cut = Talk(), Talk()
    whole.ask(sent)
    cut.ask(sent, sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=30))))
    for line in (*whole.lines, *cut.lines):
        del line["time_us"]
    assert cut.lines == whole.lines
    assert len(whole.lines) == 4


# -- what is hidden --------------------------------------------------------------------------------


def test_the_bytes_of_a_login_are_hidden(talk: Talk) -> None:
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    talk.ask(asked(ApiKey.SASL_HANDSHAKE, 1, 1, handshake))
    talk.answer(answered(ApiKey.SASL_HANDSHAKE, 1, 1, SaslHandshakeResponse(mechanisms=["PLAIN"])))
    talk.ask(asked(ApiKey.SASL_AUTHENTICATE, 2, 2, SaslAuthenticateRequest(auth_bytes=SECRET)))
    reply = SaslAuthenticateResponse(auth_bytes=SECRET, session_lifetime_ms=5)
    talk.answer(answered(ApiKey.SASL_AUTHENTICATE, 2, 2, reply))
    shown = json.dumps(talk.lines)
    assert "correct" not in shown
    assert talk.lines[0]["body"] == {"mechanism": "PLAIN"}
    assert talk.lines[2]["body"] == {"auth_bytes": "hidden"}
    assert talk.lines[3]["body"] == {"auth_bytes": "hidden", "session_lifetime_ms": 5}


@pytest.mark.parametrize("token", [b"\x00user\x00" + SECRET, b"\x00A\x00" + SECRET, b"", b"n,,n=u"])
def test_a_login_without_headers_is_hidden_and_passes(talk: Talk, token: bytes) -> None:
    """SaslHandshake 0: the tokens come as frames of their own."""
    talk.ask(asked(ApiKey.SASL_HANDSHAKE, 0, 1, SaslHandshakeRequest(mechanism="PLAIN")))
    reply = answered(ApiKey.SASL_HANDSHAKE, 0, 1, SaslHandshakeResponse(mechanisms=["PLAIN"]))
    assert talk.answer(reply) == reply
    talk.ask(framed(token))
    assert talk.answer(framed(b"")) == framed(b"")
    talk.ask(asked(ApiKey.END_TXN, 1, 9, EndTxnRequest(transactional_id="x")))
    end = answered(ApiKey.END_TXN, 1, 9, EndTxnResponse())
    assert talk.answer(end) == end
    assert "correct" not in json.dumps(talk.lines)
    assert [line["api"] for line in talk.lines] == [
        *["SaslHandshake"] * 2,
        *["SaslToken"] * 2,
        *["EndTxn"] * 2,
    ]


def test_secret_settings_are_hidden(talk: Talk) -> None:
    configs = [
        AlterableConfig(name="ssl.key.password", value=SECRET.decode()),
        AlterableConfig(name="retention.ms", value="1000"),
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)]
    )
    talk.ask(asked(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, 1, request))
    shown = json.dumps(talk.lines)
    assert "correct" not in shown
    assert '"value": "1000"' in shown


# -- what cannot be decoded ------------------------------------------------------------------------


def test_an_unknown_api_passes_and_is_named_if_possible(talk: Talk) -> None:
    for key, name in ((68, "ConsumerGroupHeartbeat"), (200, "API 200")):
        talk.ask(framed(key.to_bytes(2, "big") + b"\x00\x01\x00\x00\x00\x07\x00\x03abcsecret"))
        reply = framed(b"\x00\x00\x00\x07whatever")
        assert talk.answer(reply) == reply
        sent, got = talk.lines[-2:]
        assert (sent["api"], got["api"]) == (name, name)
        assert sent["decoded"] is got["decoded"] is False
        assert sent["client_id"] == "abc"
        assert "secret" not in json.dumps(talk.lines)


@pytest.mark.parametrize("size", [100, 2 * COPIED_BYTES])
def test_a_version_newer_than_ours_passes(talk: Talk, size: int) -> None:
    talk.ask(request_frame(API[ApiKey.METADATA], 99, bytes(size)))
    reply = framed(b"\x00\x00\x00\x01" + bytes(size))
    assert talk.answer(reply, [2, 90]) == reply
    assert talk.lines[1]["reason"] == (
        "version 99 of Metadata is not known here, so addresses in it are not rewritten"
    )


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02ab",
        b"\x00\x00\x00\x00",
    ],
    ids=["http", "tls", "negative size", "short frame", "empty frame"],
)
def test_bytes_that_are_not_kafkas_pass_with_one_line(garbage: bytes) -> None:
    for cuts in ([], list(range(1, len(garbage)))):
        talk = Talk()
        talk.ask(garbage, cuts)
        talk.ask(garbage)
        assert talk.conversation.is_opaque
        assert talk.answer(b"HTTP/1.1 400 Bad Request\r\n\r\n").startswith(b"HTTP/1.1 400")
        (line,) = talk.lines
        assert line["event"] == "not_decoded"
        assert ("TLS" in line["reason"]) == garbage.startswith(b"\x16\x03")


def test_a_reply_that_is_not_kafkas_passes_whole(talk: Talk) -> None:
    talk.ask(asked(ApiKey.END_TXN, 1, 9, EndTxnRequest(transactional_id="x")))
    garbage = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    assert talk.answer(garbage, [1, 2, 3, 9]) == garbage
    assert talk.lines[-1]["event"] == "not_decoded"


def test_a_reply_to_no_request_passes(talk: Talk) -> None:
    stray = framed(b"\x00\x00\x00\x05hello")
    assert talk.answer(stray, [5]) == stray
    assert talk.lines[-1]["reason"] == "no request waits for it"


def test_an_incomplete_reply_is_delivered_when_the_broker_ends_the_connection(talk: Talk) -> None:
    talk.ask(request_frame(API[ApiKey.METADATA], 9, b""))
    part = b"\x00\x00\x01\x00\x00\x00\x00\x01abc"
    got = talk.answer(part) + b"".join(talk.conversation.end_of_broker())
    assert got == part
    assert talk.conversation.end_of_broker() == []


def test_garbage_of_the_client_does_not_keep_a_reply(talk: Talk) -> None:
    talk.ask(request_frame(API[ApiKey.METADATA], 9, b""))
    part, rest = b"\x00\x00\x00\x08\x00\x00\x00\x01ab", b"cd"
    got = talk.answer(part)
    talk.ask(b"\xff\xff\xff\xff")
    assert got + talk.answer(rest) == part + rest


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_break_it(sent: bytes, got: bytes) -> None:
    talk = Talk()
    talk.ask(request_frame(API[ApiKey.METADATA], 9, b"") + sent)
    delivered = talk.answer(got) + b"".join(bytes(b) for b in talk.conversation.end_of_broker())
    assert len(delivered) >= 0
    if talk.conversation.is_opaque:
        assert delivered == got


def test_a_request_that_cannot_be_decoded_says_why(talk: Talk) -> None:
    body = encode(EndTxnRequest(transactional_id="x"), 1)
    talk.ask(request_frame(API[ApiKey.END_TXN], 1, body[:3]))
    (line,) = talk.lines
    assert line["decoded"] is False
    assert "EndTxnRequest v1" in line["reason"]
