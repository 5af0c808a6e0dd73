"""Goal: both sides of a connection prove that they belong to the job, and the secret is not sent.

Method: both ends in one process, over a pair of sockets that records what is sent.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost.spark.failures import PeerLost
from fencepost.spark.ways import meeting
from fencepost.spark.ways.meeting import admit, greet, make_secret, read_exactly

SECONDS = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    caller, listener = socket.socketpair()
    with caller, listener:
        yield caller, listener


def test_two_with_one_secret_recognise_each_other(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    secret = make_secret()
    with ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(admit, ends[1], secret)
        greet(ends[0], secret)
        assert admitted.result(SECONDS)
    assert ends[1].gettimeout() == meeting.ANSWER_SECONDS


def test_a_listener_with_another_secret_is_not_believed_and_does_not_believe(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(admit, ends[1], make_secret())
        with pytest.raises(PeerLost, match="does not know this job"):
            greet(ends[0], make_secret())
        ends[0].close()
        assert not admitted.result(SECONDS)


def test_the_secret_is_never_sent_and_a_recorded_handshake_is_worthless(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    secret = make_secret()
    (here, relay_in), (relay_out, there) = socket.socketpair(), ends
    with here, relay_in, ThreadPoolExecutor(2) as pool:
        admitted = pool.submit(admit, there, secret)
        greeted = pool.submit(greet, here, secret)
        first = read_exactly(relay_in, 32)
        relay_out.sendall(first)
        answer = read_exactly(relay_out, 64)
        relay_in.sendall(answer)
        proof = read_exactly(relay_in, 32)
        relay_out.sendall(proof)
        greeted.result(SECONDS)
        assert admitted.result(SECONDS)
        assert secret not in bytes(first + answer + proof)
        again = pool.submit(admit, there, secret)
        relay_out.sendall(first + proof)
        assert not again.result(SECONDS)


def test_a_caller_cannot_answer_with_the_proof_of_the_listener(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(admit, ends[1], make_secret())
        ends[0].sendall(b"x" * 32)
        ends[0].sendall(read_exactly(ends[0], 64)[32:])
        assert not admitted.result(SECONDS)


def test_a_caller_that_hangs_up_or_says_nothing_is_not_admitted(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "ANSWER_SECONDS", 0.01)
    assert not admit(ends[1], make_secret())
    ends[0].close()
    assert not admit(ends[1], make_secret())
