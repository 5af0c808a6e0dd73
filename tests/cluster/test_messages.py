"""Messages between the controller and a broker, as bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.cluster import messages


def whole(parts: list[Buffer]) -> memoryview:
    return memoryview(b"".join(parts))


@given(st.integers(0, 2**62), st.lists(st.binary(max_size=50), max_size=20), st.booleans())
def test_a_batch_arrives_as_it_was_sent(
    end_offset: int, records: list[bytes], opens_at_once: bool
) -> None:
    sent = messages.encode_batch(end_offset, records, opens_at_once=opens_at_once)
    assert messages.decode_batch(whole(sent)) == (end_offset, opens_at_once, records)


def test_a_batch_with_bytes_after_its_end_is_an_error() -> None:
    sent = messages.encode_batch(1, [b"record"], opens_at_once=True)
    with pytest.raises(WireError, match="a batch of"):
        messages.decode_batch(whole([*sent, b"more"]))


@given(st.text(max_size=20), st.text(max_size=20), st.binary(max_size=50))
def test_a_request_arrives_with_its_client(host: str, principal: str, frame: bytes) -> None:
    size = len(frame).to_bytes(4, "big")
    sent = messages.encode_request(7, host, principal, "INSIDE", [size, frame])
    expected = messages.Request(7, host, principal, "INSIDE", memoryview(frame))
    assert messages.decode_request(whole(sent)) == expected


def test_a_reply_arrives_with_the_number_of_its_request() -> None:
    number, frame = messages.decode_reply(whole(messages.encode_reply(7, [b"\0\0\0\2", b"ok"])))
    assert (number, bytes(frame)) == (7, b"ok")


def test_a_reply_without_a_frame_says_that_the_controller_failed() -> None:
    number, frame = messages.decode_reply(whole(messages.encode_reply(7, [])))
    assert (number, bytes(frame)) == (7, b"")
