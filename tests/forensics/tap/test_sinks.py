"""Where the lines of a tap go, when that place is slow, full or gone."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fencepost.forensics.tap.sinks import QUEUED_LINES, FileSink, OutputSink, lost_as_json
from fencepost.records.trace import as_text


def test_a_file_has_each_line_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("an older trace\n")
    sink = FileSink(str(path), pytest.fail)
    sink.write({"kind": "start"})
    assert path.read_text() == '{"kind":"start"}\n'
    assert path.stat().st_mode & 0o077 in (0, 0o044), "an existing file keeps its mode"
    sink.close()
    sink.close()


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    FileSink(str(tmp_path / "new"), pytest.fail).close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_once_and_stops_nothing() -> None:
    told: list[str] = []
    sink = FileSink("/dev/full", told.append)
    for _ in range(3):
        sink.write({"kind": "request"})
    sink.close()
    (sentence,) = told
    assert "No space left on device" in sentence
    assert "clients are still served" in sentence


def test_a_reader_that_stops_costs_lines_and_no_time() -> None:
    reading, writing = os.pipe()
    sink = OutputSink(as_text, lost_as_json, writing)
    count = QUEUED_LINES + 5_000
    for number in range(count):
        sink.write({"number": number, "filling": "x" * 200})
    got = bytearray()
    done = threading.Thread(target=lambda: _read_all(reading, got))
    done.start()
    while not got:
        pass
    # The reader is back: the next lines say what was lost. The pipe takes some while the queue is
    # full, so that a line in between may find room.
    numbers: list[int] = []
    lost = 0
    while len(numbers) + lost < count:
        sink.write({"number": -1})
        lines = [json.loads(line) for line in _whole(got)]
        numbers = [line["number"] for line in lines if "filling" in line]
        lost = sum(line["lines"] for line in lines if "lines" in line)
    sink.close()
    os.close(writing)
    done.join()
    os.close(reading)
    assert numbers == sorted(set(numbers)), "what came is in order"
    assert len(numbers) < count


def _whole(data: bytearray) -> list[bytes]:
    return bytes(data)[: data.rfind(b"\n") + 1].splitlines()


def _read_all(descriptor: int, got: bytearray) -> None:
    while piece := os.read(descriptor, 1 << 20):
        got += piece


def test_a_reader_that_has_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = OutputSink(as_text, lost_as_json, writing)
    for number in range(100):
        sink.write({"number": number})
    sink.close()
    os.close(writing)
