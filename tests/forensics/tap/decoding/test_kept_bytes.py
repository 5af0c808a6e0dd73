"""The bytes of requests: what `tap --bytes` keeps, what it never keeps, and `tap show --hex`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from fencepost.forensics.tap.decoding.exchange import COPIED_BYTES
from fencepost.forensics.tap.decoding.kept_bytes import KEPT_APIS, KEPT_BYTES
from fencepost.records.builder import build_pairs
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import encode_request
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from tests.cli.running import fencepost_command
from tests.forensics.tap.talk import Talk
from tests.forensics.tap.traces import a_timeout
from tools.tap_process import TapProcess

SECRET = b"correct horse battery staple"
ID = "refunds-1"


def asked(api: ApiKey, version: int, form: object) -> bytes:
    return b"".join(encode_request(api, version, 7, "client", form))


def line_of(frame: bytes, cuts: tuple[int, ...] = ()) -> dict[str, Any]:
    talk = Talk(keeps_bytes=True)
    talk.ask(frame, cuts)
    (line,) = talk.lines
    return line


def kept(line: dict[str, Any]) -> dict[int, bytes]:
    """What a line has kept, by position."""
    return {piece["at"]: bytes.fromhex(piece["hex"]) for piece in line.get("bytes", [])}


def batch(value: bytes) -> bytes:
    built = build_pairs(
        [(b"k", value)],
        timestamp_ms=1,
        producer_id=9,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    return bytes(built.data)


def produce(*records: bytes | None) -> ProduceRequest:
    data = [PartitionProduceData(index=n, records=each) for n, each in enumerate(records)]
    topic = TopicProduceData(name="payments", partition_data=data)
    return ProduceRequest(transactional_id=ID, acks=-1, timeout_ms=5, topic_data=[topic])


END = EndTxnRequest(transactional_id=ID, producer_id=7, producer_epoch=2, committed=True)


@pytest.mark.parametrize("version", range(6))
def test_a_small_request_is_kept_as_it_was(version: int) -> None:
    frame = asked(ApiKey.END_TXN, version, END)
    assert kept(line_of(frame)) == {0: frame}
    assert kept(line_of(frame, (1, 5, 20))) == {0: frame}


def test_nothing_is_kept_unless_it_was_asked_for() -> None:
    talk = Talk()
    talk.ask(asked(ApiKey.END_TXN, 4, END))
    assert "bytes" not in talk.lines[0]


@pytest.mark.parametrize("size", [10, COPIED_BYTES * 2], ids=["small", "large"])
@pytest.mark.parametrize("version", [3, 9, 12])
def test_of_records_the_batch_header_is_kept_and_nothing_else(version: int, size: int) -> None:
    sealed = batch(SECRET + bytes(size))
    frame = asked(ApiKey.PRODUCE, version, produce(sealed, sealed))
    line = line_of(frame)
    assert SECRET.hex() not in json.dumps(line)
    found = kept(line)
    shown = b"".join(found.values())
    assert sealed[:61] in shown
    for position, data in found.items():
        assert frame[position : position + len(data)] == data
    assert sum(map(len, found.values())) <= KEPT_BYTES


@pytest.mark.parametrize("records", [b"", SECRET * 5, b"\x00" * 200 + SECRET, None])
def test_records_that_are_none_are_not_kept(records: bytes | None) -> None:
    line = line_of(asked(ApiKey.PRODUCE, 9, produce(records, batch(SECRET))))
    assert SECRET.hex() not in json.dumps(line)
    assert "bytes" in line


def test_logins_are_not_kept() -> None:
    talk = Talk(keeps_bytes=True)
    talk.ask(asked(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN")))
    talk.ask(asked(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=SECRET)))
    assert [line.get("bytes") for line in talk.lines] == [None, None]
    assert SECRET.hex() not in json.dumps(talk.lines)


def test_tokens_without_a_header_are_not_kept() -> None:
    talk = Talk(keeps_bytes=True)
    talk.ask(asked(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest(mechanism="PLAIN")))
    talk.ask(len(SECRET).to_bytes(4, "big") + SECRET)
    assert SECRET.hex() not in json.dumps(talk.lines)


def test_a_long_request_is_cut() -> None:
    topic = AddPartitionsToTxnTopic(name="payments", partitions=list(range(2_000)))
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=ID, producer_id=7, producer_epoch=2, topics=[topic]
    )
    frame = asked(
        ApiKey.ADD_PARTITIONS_TO_TXN, 4, AddPartitionsToTxnRequest(transactions=[transaction])
    )
    line = line_of(frame)
    assert kept(line) == {0: frame[:KEPT_BYTES]}
    assert line["size_bytes"] == len(frame)


@given(st.binary(max_size=200), st.sampled_from(sorted(KEPT_APIS)), st.integers(0, 5))
def test_a_request_that_cannot_be_followed_is_not_kept_beyond_what_is_understood(
    body: bytes, api: ApiKey, version: int
) -> None:
    """Junk behind a sound header: the lines never fail, and bytes after the message are hidden."""
    head = asked(api, version, END) if api is ApiKey.END_TXN else b""
    frame = head[4:] or int(api).to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(6)
    whole = (len(frame) + len(body)).to_bytes(4, "big") + frame + body
    line = line_of(whole)
    for position, data in kept(line).items():
        assert whole[position : position + len(data)] == data
    if line.get("decoded") is False:
        assert "bytes" not in line


def test_bytes_behind_the_message_are_not_kept() -> None:
    frame = asked(ApiKey.END_TXN, 4, END)
    longer = (len(frame) - 4 + len(SECRET)).to_bytes(4, "big") + frame[4:] + SECRET
    line = line_of(longer)
    assert SECRET.hex() not in json.dumps(line)


# -- on a broker -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A transaction with an offset, through a tap that keeps bytes."""
    out = tmp_path_factory.mktemp("bytes") / "trace.jsonl"
    with fencepost.Broker() as broker, TapProcess(broker.bootstrap_servers, out, "--bytes") as tap:
        with connect(tap.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic("payments", partitions=1)])
            place = TopicPartition("payments", 0)
            identity = cluster.init_producer_id(ID)
            with cluster.writer(identity) as writer:
                writer.write_records(place, [Record(value=SECRET)])
                writer.flush()
            cluster.txn_offset_commit(identity, "g", {place: CommittedOffset(1)})
            cluster.end_txn(identity, commit=True)
        tap.wait_for(lambda line: line.get("api") == "EndTxn" and line["kind"] == "reply")
        yield out


def test_no_value_is_in_the_trace(trace: Path) -> None:
    assert SECRET.hex() not in trace.read_text()
    assert SECRET.decode() not in trace.read_text()


def test_requests_have_numbers_and_their_bytes_are_shown(trace: Path) -> None:
    told = json.loads(fencepost_command("tap", "show", str(trace), "--json").stdout)
    number = next(each["number"] for each in told["exchanges"] if each["api"] == "EndTxn")
    drawn = fencepost_command("tap", "show", str(trace))
    assert f"#{number} 0/0 commit" in drawn.stdout
    shown = fencepost_command("tap", "show", str(trace), "--hex", str(number))
    assert shown.returncode == 0
    first, second, *_ = shown.stdout.splitlines()
    assert first.startswith(f"#{number} EndTxn ")
    assert second.startswith("00000000  00 00 00 ")
    assert "refunds-1" in "".join(
        line.rpartition("  |")[2][:-1] for line in shown.stdout.splitlines()
    )
    row = json.loads(
        fencepost_command("tap", "show", str(trace), "--hex", str(number), "--json").stdout
    )
    (piece,) = row["bytes"]
    assert len(bytes.fromhex(piece["hex"])) == row["size_bytes"]
    assert (piece["at"], row["api"]) == (0, "EndTxn")


def test_what_was_left_out_is_counted(trace: Path) -> None:
    told = json.loads(fencepost_command("tap", "show", str(trace), "--json").stdout)
    number = next(each["number"] for each in told["exchanges"] if each["api"] == "Produce")
    shown = fencepost_command("tap", "show", str(trace), "--hex", str(number)).stdout
    assert " bytes are not kept ..." in shown


@pytest.mark.parametrize("number", ["0", "-1", "99"])
def test_a_number_that_is_none_is_refused_with_those_that_are(trace: Path, number: str) -> None:
    done = fencepost_command("tap", "show", str(trace), "--hex", number)
    assert done.returncode == 1
    assert "The trace has requests 1 to " in done.stderr


def test_a_trace_without_bytes_says_how_to_get_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in a_timeout().lines))
    done = fencepost_command("tap", "show", str(path), "--hex", "1")
    assert done.returncode == 1
    assert "`fencepost tap --bytes` keeps those of transactions." in done.stderr
