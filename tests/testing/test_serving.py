"""`fencepost serve --test`: how it starts and ends, and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.testing.test_http_control import PATIENCE_SECONDS, read_control, start


def test_it_ends_cleanly_and_leaves_neither_token_nor_temporary_data(tmp_path: Path) -> None:
    with start("--listen", "127.0.0.1:0") as process:
        control = read_control(process)
        control.contents.produce("refunds", "v")
        control.done("POST", "/faults", {"api": "EndTxn", "action": "hold"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert not control.token_file.parent.exists()


def test_data_that_were_named_are_kept_and_each_start_has_a_token_of_its_own(
    tmp_path: Path,
) -> None:
    tokens = set()
    for count in (1, 2):
        with start("--listen", "127.0.0.1:0", "--data", str(tmp_path)) as process:
            control = read_control(process)
            tokens.add(control.token)
            control.contents.produce("refunds", "v")
            assert len(control.done("GET", "/committed/refunds")["records"]) == count
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0
    assert len(tokens) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--allow-remote"], "--test does not go with --allow-remote"),
        (["--brokers", "3"], "--test does not go with --brokers"),
        (["--listen", "192.0.2.1:0"], "--test is for this machine alone"),
        (["--config", "listeners=PLAINTEXT://192.0.2.1:0"], "--test is for this machine alone"),
        (["--metrics", "192.0.2.1:0"], "--metrics: 192.0.2.1 can be reached"),
        (["--config", "num.partition=3"], "num.partitions"),
        (["--listen", "nowhere"], "--listen"),
    ],
)
def test_what_does_not_go_with_tests_is_refused(arguments: list[str], sentence: str) -> None:
    with start(*arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (1, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_port_and_a_directory_in_use_are_refused_in_the_words_of_the_command(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start("--listen", f"127.0.0.1:{port}") as process:
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, "--listen" in err) == (1, True), err
    with start("--listen", "127.0.0.1:0", "--data", str(tmp_path)) as first:
        read_control(first)
        with start("--listen", "127.0.0.1:0", "--data", str(tmp_path)) as second:
            _, err = second.communicate(timeout=PATIENCE_SECONDS)
        assert (second.returncode, "--data" in err or os.fspath(tmp_path) in err) == (1, True), err
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_SECONDS) == 0
